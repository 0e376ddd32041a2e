// Sections on the inside of a system: distillation, the judge's choice, the clients' weights, confusion matrices.

function drawDistillation() {
  const all = data.methods.map((method, place) => ({ method, place, runs: method.runs.map((r) => data.runs[r]) }));
  const having = all.filter(({ method }) => method.distilled);
  if (!show("distillation", having.length)) return;
  const without = all.filter(({ method, runs }) => !method.distilled && runs.some((run) => run.round.length));
  const names = without.map(({ method }) => method.label).join(", ");
  $("distillation-none").textContent = names ? `These systems do not distil: ${names}.` : "";
  show("distillation-harm", having.some(({ method }) => method.distilled.harm));
  $("distillation-judged").hidden = !having.some(({ runs }) => runs.some((run) => run.line?.scored));
  const told = (run) => [run.accuracy, run.merged, run.ensemble].filter(Boolean).flat();
  const methods = having.map(({ runs }) => [runs.flatMap(told)]);
  const values = known(methods.flat(2)), low = Math.min(...values), high = Math.max(...values);
  const room = 0.04 * (high - low || 0.1), robust = robustRange(methods);
  const range = robust === null || $("distillation-full").checked ? [low - room, high + room] : robust;
  const beyond = having.filter(({ runs }) => runs.some((run) => outside(robust, told(run))));
  fullRange("distillation", robust !== null, beyond.map(({ method }) => method.label));
  facets($("distillation-facets"), having.filter(({ place }) => on(place)).map(({ method, place }) => ({
    key: method.label, title: method.label, ...method.distilled, label: `before and after distillation, ${method.label}`,
    figure: () => distillation(data, place, colours(), [...range]),
  })));
}

const JUDGES = {
  clients: "Judged by the clients, on data that each holds out", server: "Judged by the server, on its labelled data",
  pool: "Judged by agreement with the ensemble, on samples held out of the pool", none: "Not judged",
};

function drawLine() {
  const having = data.methods.map((method, place) => ({ method, place }))
    .filter(({ method }) => method.runs.some((r) => data.runs[r].line));
  if (!show("line", having.length)) return;
  const place = Number(options("line-method", having.map(({ method, place: p }) => [String(p), method.label])));
  const runs = data.methods[place].runs.map((r) => data.runs[r]).filter((run) => run.line);
  facets($("line-facets"), runs.flatMap((run) => Object.keys(run.line.prototypes).map((name, _, all) => {
    const { delivered, carried } = run.line.prototypes[name], taken = known(delivered);
    const average = taken.filter((t) => t === 0).length, student = taken.filter((t) => t === 1).length;
    const title = all.length > 1 ? `${run.name}, ${name}` : run.name;
    const who = JUDGES[run.line.judge] ?? `Judged by '${run.line.judge}'`;
    const early = run.line.early ? ` An early state of the student was delivered ${run.line.early} times instead.` : "";
    const means = known(run.line.prototypes[name].averaged).length;
    const averaged = means ? ` In ${means} more, a point averaged with the rounds before was delivered.` : "";
    const unjudged = run.line.unjudged ? `${run.line.unjudged} ` : "";
    const faults = run.line.faults ? ` ${run.line.faults} verdicts could not be used.` : "";
    return {
      key: title, title, harm: false, label: `the point taken in each round, ${title}`,
      text: `${who}. ${unjudged}Delivered: t = ${fixed(mean(taken) ?? 0, 2)} on average, the average itself in ${average} and the `
        + `student in ${student} of ${taken.length} rounds.${averaged} Carried on: t = ${fixed(mean(known(carried)) ?? 0, 2)}.`
        + `${early}${faults}`,
      figure: () => judgedLine(run.line, name, colours()),
    };
  })));
}

function drawWeights() {
  const having = data.runs.map((run, place) => ({ run, place }))
    .filter(({ run }) => Object.keys(run.courses).length || run.weightsByDomain.mean);
  if (!show("weights", having.length)) return;
  // First choice: a system that weights clients differently.
  const telling = having.find(({ run }) => run.weighs && run.weightsByDomain.mean) ?? having.find(({ run }) => run.weighs);
  const choices = having.map(({ run, place }) => [String(place), run.name]);
  const run = data.runs[Number(options("weights-run", choices, String((telling ?? having[0]).place)))];
  const tables = run.weightsByDomain, courses = Object.keys(run.courses);
  $("heatmap-figure").hidden = !tables.mean;
  $("weights-when").closest("label").hidden = !tables.mean;
  $("course-figure").hidden = !courses.length;
  const alike = run.weighs ? "" : "Every client counts the same in this run. ";
  $("weights-note").textContent = alike + run.coursesNote;
  if (tables.mean) {
    const figure = heatmap(tables[$("weights-when").value], colours());
    draw($("chart-heatmap"), "weight by pool domain and client", figure);
  }
  const of = options("weights-of", courses.map((name) => [name, name]));
  if (courses.length) draw($("chart-course"), `${of} over the rounds`, course(run, of, colours()));
}

function drawConfusion() {
  if (!show("confusion", data.confusions.length || data.confusionsNote)) return;
  $("confusion-note").textContent = data.confusionsNote;
  if (!data.confusions.length) return;
  const label = (found) => data.methods[found.method].label;
  const leads = data.confusions.findIndex((found) => label(found) === data.verdict.leader);
  const chosen = data.confusions[Number(options(
    "confusion-method", data.confusions.map((found, i) => [String(i), label(found)]), String(Math.max(leads, 0)),
  ))];
  const { classes, domains } = chosen;
  const worst = Object.fromEntries(Object.entries(domains).map(([name, table]) => [name, worstConfusion(table, classes)]));
  const most = Math.max(0, ...Object.values(worst).map((w) => w?.share ?? 0));
  $("confusion-lead").textContent = chosen.seeds > 1 ? ` Summed over ${chosen.seeds} seeds.` : "";
  facets($("confusion-facets"), Object.entries(domains).map(([name, table]) => {
    const all = table.flat().reduce((a, b) => a + b, 0), right = table.reduce((sum, row, i) => sum + row[i], 0);
    const w = worst[name];
    return {
      key: name, title: name, harm: false, label: `confusion matrix on ${name}, ${label(chosen)}`,
      text: `${all ? fixed((100 * right) / all, 1) : 0} % correct`
        + (w ? `; most frequent error: ${w.truth} predicted as ${w.said} (${w.n} of ${w.total}).` : "."),
      figure: () => confusionMap(table, classes, most, colours()),
    };
  }));
}
