"use strict";
// The figures: from the page's data and what is switched on to Plotly traces and layouts; nothing here touches the page.

// Okabe and Ito's colours, told apart by people with any of the common colour blindnesses; dashes and marks repeat what
// the colour says, for print and for more than eight methods.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#7F7F7F"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const MARKS = ["circle", "square", "diamond", "triangle-up", "x", "triangle-down", "star", "cross"];

const GAIN = "#0072B2", HARM = "#D55E00";

function look(place) {
  return {
    colour: COLOURS[place % COLOURS.length],
    dash: DASHES[(place + Math.floor(place / COLOURS.length)) % DASHES.length],
    mark: MARKS[(place + Math.floor(place / COLOURS.length)) % MARKS.length],
  };
}

function faint(colour, alpha) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}

function known(values) {
  return values.filter((v) => v !== null && v !== undefined);
}

function mean(values) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

// Mean and sample standard deviation, as the summary table has them.
function spread(values) {
  const there = known(values), middle = mean(there);
  if (middle === null) return null;
  const squares = there.reduce((sum, v) => sum + (v - middle) ** 2, 0);
  return { mean: middle, std: there.length > 1 ? Math.sqrt(squares / (there.length - 1)) : null, count: there.length };
}

function running(values) {
  let sum = 0;
  return values.map((v) => (sum += v || 0));
}

function addedUp(lists) {
  const there = lists.filter(Boolean);
  return there.length ? there[0].map((_, i) => there.reduce((sum, list) => sum + (list[i] || 0), 0)) : null;
}

// What has been spent by the end of each round, in the unit of the horizontal axis.
function spent(run, unit) {
  if (unit === "round") return run.round;
  const each = unit === "megabytes" ? addedUp([run.down, run.up]) : addedUp(Object.values(run.seconds));
  return each ? running(each).map((v) => (unit === "megabytes" ? v / 1e6 : v)) : run.round.map(() => null);
}

const AXES = { round: "round", megabytes: "megabytes sent, down and up", seconds: "seconds" };

// A curve over the seeds of a method: at each round the spread of `series(run)` and the mean of what was spent.
function overSeeds(runs, series, unit) {
  const byRound = new Map();
  for (const run of runs) {
    const values = series(run), at = spent(run, unit);
    if (!values) continue;
    run.round.forEach((round, i) => {
      if (values[i] === null || values[i] === undefined || at[i] === null) return;
      if (!byRound.has(round)) byRound.set(round, []);
      byRound.get(round).push([at[i], values[i]]);
    });
  }
  return [...byRound.keys()].sort((a, b) => a - b).map((round) => {
    const pairs = byRound.get(round);
    return { round, x: mean(pairs.map((p) => p[0])), ...spread(pairs.map((p) => p[1])) };
  });
}

// Whole rounds only, where the library would mark halves.
function roundAxis(rounds) {
  return { title: { text: "round" }, rangemode: "tozero", ...(rounds <= 10 ? { dtick: 1 } : {}) };
}

function theme(styles) {
  const of = (name) => styles.getPropertyValue(name).trim();
  return {
    back: of("--back"), text: of("--text"), soft: of("--soft"), grid: of("--grid"), line: of("--line"),
    accent: of("--accent"),
  };
}

function layout(colours, more) {
  const axis = {
    gridcolor: colours.grid, linecolor: colours.line, zerolinecolor: colours.line, automargin: true,
    title: { font: { size: 13 } },
  };
  const merged = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    margin: { l: 48, r: 12, t: 12, b: 40 },
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 13, color: colours.text },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.soft, activecolor: colours.accent },
    hoverlabel: { bgcolor: colours.back, bordercolor: colours.line, font: { color: colours.text } },
    legend: { orientation: "h", traceorder: "normal", y: 1.02, yanchor: "bottom", x: 0, font: { size: 12 } },
    ...more,
  };
  for (const name of ["xaxis", "yaxis", "xaxis2", "yaxis2"]) {
    if (name.length === 5 || merged[name]) merged[name] = { ...axis, ...(merged[name] || {}) };
  }
  return merged;
}

