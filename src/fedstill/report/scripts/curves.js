// Figures over the rounds.

// ---- learning curves, losses -------------------------------------------------------------------------------------

function longest(data) {
  return Math.max(0, ...data.runs.map((run) => run.round.at(-1) ?? 0));
}

function curves(data, on, colours, { series, unit, seeds, axis, title, full }) {
  const traces = [], around = [];
  const deviation = (std) => (axis === PERCENT ? (100 * std).toFixed(2) : std.toPrecision(3));
  data.methods.forEach((method, place) => {
    if (!on(place)) return;
    const { colour, dash, mark } = look(place);
    const runs = method.runs.map((r) => data.runs[r]);
    const points = overSeeds(runs, series, unit);
    if (!points.length) return;
    const first = traces.length;
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
    around.push(traces.slice(first).reverse().map((trace) => trace.y));
  });
  const high = robustRange(around);
  const wide = unit === "round" ? null : robustEnd(traces.map((trace) => trace.x));
  const held = (range) => (range !== null ? { range: [...range], autorange: false } : {});
  const cut = (range) => (full ? {} : held(range));
  const percent = () => held(high !== null && !full ? withinAccuracy(high) : accuracyRange(traces.map((trace) => trace.y)));
  const beyond = traces.filter((t) => !t.band && (outside(high, t.y) || outside(wide, t.x))).map((t) => t.name);
  return {
    traces, height: 430, cut: high !== null || wide !== null, beyond,
    layout: layout(colours, {
      hovermode: unit === "round" ? "x unified" : "closest",
      xaxis: unit === "round"
        ? roundAxis(longest(data)) : { title: { text: AXES[unit] }, rangemode: "tozero", ...cut(wide) },
      yaxis: { ...axis, title: { text: title }, ...(axis === PERCENT ? percent() : cut(high)) },
    }),
  };
}

// ---- before and after distillation -------------------------------------------------------------------------------

