// Figures in two directions: clients and classes, clients and domains, classes and classes.

// ---- the clients' data -------------------------------------------------------------------------------------------

function bubbles(partition, colours) {
  const domains = [...new Set(partition.clients.map((c) => c.domain))];
  const most = Math.max(1, ...partition.clients.flatMap((c) => c.counts));
  const traces = domains.map((domain, place) => {
    const trace = { x: [], y: [], n: [] };
    for (const client of partition.clients) {
      if (client.domain !== domain) continue;
      client.counts.forEach((count, c) => {
        if (!count) return;
        trace.x.push(client.id);
        trace.y.push(partition.classes[c] ?? String(c));
        trace.n.push(count);
      });
    }
    return {
      type: "scatter", mode: "markers", name: domain || "clients", x: trace.x, y: trace.y, text: trace.n,
      // The area of a dot is the number of samples: the largest is 28 pixels wide.
      marker: {
        size: trace.n, sizemode: "area", sizeref: (2 * most) / 28 ** 2, sizemin: 0, color: look(place).colour,
        opacity: 0.85, line: { width: 0 },
      },
      hovertemplate: "%{x}, class %{y}: %{text} samples",
    };
  });
  return {
    traces, height: 90 + 30 * Math.min(
      Math.max(partition.classes.length, 4), 40,
    ), minWidth: 30 * partition.clients.length + 120,
    layout: layout(colours, {
      showlegend: domains.length > 1, margin: { l: 60, r: 20, t: 34, b: 60 }, hovermode: "closest", legend: {
        orientation: "h", traceorder: "normal", y: 1.02, yanchor: "bottom", x: 0, itemsizing: "constant",
        font: { size: 12 },
      },
      xaxis: {
        type: "category", categoryorder: "array", categoryarray: partition.clients.map((c) => c.id),
        range: [-0.7, partition.clients.length - 0.3], title: { text: "client" },
      },
      yaxis: {
        type: "category", categoryorder: "array", categoryarray: partition.classes,
        range: [-0.8, partition.classes.length - 0.2], title: { text: "class" },
      },
    }),
  };
}

// ---- teacher weights ---------------------------------------------------------------------------------------------

function shades(colours) {
  return [[0, colours.back], [1, GAIN]];
}

function largest(rows) {
  return Math.max(0.001, ...known(rows.flat()));
}

function heatmap(table, colours) {
  const pool = Object.keys(table), clients = [...new Set(pool.flatMap((d) => Object.keys(table[d])))];
  const z = pool.map((d) => clients.map((c) => table[d][c] ?? null));
  const few = clients.length <= 12;
  return {
    traces: [{
      type: "heatmap", name: "weight", x: clients, y: pool, z, zmin: 0, zmax: largest(z), colorscale: shades(colours),
      xgap: 2, ygap: 2, texttemplate: few ? "%{z:.2f}" : "", textfont: { size: 12 },
      hovertemplate: "pool %{y}, client %{x}: %{z:.4f}<extra></extra>", colorbar: { thickness: 12, outlinewidth: 0 },
    }],
    height: 130 + 44 * Math.max(pool.length, 2), minWidth: 30 * clients.length + 160,
    layout: layout(colours, {
      margin: { l: 80, r: 12, t: 8, b: 60 }, xaxis: { type: "category", showgrid: false },
      yaxis: { type: "category", showgrid: false, autorange: "reversed", ticklabelstandoff: 6 },
    }),
  };
}

function course(run, of, colours) {
  const weights = run.courses[of], clients = Object.keys(weights);
  if (clients.length > 8) {
    return {
      traces: [{
        type: "heatmap", x: run.round, y: clients, z: clients.map((c) => weights[c]), zmin: 0,
        zmax: largest(Object.values(weights)), colorscale: shades(colours), name: "weight",
        hovertemplate: "round %{x}, %{y}: %{z:.4f}<extra></extra>", colorbar: { thickness: 12, outlinewidth: 0 },
      }],
      height: 110 + 20 * clients.length,
      layout: layout(colours, {
        margin: { l: 90, r: 12, t: 8, b: 40 }, xaxis: { title: { text: "round" } },
        yaxis: { type: "category", autorange: "reversed", ticklabelstandoff: 6 },
      }),
    };
  }
  return {
    traces: clients.map((client, place) => {
      const { colour, dash, mark } = look(place);
      return {
        type: "scatter", mode: run.round.length > 40 ? "lines" : "lines+markers", name: client, x: run.round,
        y: weights[client], line: { color: colour, dash, width: 2 }, marker: { color: colour, symbol: mark, size: 6 },
        hovertemplate: "%{y:.4f}",
      };
    }),
    height: 340,
    layout: layout(colours, {
      showlegend: true, hovermode: "x unified", margin: { l: 48, r: 12, t: 34, b: 40 },
      xaxis: roundAxis(run.round.at(-1) ?? 0), yaxis: { title: { text: of }, rangemode: "tozero" },
    }),
  };
}

