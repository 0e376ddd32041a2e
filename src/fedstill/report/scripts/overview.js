// The head of the page, the verdict, and the list of sections.

// ---- head, switches, notes -------------------------------------------------------------------------------------

function drawHead() {
  document.title = data.title;
  $("title").textContent = data.title;
  $("version").textContent = data.version;
  $("made").textContent = data.made;
  const column = data.table.columns.findIndex((c) => c.title === "accuracy %");
  const cells = column < 0 ? [] : data.table.rows.map((row) => row.cells[column]).filter((cell) => cell.value !== null);
  const rounds = Math.max(0, ...data.runs.map((run) => run.round.length));
  const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
  const size = `${plural(data.methods.length, "method")}, ${plural(data.runs.length, "run")}, up to ${plural(rounds, "round")}`;
  const alone = data.methods.length === 1 && cells.length ? `: accuracy ${cells[0].text} %` : "";
  $("lead").textContent = `${size}${cells.length ? alone : ": no accuracy recorded yet"}.`;
}

// Which system to take; verdict.py has the rule and makes the text.
function drawVerdict() {
  const { kind, headline, sure, cost, why, leader, differences } = data.verdict;
  if (!show("verdict", headline)) return;
  $("verdict").dataset.kind = kind;
  $("verdict-headline").textContent = headline;
  for (const [name, text] of Object.entries({ sure, cost, why })) {
    show(`verdict-${name}`, text);
    $(`verdict-${name}`).textContent = text;
  }
  if (show("verdict-figure", differences.length && typeof Plotly !== "undefined")) {
    $("verdict-caption").textContent = `Points by which ${leader} is ahead, with 95 % intervals`;
    draw($("chart-verdict"), "how far the leader is ahead of each other system", forest(data.verdict, colours()));
  }
}

function drawProblems() {
  const told = data.runs.filter((run) => run.problems.length);
  show("problems", told.length);
  $("problem-list").replaceChildren(...told.map((run) => element(
    "li", {}, element("span", { class: "where" }, `${run.name}: `), run.problems.join("; "),
  )));
}

function sample(place) {
  const { colour, dash } = look(place);
  const dashes = { solid: "", dash: "6 3", dot: "2 3", dashdot: "6 3 2 3", longdash: "9 4" }[dash];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", "26");
  svg.setAttribute("height", "10");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of Object.entries({
    x1: 0, x2: 26, y1: 5, y2: 5, stroke: colour, "stroke-width": 4, "stroke-dasharray": dashes,
  })) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

function drawSwitches() {
  const focused = document.activeElement?.dataset?.method;
  $("methods").hidden = data.methods.length < 2;
  $("methods").replaceChildren(...data.methods.map((method, place) => element("button", {
    type: "button", class: "chip", "aria-pressed": String(on(place)), "data-method": method.label,
    onclick: () => { state.off[on(place) ? "add" : "delete"](method.label); drawAll(); },
  }, sample(place), method.label)));
  if (focused === undefined) return;
  [...$("methods").children].find((b) => b.dataset.method === focused)?.focus({ preventScroll: true });
}

function drawContents() {
  const sections = [...document.querySelectorAll("main > section")];
  const title = (section) => section.querySelector("h2").textContent;
  const present = sections.filter((s) => !s.hidden);
  $("contents").replaceChildren(...present.map((s) => element("a", { href: `#${s.id}` }, title(s))));
  const absent = sections.filter((s) => s.hidden).map((s) => title(s).toLowerCase());
  $("absent").textContent = absent.length ? `Not recorded in these runs: ${absent.join(", ")}.` : "";
}

function drawAll() {
  usePalette(colours().scheme);
  for (const part of [
    drawHead, drawVerdict, drawProblems, drawSwitches, drawTable, drawAccuracyOf, drawPrivacy, drawCurves, drawDistillation,
    drawLine, drawTargets, drawAccuracyBars, drawConfusion, drawCost, drawPartition, drawWeights, drawCoverage, drawFeatures,
    drawLosses, drawImages, drawDropped, drawRepeat, drawContents,
  ]) part();
}
