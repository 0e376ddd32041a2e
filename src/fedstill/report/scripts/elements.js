// The page's own tools: elements, charts that the keyboard can read, choices that survive new data.

const $ = (id) => document.getElementById(id);
let data = JSON.parse($("data").textContent);
const state = { off: new Set(), sort: null, choices: {} };

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

async function unpackPlotly() {
  const packed = Uint8Array.from(atob($("plotly").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = element("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  $("plotly").remove();
}

const on = (place) => !state.off.has(data.methods[place].label);
const colours = () => theme(getComputedStyle(document.documentElement));

// ---- figures ---------------------------------------------------------------------------------------------------

const CONFIG = {
  displaylogo: false, responsive: true, toImageButtonOptions: { format: "svg" },
  // A list of our own: the library's has a button that would upload the chart.
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

function draw(div, label, figure) {
  div.style.height = `${figure.height}px`;
  const printing = document.documentElement.classList.contains("printing");
  div.style.minWidth = figure.minWidth > div.parentElement.clientWidth && !printing ? `${figure.minWidth}px` : "";
  div.setAttribute("role", "group");
  div.setAttribute("aria-label", `Chart: ${label}. Arrow keys read its values.`);
  div.tabIndex = 0;
  figure.layout.height = figure.height;
  if (printing) {
    figure.layout.width = div.closest(".pair, .facets") ? 330 : 680;
    figure.layout.showlegend = true;  // the switches that name the colours are on another sheet
  }
  // A narrow screen has no room for the buttons over the chart.
  Plotly.react(div, figure.traces, figure.layout, { ...CONFIG, displayModeBar: innerWidth >= 640 });
  if (!div.dataset.ready) {
    div.dataset.ready = "yes";
    div.addEventListener("keydown", stepThrough);
    const numbers = element("details", { class: "numbers" }, element("summary", {}, "The numbers"));
    numbers.addEventListener("toggle", () => fillNumbers(numbers, div));
    div.after(numbers);
  }
  div.numbers = figure.numbers;
  const numbers = div.nextElementSibling;
  if (numbers.open) fillNumbers(numbers, div);
}

// Arrow keys walk along the points of a chart as the mouse would.
function stepThrough(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const div = event.currentTarget;
  const readable = div.data.map((trace, place) => ({ trace, place }))
    .filter(({ trace }) => !trace.band && trace.type !== "heatmap" && trace.y.length);
  if (!readable.length) return;
  const unified = div.layout.hovermode === "x unified";
  const together = (i) => readable.filter(({ trace }) => i < trace.y.length)
    .map(({ place }) => ({ curveNumber: place, pointNumber: i }));
  const points = unified
    ? readable[0].trace.x.map((_, i) => together(i))
    : readable.flatMap(({ trace, place }) => trace.y.map((_, i) => [{ curveNumber: place, pointNumber: i }]));
  const at = Math.min(
    Math.max((Number(div.dataset.at ?? (step > 0 ? -1 : points.length))) + step, 0), points.length - 1,
  );
  div.dataset.at = at;
  const cartesian = div._fullLayout._plots ? Object.keys(div._fullLayout._plots)[0] : "xy";
  Plotly.Fx.hover(div, points[at], unified ? cartesian : undefined);
}

function short(value) {
  if (value === null || value === undefined || value === "") return "";
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value);
}

// The same values as a table, for readers who cannot hover or want to copy.
function fillNumbers(details, div) {
  details.querySelector(".scroll")?.remove();
  if (!details.open) return;
  const traces = div.data.filter((trace) => !trace.band);
  let head, rows;
  if (div.numbers) ({ head, rows } = div.numbers);
  else if (traces[0]?.type === "heatmap") {
    head = ["", ...traces[0].x];
    rows = traces[0].y.map((name, i) => [name, ...traces[0].z[i]]);
  } else if (traces[0]?.marker?.sizemode) {
    head = ["client", "class", "samples"];
    rows = traces.flatMap((trace) => trace.x.map((x, i) => [x, trace.y[i], trace.text[i]]));
  } else {
    const flat = traces[0]?.orientation === "h";
    const along = (trace) => (flat ? trace.y : trace.x), values = (trace) => (flat ? trace.x : trace.y);
    const places = [...new Set(traces.flatMap(along))];
    if (places.every((p) => typeof p === "number")) places.sort((a, b) => a - b);
    head = [
      div.layout.xaxis.title?.text && !flat ? div.layout.xaxis.title.text : "", ...traces.map((trace) => trace.name),
    ];
    const found = traces.map((trace) => new Map(along(trace).map((p, i) => [p, values(trace)[i]])));
    rows = places.map((p) => [p, ...found.map((of) => of.get(p))]);
  }
  details.append(element("div", { class: "scroll", tabindex: "0" }, element("table", {},
    element(
      "thead", {}, element("tr", {}, ...head.map((h) => element("th", { class: "plain", scope: "col" }, short(h)))),
    ),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((v) => element("td", {}, short(v)))))))));
}

function show(id, visible) {
  $(id).hidden = !visible;
  return visible;
}

// Fills a choice and returns the value: the previous one, otherwise `first`, otherwise the first option.
function options(id, choices, first = undefined) {
  const select = $(id), before = state.choices[id];
  const values = choices.map(([value]) => value);
  const present = [...select.options].map((option) => option.value);
  if (present.join("\n") !== values.join("\n")) {
    select.replaceChildren(...choices.map(([value, text]) => element("option", { value }, text)));
  }
  select.value = values.includes(before) ? before : first ?? values[0];
  select.closest("label").hidden = choices.length < 2;
  return select.value;
}

// A box with one chart for each of `{ key, title, text, harm, label, figure }`. Places come first: a chart takes the width that
// its place has when it is drawn.
function facets(box, wanted) {
  for (const place of [...box.children]) {
    if (wanted.some(({ key }) => key === place.dataset.key)) continue;
    Plotly.purge(place.querySelector(".chart"));
    place.remove();
  }
  const places = wanted.map(({ key, title, text, harm }, i) => {
    let place = [...box.children].find((f) => f.dataset.key === key);
    if (!place) {
      place = element(
        "figure", { "data-key": key }, element("h3", {}, title), element("p"), element("div", { class: "chart" }),
      );
      box.insertBefore(place, box.children[i] || null);
    }
    place.children[1].replaceWith(element("p", { class: harm ? "told harm" : "told" }, text));
    return place.querySelector(".chart");
  });
  wanted.forEach(({ label, figure }, i) => draw(places[i], label, figure()));
}

// The switch to the full axis is shown if something lies outside the visible range.
function fullRange(name, cut, beyond) {
  $(`${name}-full`).closest("label").hidden = !cut;
  const told = cut && !$(`${name}-full`).checked && beyond.length;
  $(`${name}-beyond`).textContent = told ? `Partly or entirely outside the range shown: ${beyond.join(", ")}.` : "";
}
