// Sections that compare systems, and the other files of runs.

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
  const figure = curves(data, on, colours(), {
    series, unit: $("curves-x").value, seeds: $("curves-seeds").checked, axis: PERCENT, title: "accuracy",
    full: $("curves-full").checked,
  });
  fullRange("curves", figure.cut, figure.beyond);
  draw($("chart-curves"), "learning curves", figure);
}

function drawLosses() {
  const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.losses)))];
  if (!show("losses", names.length)) return;
  const chosen = options("losses-name", names.map((name) => [name, name]));
  const figure = curves(data, on, colours(), {
    series: (run) => run.losses[chosen], unit: "round", seeds: false, axis: {}, title: chosen,
    full: $("losses-full").checked,
  });
  fullRange("losses", figure.cut, figure.beyond);
  draw($("chart-losses"), "losses", figure);
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
  // The highest target that any method reached is the most informative: it comes first.
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
  draw($("chart-partition"), "samples by client and class", bubbles(chosen, colours()));
}

function drawCoverage() {
  show("coverage", data.coverages || data.featureMaps.length);
  show("coverage-words", data.coverages);
  $("coverage-table").parentElement.hidden = !data.coverages;
  if (!data.coverages) return;
  const { methods, clients, mean: all, note } = data.coverages;
  const domains = clients.some(({ domain }) => domain);
  const row = (cells, tag = "td") => element("tr", {}, ...cells.map((cell) => element(tag, {}, cell)));
  const head = ["client", ...(domains ? ["domain"] : []), ...methods];
  $("coverage-table").replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((h) => element("th", { class: "plain", scope: "col" }, h)))),
    element("tbody", {}, ...clients.map(({ id, domain, cells }) => row([id, ...(domains ? [domain] : []), ...cells])),
      row(["mean", ...(domains ? [""] : []), ...all], "th")),
  );
  $("coverage-note").textContent = note;
}

function drawFeatures() {
  if (!show("features-box", data.featureMaps.length)) return;
  $("features-note").textContent = data.featureMapsNote;
  const chosen = data.featureMaps[Number(options(
    "features-method", data.featureMaps.map((found, i) => [String(i), data.methods[found.method].label]),
  ))];
  const seed = data.methods[chosen.method].runs.length > 1 && chosen.seed !== null ? `, seed ${chosen.seed}` : "";
  $("features-explained").textContent = ` (${fixed(100 * chosen.explained, 0)} % of their variance${seed})`;
  draw($("chart-features"), "real and virtual features by domain", featureMap(chosen.domains, colours()));
}

function drawImages() {
  if (!show("images", data.images.length)) return;
  $("images-note").textContent = data.imagesNote;
  $("images-decided").textContent = data.images.some((image) => image.kind === "sample") ? data.imagesDecided : "";
  $("gallery").replaceChildren(...data.images.map((image) => element(
    "figure", {}, element("img", { src: image.src, alt: image.caption, class: image.kind }),
    element("figcaption", {}, image.caption + (image.noted ? ` (${image.noted})` : "")),
    ...(image.wrong ? [element("p", { class: "told wrong" }, `${image.wrong[0].toUpperCase()}${image.wrong.slice(1)}.`)] : []),
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
  $("dropped-lead").textContent = `${lead || "Every reply was used"}.`;
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