const PERCENT = { tickformat: ".0%", hoverformat: ".2%" };

// ---- learning curves, losses -------------------------------------------------------------------------------------

function longest(data) {
  return Math.max(0, ...data.runs.map((run) => run.round.at(-1) ?? 0));
}

function curves(data, on, colours, { series, unit, seeds, axis, title }) {
  const traces = [];
  const deviation = (std) => (axis === PERCENT ? (100 * std).toFixed(2) : std.toPrecision(3));
  data.methods.forEach((method, place) => {
    if (!on(place)) return;
    const { colour, dash, mark } = look(place);
    const runs = method.runs.map((r) => data.runs[r]);
    const points = overSeeds(runs, series, unit);
    if (!points.length) return;
    if (seeds) {
      for (const run of runs) {
        const values = series(run);
        if (!values) continue;
        traces.push({
          type: "scatter", mode: "lines", name: run.name, x: spent(run, unit), y: values,
          line: { color: faint(colour, 0.55), width: 1.3, dash }, hovertemplate: "%{y}",
        });
      }
    } else if (points.some((p) => p.std !== null)) {
      const edge = (sign) => points.map((p) => p.mean + sign * (p.std || 0));
      const band = {
        type: "scatter", mode: "lines", x: points.map((p) => p.x), hoverinfo: "skip", showlegend: false,
        line: { width: 0 }, band: true,
      };
      traces.push({ ...band, name: `${method.label}, lower edge`, y: edge(-1) });
      traces.push({
        ...band, name: `${method.label}, upper edge`, y: edge(1), fill: "tonexty", fillcolor: faint(colour, 0.16),
      });
    }
    traces.push({
      type: "scatter", mode: points.length > 40 ? "lines" : "lines+markers", name: method.label,
      x: points.map((p) => p.x), y: points.map((p) => p.mean),
      customdata: points.map((p) => (p.std === null ? "" : ` ± ${deviation(p.std)} (${p.count} seeds)`)),
      line: { color: colour, width: 2.4, dash }, marker: { color: colour, size: 6, symbol: mark },
      hovertemplate: "%{y}%{customdata}",
    });
  });
  return {
    traces, height: 430,
    layout: layout(colours, {
      hovermode: unit === "round" ? "x unified" : "closest",
      xaxis: unit === "round" ? roundAxis(longest(data)) : { title: { text: AXES[unit] }, rangemode: "tozero" },
      yaxis: { ...axis, title: { text: title } },
    }),
  };
}

// ---- before and after distillation -------------------------------------------------------------------------------

function distils(run) {
  if (run.merged === null) return false;
  return run.ensemble !== null || run.merged.some((m, i) => m !== null && m !== run.accuracy[i]);
}

// What distillation added to the merged model in each round, in points.
function gain(run) {
  return run.merged.map((m, i) => (m === null || run.accuracy[i] === null ? null : 100 * (run.accuracy[i] - m)));
}

function gains(runs) {
  return runs.filter(distils).flatMap((run) => known(gain(run)));
}

function distillation(data, place, colours, range) {
  const runs = data.methods[place].runs.map((r) => data.runs[r]).filter(distils);
  const line = (name, series, style, colour) => {
    const points = overSeeds(runs, series, "round");
    return {
      type: "scatter", mode: points.length > 1 ? "lines" : "markers", name, x: points.map((p) => p.x),
      y: points.map((p) => p.mean), line: { dash: style, width: 2.2, color: colour }, marker: { color: colour },
      hovertemplate: "%{y:.2%}",
    };
  };
  const gained = overSeeds(runs, gain, "round");
  const traces = [
    line("ensemble", (run) => run.ensemble, "dot", "#009E73"),
    line("after distillation", (run) => run.accuracy, "solid", colours.accent),
    line("merged", (run) => run.merged, "dash", colours.soft),
    {
      type: "bar", name: "gain, points", x: gained.map((p) => p.x), y: gained.map((p) => p.mean), yaxis: "y2",
      marker: { color: gained.map((p) => (p.mean < 0 ? HARM : GAIN)) }, showlegend: false, hovertemplate: "%{y:+.2f}",
    },
  ].filter((trace) => trace.x.length);
  return {
    traces, height: 310,
    layout: layout(colours, {
      hovermode: "x unified", showlegend: true, margin: { l: 48, r: 12, t: 30, b: 40 },
      xaxis: {
        ...roundAxis(longest(data)), rangemode: "normal", anchor: "y2",
      }, yaxis: { ...PERCENT, domain: [0.36, 1], range },
      yaxis2: {
        domain: [0, 0.26], nticks: 4, title: { text: "gain" }, zeroline: true, zerolinewidth: 2,
        zerolinecolor: colours.soft,
      },
    }),
  };
}