// ---- real and virtual features -------------------------------------------------------------------------------------

// One colour a domain; the mark tells what is real (dots) from what was drawn (crosses).
function featureMap(domains, colours) {
  const sets = Object.entries(domains).flatMap(([domain, points], place) => ["real", "virtual"]
    .filter((kind) => points[kind].length)
    .map((kind) => ({ domain, kind, colour: look(place).colour, along: [0, 1].map((i) => points[kind].map((p) => p[i])) })));
  const told = (values) => { const s = spread(values); return [s.mean, s.std ?? ""]; };
  return {
    traces: sets.map(({ domain, kind, colour, along: [x, y] }) => ({
      type: "scatter", mode: "markers", name: `${domain}, ${kind}`, x, y, hovertemplate: "%{fullData.name}<extra></extra>",
      marker: {
        color: colour, symbol: kind === "real" ? "circle" : "x-thin-open", size: kind === "real" ? 6 : 7, opacity: 0.6,
        line: { width: kind === "real" ? 0 : 1.4, color: colour },
      },
    })),
    height: 460,
    numbers: {
      head: ["domain", "features", "points", "mean along the first", "deviation", "mean along the second", "deviation"],
      rows: sets.map(({ domain, kind, along: [x, y] }) => [domain, kind, x.length, ...told(x), ...told(y)]),
    },
    layout: layout(colours, {
      showlegend: true, hovermode: "closest", margin: { l: 48, r: 12, t: 34, b: 40 },
      xaxis: { title: { text: "first direction" }, zeroline: false },
      yaxis: { title: { text: "second direction" }, zeroline: false },
    }),
  };
}

// ---- confusion matrices --------------------------------------------------------------------------------------------

// The share of a class (down) that is predicted as each class (across); correct is blue, errors are orange. The faintest error
// should be visible: orange is full at the largest share of errors on the page, or at a fifth.
function confusionMap(table, classes, worst, colours) {
  const totals = table.map((row) => row.reduce((a, b) => a + b, 0));
  const share = (i, j) => (totals[i] ? table[i][j] / totals[i] : null);
  const shade = (i, j) => (share(i, j) === null ? null : i === j ? share(i, j) : -share(i, j) / Math.max(worst, 0.2));
  const z = classes.map((_, i) => classes.map((__, j) => shade(i, j)));
  const said = classes.map((_, i) => classes.map((__, j) => (table[i][j] ? String(table[i][j]) : "")));
  const few = classes.length <= 12;
  return {
    traces: [{
      type: "heatmap", name: "samples", x: classes, y: classes, z, zmin: -1, zmax: 1, showscale: false, text: said,
      colorscale: [[0, HARM], [0.5, colours.back], [1, GAIN]], xgap: few ? 2 : 0.5, ygap: few ? 2 : 0.5,
      texttemplate: few ? "%{text}" : "", textfont: { size: 11 },
      customdata: classes.map((_, i) => classes.map(() => totals[i])),
      hovertemplate: "%{text} of %{customdata} samples of %{y} are taken for %{x}<extra></extra>",
    }],
    height: Math.min(Math.max(120 + 24 * classes.length, 220), 640),
    numbers: { head: ["class", ...classes], rows: classes.map((name, i) => [name, ...table[i]]) },
    layout: layout(colours, {
      margin: { l: 60, r: 8, t: 8, b: 50 }, hovermode: "closest",
      xaxis: { type: "category", showgrid: false, title: { text: "predicted as" } },
      yaxis: { type: "category", showgrid: false, autorange: "reversed", title: { text: "class" }, ticklabelstandoff: 4 },
    }),
  };
}

// The largest share of a class that is predicted as another one: [share, class, predicted as, samples, of].
function worstConfusion(table, classes) {
  let worst = null;
  table.forEach((row, i) => {
    const total = row.reduce((a, b) => a + b, 0);
    row.forEach((n, j) => {
      if (i === j || !n || (worst && n / total <= worst.share)) return;
      worst = { share: n / total, truth: classes[i], said: classes[j], n, total };
    });
  });
  return worst;
}
