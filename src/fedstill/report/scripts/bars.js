// Figures that compare lengths.

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

// One bar per method: the cost of reaching the target; a word if it was not reached.
function targetBars(data, on, colours, found, { scale = 1, digits, unit }) {
  const shown = data.methods.map((_, place) => place).filter(on).reverse();
  const all = shown.map((place) => found(data.methods[place]));
  const some = (s) => (s.count < s.of ? ` (${s.count} of ${s.of} seeds)` : "");
  const said = (s) => (s.mean * scale).toFixed(digits(s)) + some(s);
  const most = Math.max(0, ...all.map((s) => (s ? s.mean * scale : 0)));
  const room = all.some((s) => s && s.count < s.of) ? 1.4 : 1.15;  // for the words beside the longest bar
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
      margin: { l: 60, r: 60, t: 8, b: 40 }, xaxis: { title: { text: unit }, range: [0, room * most || 1] },
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