// ---- bars --------------------------------------------------------------------------------------------------------

function groupedBars(data, on, colours, names, found) {
  const traces = [];
  data.methods.forEach((method, place) => {
    if (!on(place)) return;
    const all = names.map((name) => found(method, name));
    traces.push({
      type: "bar", name: method.label, x: names, y: all.map((s) => (s ? s.mean : null)),
      marker: { color: look(place).colour },
      error_y: {
        type: "data", array: all.map((s) => s?.std ?? 0), visible: all.some((s) => s?.std), thickness: 1.3,
        color: colours.soft,
      },
      hovertemplate: "%{x}: %{y}",
    });
  });
  return {
    traces, height: 320,
    layout: layout(colours, {
      barmode: "group", bargap: 0.25, xaxis: { type: "category" }, yaxis: { rangemode: "tozero", ...PERCENT },
      hovermode: "closest",
    }),
  };
}

// One bar a method: what it took to the target; said in words where it was not reached.
function targetBars(data, on, colours, found, { scale = 1, digits, unit }) {
  const shown = data.methods.map((_, place) => place).filter(on).reverse();
  const all = shown.map((place) => found(data.methods[place]));
  const some = (s) => (s.count < s.of ? ` (${s.count} of ${s.of} seeds)` : "");
  const said = (s) => (s.mean * scale).toFixed(digits(s)) + some(s);
  const nothing = (place) => (data.methods[place].runs.every((r) => data.runs[r].finished) ? "never" : "not yet");
  return {
    traces: [{
      type: "bar", orientation: "h", name: unit, y: shown.map((place) => data.methods[place].label),
      x: all.map((s) => (s ? s.mean * scale : 0)), text: all.map((s, i) => (s ? said(s) : nothing(shown[i]))),
      textposition: "outside", constraintext: "none", cliponaxis: false, textfont: { size: 12 },
      marker: { color: shown.map((place) => look(place).colour) }, hovertemplate: `%{y}: %{text}<extra></extra>`,
    }],
    height: 80 + 34 * Math.max(shown.length, 2),
    layout: layout(colours, {
      margin: { l: 60, r: 60, t: 8, b: 40 }, xaxis: { title: { text: unit }, rangemode: "tozero" },
      yaxis: { type: "category", ticklabelstandoff: 6 }, hovermode: "closest",
    }),
  };
}

function stackedBars(data, on, colours, parts, value, unit) {
  const shown = data.methods.map((_, place) => place).filter(on).reverse();
  const labels = shown.map((place) => data.methods[place].label);
  const traces = parts.map((part, i) => ({
    type: "bar", orientation: "h", name: part, y: labels,
    x: shown.map((place) => mean(known(data.methods[place].runs.map((r) => value(data.runs[r], part))))),
    marker: { color: COLOURS[[0, 4, 2, 3, 5, 1, 6, 7][i % 8]] }, hovertemplate: `%{x:,.4~g} ${unit}`,
  }));
  return {
    traces, height: 110 + 34 * Math.max(labels.length, 2),
    layout: layout(colours, {
      barmode: "stack", showlegend: true, margin: { l: 60, r: 12, t: 34, b: 40 }, xaxis: { title: { text: unit } },
      yaxis: { type: "category", ticklabelstandoff: 6 }, hovermode: "closest",
    }),
  };
}

// ---- who holds what ----------------------------------------------------------------------------------------------

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
  return [[0, colours.back], [1, "#0072B2"]];
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
