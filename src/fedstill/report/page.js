// The page: the table, the switches, the notes; it hands figures to Plotly and keeps its state when the data grow.
(async function () {
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
      figure.layout.showlegend = true;  // the switches that name the colours are a sheet away
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

  // The same values as a table, for those who cannot hover or want to copy.
  function fillNumbers(details, div) {
    details.querySelector(".scroll")?.remove();
    if (!details.open) return;
    const traces = div.data.filter((trace) => !trace.band);
    let head, rows;
    if (traces[0]?.type === "heatmap") {
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

  function options(id, choices) {
    const select = $(id), before = state.choices[id];
    const values = choices.map(([value]) => value);
    const present = [...select.options].map((option) => option.value);
    if (present.join("\n") !== values.join("\n")) {
      select.replaceChildren(...choices.map(([value, text]) => element("option", { value }, text)));
    }
    select.value = values.includes(before) ? before : values[0];
    select.closest("label").hidden = choices.length < 2;
    return select.value;
  }

  // ---- sections --------------------------------------------------------------------------------------------------

  function drawCurves() {
    const names = (field) => [...new Set(data.runs.flatMap((run) => Object.keys(run[field])))];
    const domains = names("domains");
    const chosen = options("curves-y", [
      ["accuracy", "accuracy, mean over domains"],
      ...(domains.length > 1 ? domains.map((d) => [`domains/${d}`, `accuracy on ${d}`]) : []),
      ...names("prototypes").map((p) => [`prototypes/${p}`, `accuracy of ${p}`]),
    ]);
    const [field, ...rest] = chosen.split("/"), name = rest.join("/");
    const series = field === "accuracy" ? (run) => run.accuracy : (run) => run[field][name];
    $("curves-seeds").closest("label").hidden = data.methods.every((method) => method.runs.length < 2);
    if (!show("curves", data.runs.some((run) => known(run.accuracy).length))) return;
    draw($("chart-curves"), "learning curves", curves(data, on, colours(), {
      series, unit: $("curves-x").value, seeds: $("curves-seeds").checked, axis: PERCENT, title: "accuracy",
    }));
  }

  function drawLosses() {
    const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.losses)))];
    if (!show("losses", names.length)) return;
    const chosen = options("losses-name", names.map((name) => [name, name]));
    draw(
      $("chart-losses"), "losses",
      curves(
        data, on, colours(),
        { series: (run) => run.losses[chosen], unit: "round", seeds: false, axis: {}, title: chosen },
      ),
    );
  }

  function verdict(all) {
    const worse = all.filter((g) => g < 0).length, middle = mean(all);
    const rounds = `${all.length} ${all.length === 1 ? "round" : "rounds"}`;
    const average = `${middle >= 0 ? "+" : "−"}${Math.abs(middle).toFixed(2)} points a round on average`;
    const text = `${average}; worse after distillation in ${worse} of ${rounds}.`;
    return element("p", { class: worse > all.length / 2 ? "verdict harm" : "verdict" }, text);
  }

  function drawDistillation() {
    const box = $("distillation-facets");
    const all = data.methods.map((method, place) => ({
      method, place, gained: gains(method.runs.map((r) => data.runs[r])),
    }));
    const having = all.filter(({ gained }) => gained.length);
    if (!show("distillation", having.length)) return;
    const without = all.filter(({ gained }) => !gained.length).map(({ method }) => method)
      .filter((method) => method.runs.some((r) => data.runs[r].round.length)).map((method) => method.label);
    $("distillation-none").textContent = without.length ? `Nothing is distilled in ${without.join(", ")}.` : "";
    const values = known(having.flatMap(({ method }) => method.runs.flatMap((r) => [
      data.runs[r].accuracy, data.runs[r].merged, data.runs[r].ensemble,
    ].filter(Boolean).flat())));
    const low = Math.min(...values), high = Math.max(...values), room = 0.04 * (high - low || 0.1);
    const wanted = having.filter(({ place }) => on(place)).map(({ method }) => method.label);
    for (const figure of [...box.children]) {
      if (wanted.includes(figure.dataset.method)) continue;
      Plotly.purge(figure.querySelector(".chart"));
      figure.remove();
    }
    // All places first: a chart takes the width that its place has when it is drawn.
    const figures = having.filter(({ place }) => on(place)).map(({ method, place, gained }, i) => {
      let figure = [...box.children].find((f) => f.dataset.method === method.label);
      if (!figure) {
        figure = element(
          "figure", { "data-method": method.label }, element("h3", {}, method.label), element("p"),
          element("div", { class: "chart" }),
        );
        box.insertBefore(figure, box.children[i] || null);
      }
      figure.children[1].replaceWith(verdict(gained));
      return { div: figure.querySelector(".chart"), method, place };
    });
    for (const { div, method, place } of figures) {
      draw(
        div, `before and after distillation, ${method.label}`,
        distillation(data, place, colours(), [low - room, high + room]),
      );
    }
  }

  function drawAccuracyBars() {
    const names = (field) => [...new Set(data.methods.flatMap((method) => Object.keys(method[field])))];
    for (const field of ["domains", "prototypes"]) {
      if (!show(field, names(field).length)) continue;
      draw(
        $(`chart-${field}`), `accuracy by ${field.slice(0, -1)}`,
        groupedBars(data, on, colours(), names(field), (method, name) => method[field][name]),
      );
    }
  }

  function drawTargets() {
    const reached = data.targets.map((_, i) => data.methods.some((method) => method.roundsTo[i]));
    show("targets", data.targets.length);
    show("targets-charts", reached.some(Boolean));
    show("targets-none", !reached.some(Boolean));
    show("target-choice", reached.some(Boolean));
    if (!reached.some(Boolean)) return;
    // The highest that any method reached tells most: it comes first.
    const order = data.targets.map((_, i) => i).filter((i) => reached[i]).reverse();
    const percent = (t) => `${Number((100 * data.targets[t]).toFixed(4))} %`;
    const i = Number(options("target", order.map((t) => [String(t), percent(t)])));
    const rounds = { digits: (s) => (Number.isInteger(s.mean) ? 0 : 1), unit: "rounds" };
    const megabytes = {
      scale: 1e-6, digits: (s) => (s.mean >= 1e8 ? 0 : s.mean >= 1e6 ? 1 : 3), unit: "megabytes",
    };
    draw($("chart-rounds-to"), "rounds to target", targetBars(data, on, colours(), (m) => m.roundsTo[i], rounds));
    draw($("chart-bytes-to"), "megabytes to target", targetBars(data, on, colours(), (m) => m.bytesTo[i], megabytes));
  }

  function drawCost() {
    const total = (list) => (list ? known(list).reduce((a, b) => a + b, 0) : null);
    const phases = [...new Set(data.runs.flatMap((run) => Object.keys(run.seconds)))];
    const traffic = data.runs.some((run) => run.down || run.up);
    if (!show("cost", phases.length || traffic)) return;
    $("chart-seconds").parentElement.hidden = !phases.length;
    $("chart-bytes").parentElement.hidden = !traffic;
    if (phases.length) {
      const seconds = (run, phase) => total(run.seconds[phase]);
      draw($("chart-seconds"), "seconds by phase", stackedBars(data, on, colours(), phases, seconds, "seconds"));
    }
    if (traffic) {
      const megabytes = (run, way) => (run[way] ? total(run[way]) / 1e6 : null);
      const bars = stackedBars(data, on, colours(), ["down", "up"], megabytes, "megabytes");
      draw($("chart-bytes"), "megabytes by direction", bars);
    }
  }

  function drawPartition() {
    if (!show("partition", data.partitions.length)) return;
    const name = (p) => (p.runs.length > 1 ? `${p.runs[0]} and ${p.runs.length - 1} more` : p.runs[0]);
    const chosen = data.partitions[Number(options(
      "partition-run", data.partitions.map((p, i) => [String(i), name(p)]),
    ))];
    const cut = chosen.of > chosen.clients.length;
    const note = `The first ${chosen.clients.length} of ${chosen.of} clients are shown.`;
    $("partition-note").textContent = cut ? note : "";
    draw($("chart-partition"), "who holds what", bubbles(chosen, colours()));
  }

  function drawWeights() {
    const having = data.runs.map((run, place) => ({ run, place }))
      .filter(({ run }) => Object.keys(run.courses).length || run.weightsByDomain.mean);
    if (!show("weights", having.length)) return;
    const run = data.runs[Number(options("weights-run", having.map(({ run: r, place }) => [String(place), r.name])))];
    const tables = run.weightsByDomain, courses = Object.keys(run.courses);
    $("heatmap-figure").hidden = !tables.mean;
    $("weights-when").closest("label").hidden = !tables.mean;
    $("course-figure").hidden = !courses.length;
    $("weights-note").textContent = run.coursesNote;
    if (tables.mean) {
      const figure = heatmap(tables[$("weights-when").value], colours());
      draw($("chart-heatmap"), "weight by pool domain and client", figure);
    }
    const of = options("weights-of", courses.map((name) => [name, name]));
    if (courses.length) draw($("chart-course"), `${of} over the rounds`, course(run, of, colours()));
  }

  function drawImages() {
    if (!show("images", data.images.length)) return;
    $("images-note").textContent = data.imagesNote;
    $("gallery").replaceChildren(...data.images.map((image) => element(
      "figure", {}, element("img", { src: image.src, alt: image.caption, class: image.kind }),
      element("figcaption", {}, image.caption),
    )));
  }

  function drawDropped() {
    const groups = new Map();
    for (const run of data.runs) {
      for (const { round, client, reason } of run.dropped) {
        const key = JSON.stringify([run.name, client, reason]);
        if (!groups.has(key)) groups.set(key, []);
        groups.get(key).push(round);
      }
    }
    show("dropped", data.runs.some((run) => run.round.length));
    const reasons = new Map();
    for (const [key, rounds] of groups) {
      const reason = JSON.parse(key)[2];
      reasons.set(reason, (reasons.get(reason) || 0) + rounds.length);
    }
    const lead = [...reasons].map(([reason, times]) => `${times} × ${reason}`).join("; ");
    $("dropped-lead").textContent = `${lead || "Every reply that came was used"}.`;
    const head = ["run", "client", "reason", "times", "rounds"].map((h) => element(
      "th", { class: "plain", scope: "col" }, h,
    ));
    const rows = [...groups].map(([key, rounds]) => element(
      "tr", {},
      ...[
        ...JSON.parse(key), String(rounds.length), rounds.slice(0, 40).join(", ") + (rounds.length > 40 ? ", …" : ""),
      ].map((v) => element("td", {}, v)),
    ));
    $("dropped-table").replaceChildren(...(rows.length ? [
      element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows),
    ] : []));
  }

  function drawRepeat() {
    const open = new Set([...document.querySelectorAll("details.run[open]")].map((d) => d.dataset.run));
    $("repeat-runs").replaceChildren(...data.runs.map((run) => {
      const versions = Object.entries(run.versions).map(([name, version]) => `${name} ${version}`).join(", ");
      const box = element("details", { class: "run", "data-run": run.name }, element("summary", {}, run.name),
        element("pre", { class: "command" }, run.command),
        element("p", { class: "aside" }, versions ? `Ran with ${versions}. ` : "", `From ${run.folder}.`));
      if (run.config) {
        box.append(
          element(
            "button", { type: "button", onclick: () => copy(run.config, "the configuration") },
            "Copy the configuration",
          ),
          element("pre", {}, run.config),
        );
      } else box.append(element("p", {}, "The configuration is missing."));
      box.open = open.has(run.name);
      return box;
    }));
  }

  // ---- the table -------------------------------------------------------------------------------------------------

  function tableOrder() {
    const rows = data.table.rows.map((row, place) => ({ row, place }));
    if (!state.sort) return rows;
    const { column, down } = state.sort, c = data.table.columns.findIndex((k) => k.title === column);
    const own = { method: (row) => row.label, seeds: (row) => row.seeds }[column];
    const value = ({ row }) => (own ? own(row) : row.cells[c]?.value ?? null);
    return rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);  // what is missing comes last either way
      const ascending = typeof x === "string" ? x.localeCompare(y) : x - y;
      return (down ? -ascending : ascending) || a.place - b.place;
    });
  }

  function drawTable() {
    const sortBy = (column, better) => () => {
      const first = better === "high";
      state.sort = { column, down: state.sort?.column === column ? !state.sort.down : first };
      drawTable();
      [...document.querySelectorAll("#table th button")].find((b) => b.dataset.column === column)?.focus();
    };
    const sorted = (title) => (state.sort?.column !== title ? "none" : state.sort.down ? "descending" : "ascending");
    const heading = (title, better) => element("th", { scope: "col", "aria-sort": sorted(title) },
      element("button", { type: "button", "data-column": title, onclick: sortBy(title, better) }, title));
    $("table").replaceChildren(
      element(
        "thead", {},
        element(
          "tr", {}, heading("method"), ...data.table.columns.map((c) => heading(c.title, c.better)),
          heading("seeds", "high"),
        ),
      ),
      element("tbody", {}, ...tableOrder().map(({ row, place }) => element("tr", { class: on(place) ? "" : "off" },
        element(
          "th", { scope: "row" },
          element(
            "div", {}, element("span", { class: "swatch", style: `background:${look(place).colour}` }),
            element("span", {}, row.label),
          ),
        ),
        ...row.cells.map((cell) => element("td", { class: cell.best ? "best" : "" }, cell.text)),
        element("td", {}, String(row.seeds) + (row.unfinished ? ` (${row.unfinished} unfinished)` : ""))))),
    );
  }

  function drawAccuracyOf() {
    const told = data.methods.filter((method) => method.accuracyOf);
    $("accuracy-of").textContent = told.map((m) => `The accuracy of ${m.label} is that of ${m.accuracyOf}.`).join(" ");
  }

  function tableAs(form) {
    const { head, foot } = data.table[form];
    return [...head, ...tableOrder().map(({ row }) => row[form]), ...foot].join("\n") + "\n";
  }

  async function copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Some browsers refuse the clipboard to a page from disk; the old way still works there.
      const area = element("textarea", { "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    $("copied").textContent = `Copied ${what}.`;
    setTimeout(() => ($("copied").textContent = ""), 4000);
  }

  // ---- head, switches, notes -------------------------------------------------------------------------------------

  function drawHead() {
    document.title = data.title;
    $("title").textContent = data.title;
    $("version").textContent = data.version;
    $("made").textContent = data.made;
    const column = data.table.columns.findIndex((c) => c.title === "accuracy %");
    const cells = column < 0 ? [] : data.table.rows.map((row) => ({ label: row.label, ...row.cells[column] }));
    const ranked = cells.filter((cell) => cell.value !== null).sort((a, b) => b.value - a.value);
    const rounds = Math.max(0, ...data.runs.map((run) => run.round.length));
    const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
    let best = "no accuracy recorded yet";
    if (ranked.length === 1) best = `accuracy ${ranked[0].text} %`;
    if (ranked.length > 1) best = `${ranked[0].label} is ahead with ${ranked[0].text} % accuracy`;
    const size = `${plural(data.methods.length, "method")}, ${plural(data.runs.length, "run")}`;
    $("lead").textContent = `${size}, up to ${plural(rounds, "round")}: ${best}.`;
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
    for (const part of [
      drawHead, drawProblems, drawSwitches, drawTable, drawAccuracyOf, drawCurves, drawDistillation, drawTargets,
      drawAccuracyBars, drawCost,
      drawPartition, drawWeights, drawLosses, drawImages, drawDropped, drawRepeat, drawContents,
    ]) part();
  }

  // ---- following a run -------------------------------------------------------------------------------------------

  async function follow() {
    let stamp = null;
    $("live").hidden = false;
    for (;;) {
      try {
        const answer = await fetch(
          "data.json", { headers: stamp ? { "If-None-Match": stamp } : {}, cache: "no-store" },
        );
        if (answer.status === 200) {
          stamp = answer.headers.get("ETag");
          data = await answer.json();
          drawAll();
        }
        const done = data.runs.length > 0 && data.runs.every((run) => run.finished);
        const far = (run) => `${run.name}: round ${run.round.at(-1) ?? 0}${run.planned ? ` of ${run.planned}` : ""}`;
        $("live").textContent = `${done ? "Finished" : "Following"}; ${data.runs.map(far).join("; ") || "no run yet"}.`;
      } catch {
        $("live").textContent = "The server has stopped; the page shows what it knew last.";
      }
      await new Promise((wake) => setTimeout(wake, 2000));
    }
  }

  try {
    await unpackPlotly();
  } catch (error) {
    $("trouble").hidden = false;
    $("trouble").textContent = `This browser cannot unpack the charts (${error}); the tables below are complete.`;
    for (const part of [drawHead, drawProblems, drawTable, drawDropped, drawRepeat]) part();
    return;
  }
  for (const id of [
    "curves-y", "curves-x", "curves-seeds", "partition-run", "weights-run", "weights-when", "weights-of", "target",
    "losses-name",
  ]) {
    $(id).addEventListener("change", (event) => { state.choices[id] = event.target.value; drawAll(); });
  }
  $("copy-markdown").addEventListener("click", () => copy(tableAs("markdown"), "as Markdown"));
  $("copy-latex").addEventListener("click", () => copy(tableAs("latex"), "as LaTeX"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  for (const [moment, printing] of [["beforeprint", true], ["afterprint", false]]) {
    // On paper the charts are light and as wide as the sheet.
    addEventListener(moment, () => { document.documentElement.classList.toggle("printing", printing); drawAll(); });
  }
  drawAll();
  document.documentElement.dataset.drawn = "yes";
  if (data.live) follow();
})();
