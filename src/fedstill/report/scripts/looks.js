"use strict";
// What all figures share. Figures turn the page's data and the selected methods into Plotly traces and layouts; neither they
// nor anything here touches the page.

// Okabe and Ito's colours, which people with any of the common colour blindnesses can distinguish; dashes and marks repeat the
// distinction, for print and for more than eight methods.
const PALETTES = {
  light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#7F7F7F"],
  dark: ["#3D9BDC", "#F07A29", "#1FBF92", "#DE95BE", "#F2B632", "#8FD0F5", "#A98BD0", "#A5A5A5"],
};
let COLOURS = PALETTES.light;
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const MARKS = ["circle", "square", "diamond", "triangle-up", "x", "triangle-down", "star", "cross"];

let [GAIN, HARM, CEILING] = COLOURS;

// The same colours, brighter, on a dark page.
function usePalette(scheme) {
  COLOURS = PALETTES[scheme] ?? PALETTES.light;
  [GAIN, HARM, CEILING] = COLOURS;
}

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

// Whole rounds only; the library would mark halves.
function roundAxis(rounds) {
  return { title: { text: "round" }, rangemode: "tozero", ...(rounds <= 10 ? { dtick: 1 } : {}) };
}

function theme(styles) {
  const of = (name) => styles.getPropertyValue(name).trim();
  return {
    back: of("--back"), text: of("--text"), soft: of("--soft"), grid: of("--grid"), line: of("--line"),
    accent: of("--accent"), scheme: of("--scheme"),
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

const PERCENT = { tickformat: ".2~%", hoverformat: ".2%" };

// With a fixed number of digits, without a negative zero.
function fixed(value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

// ---- axes that an outlier does not squeeze ------------------------------------------------------------------------

// The value that a share of the sorted values does not exceed, without going between two of them.
function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b), place = share * (sorted.length - 1);
  return sorted[share < 0.5 ? Math.ceil(place) : Math.floor(place)];
}

// The part of an axis that holds the bulk of the curves, or null if the full axis should be shown. Each method contributes its
// curve and what surrounds it, such as the edges of a band. With three methods or more, a method whose curve has its middle far
// from the others' (twice their usual height) is ignored. The other curves count between their 5th and 95th percentile if they
// have 20 points, otherwise entirely; bands may add as much again on either side. The axis is cut only if that saves more than
// 60 % of it.
function robustRange(methods) {
  const there = methods.map((lists) => lists.map(known)).filter(([curve]) => curve?.length);
  const middles = there.map(([curve]) => quantile(curve, 0.5)), middle = quantile(middles, 0.5);
  const height = Math.max(
    quantile(there.map(([curve]) => quantile(curve, 0.9) - quantile(curve, 0.1)), 0.5),
    quantile(middles.map((m) => Math.abs(m - middle)), 0.5),
  );
  const near = there.filter((_, i) => there.length < 3 || Math.abs(middles[i] - middle) <= 2 * height);
  const points = near.flatMap(([curve]) => curve), share = points.length < 20 ? 0 : 0.05;
  const low = quantile(points, share), high = quantile(points, 1 - share), span = high - low;
  const all = there.flat(2), least = Math.min(...all), most = Math.max(...all);
  if (!(span > 0) || most - least < 2.5 * span) return null;
  const around = near.flat(2).filter((v) => v >= low - span && v <= high + span);
  return [Math.min(low - 0.1 * span, ...around), Math.max(high + 0.1 * span, ...around)];
}

// If one method spends four times as much as the others, the axis ends where the others end.
function robustEnd(lists) {
  const ends = lists.map((list) => Math.max(0, ...known(list))), usual = 4 * quantile(ends, 0.5);
  if (ends.length < 3 || Math.max(...ends) <= usual) return null;
  return [0, 1.1 * Math.max(...ends.filter((end) => end <= usual))];
}

// The axis of accuracies: all values and a little room, two points on either side if all are equal. No accuracy lies outside 0 to
// 1, so beyond these there is only what a line or a mark at the edge needs.
function accuracyRange(lists) {
  const values = known(lists.flat());
  if (!values.length) return null;
  const low = Math.min(...values), high = Math.max(...values);
  return withinAccuracy([low, high], 0.06 * (high - low) || 0.02);
}

function withinAccuracy([low, high], room = 0) {
  const bottom = Math.max(0, low - room), top = Math.min(1, high + room), edge = 0.02 * (top - bottom);
  return [bottom === 0 ? -edge : bottom, top === 1 ? 1 + edge : top];
}

function outside(range, list) {
  return range !== null && known(list).some((v) => v < range[0] || v > range[1]);
}