function distillation(data, place, colours, range) {
  const runs = data.methods[place].runs.map((r) => data.runs[r]).filter((run) => run.gained);
  const line = (name, series, style, colour) => {
    const points = overSeeds(runs, series, "round");
    return {
      type: "scatter", mode: points.length > 1 ? "lines" : "markers", name, x: points.map((p) => p.x),
      y: points.map((p) => p.mean), line: { dash: style, width: 2.2, color: colour }, marker: { color: colour },
      hovertemplate: "%{y:.2%}",
    };
  };
  const judged = runs.some((run) => run.line?.scored);
  const gained = overSeeds(runs, (run) => run.gained, "round");
  const carried = judged ? overSeeds(runs, (run) => run.carried, "round") : [];
  const { harm } = data.methods[place].distilled;  // a single round with a loss is not harm: harm is a property of the system
  const below = harm && !judged ? HARM : colours.soft;  // with a judge, harm refers to the model that is carried on
  const traces = [
    line("ensemble", (run) => run.ensemble, "dot", CEILING),
    line(judged ? "delivered" : "after distillation", (run) => run.accuracy, "solid", colours.accent),
    line("merged", (run) => run.merged, "dash", colours.soft),
    {
      type: "bar", name: "gain, points", x: gained.map((p) => p.x), y: gained.map((p) => p.mean), yaxis: "y2",
      marker: { color: gained.map((p) => (p.mean < 0 ? below : GAIN)) }, showlegend: false,
      text: gained.map((p) => signed(p.mean)), textposition: "none", hovertemplate: "%{text}",
    },
    {
      type: "scatter", mode: "markers", name: "carried on", x: carried.map((p) => p.x),
      y: carried.map((p) => p.mean), yaxis: "y2",
      marker: {
        symbol: "diamond", size: 9, color: carried.map((p) => (p.mean >= 0 ? colours.accent : harm ? HARM : colours.soft)),
        line: { width: 1, color: colours.back },
      },
      text: carried.map((p) => signed(p.mean)), hovertemplate: "%{text}",
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

function signed(points) {
  const text = fixed(points, 2);
  return Number(text) > 0 ? `+${text}` : text.replace("-", "−");
}

// ---- the points between average and student ------------------------------------------------------------------------

// Down: from the average (0) to the student (1); across: rounds; the colour is the judge's score of each point.
function judgedLine(line, name, colours) {
  const { scores, delivered, averaged, carried } = line.prototypes[name];
  const gain = line.points.map((_, i) => scores.map((s) => (s ? 100 * (s[i] - s[0]) : null)));
  const most = Math.max(1, ...known(gain.flat()).map(Math.abs));
  const few = line.round.length <= 40;
  const taken = (of, label, symbol, colour, dash) => ({
    type: "scatter", mode: few ? "lines+markers" : "lines", name: label, x: line.round, y: of,
    line: { color: colour, width: 2, dash }, marker: { symbol, size: 10, color: colour, line: { width: 2, color: colour } },
    hovertemplate: "round %{x}: t = %{y}",
  });
  const map = {
    type: "heatmap", name: "score", x: line.round, y: line.points, z: gain, zmin: -most, zmax: most, xgap: few ? 2 : 0,
    ygap: 2, colorscale: [[0, HARM], [0.5, colours.back], [1, GAIN]],
    text: gain.map((row) => row.map((v) => (v === null ? "" : signed(v)))),
    hovertemplate: "round %{x}, t = %{y}: %{text} points<extra></extra>",
    colorbar: { thickness: 10, outlinewidth: 0, title: { text: "points", font: { size: 11 } } },
  };
  return {
    traces: [
      ...(known(gain.flat()).length ? [map] : []),
      taken(carried, "carried on", "diamond-open", colours.text, "dot"),
      taken(delivered, "delivered", "circle", colours.text, "solid"),
      ...(known(averaged).length ? [{ ...taken(averaged, "delivered, averaged with rounds before", "circle-x-open", colours.text, "solid"), mode: "markers" }] : []),
    ],
    height: 280,
    numbers: {
      head: ["round", ...line.points.map((t) => `score at ${t}`), "delivered", "averaged", "carried on"],
      rows: line.round.map((r, i) => [
        r, ...line.points.map((_, p) => (scores[i] ? scores[i][p] : "")), delivered[i], averaged[i], carried[i],
      ]),
    },
    layout: layout(colours, {
      showlegend: true, hovermode: "closest", margin: { l: 48, r: 12, t: 30, b: 40 },
      xaxis: { ...roundAxis(line.round.at(-1) ?? 0), rangemode: "normal", showgrid: false },
      yaxis: { title: { text: "t" }, range: [-0.16, 1.16], showgrid: false, zeroline: false, tickvals: line.points },
    }),
  };
}

// ---- the verdict ----------------------------------------------------------------------------------------------------

// How far the leader is ahead of each other system, with the interval of the mean. A system far behind is an arrow at the
// edge, with its figure, so that the others can be distinguished.
function forest(verdict, colours) {
  const rows = [...verdict.differences].reverse(), clear = (d) => d.mean - d.half > 0;
  const least = rows.at(-1), edge = Math.max(1, 8 * (Math.abs(least.mean) + least.half)), far = (d) => d.mean > edge;
  const said = (d) => `${signed(d.mean)} (${signed(d.mean - d.half)} to ${signed(d.mean + d.half)}), ${d.seeds} seeds`;
  const shade = rows.map((d) => (clear(d) ? GAIN : colours.soft));
  return {
    // One trace per system: whiskers have one colour per trace.
    traces: rows.map((d, i) => ({
      type: "scatter", mode: far(d) ? "markers+text" : "markers", name: d.over, x: [far(d) ? edge : d.mean], y: [d.over],
      text: [far(d) ? signed(d.mean) : ""], textposition: "middle left", customdata: [said(d)],
      marker: {
        size: 10, color: shade[i], symbol: far(d) ? "triangle-right" : clear(d) ? "circle" : "circle-open", line: { width: 2 },
      },
      error_x: { type: "data", array: [d.half], visible: !far(d), thickness: 2, width: 5, color: shade[i] },
      hovertemplate: "%{y}: %{customdata}<extra></extra>",
    })),
    height: 50 + 30 * rows.length,
    numbers: {
      head: ["against", "points ahead", "from", "to", "seeds"],
      rows: rows.map((d) => [
        d.over, signed(d.mean), signed(d.mean - d.half), signed(d.mean + d.half), d.seeds,
      ]).reverse(),
    },
    layout: layout(colours, {
      hovermode: "closest", margin: { l: 60, r: 12, t: 4, b: 26 },
      xaxis: {
        zeroline: true, zerolinewidth: 2, zerolinecolor: colours.soft,
        rangemode: "tozero",  // an interval is read against zero
        ...(rows.some(far) ? { range: [Math.min(0, ...rows.map((d) => d.mean - d.half)) - 0.06 * edge, 1.06 * edge] } : {}),
      },
      yaxis: { type: "category", ticklabelstandoff: 6, range: [-0.6, rows.length - 0.4] },
    }),
  };
}
