// Start the page: draw it, listen to its controls, and follow unfinished runs.

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
      $("live").textContent = "The server has stopped; the page shows the last data.";
    }
    await new Promise((wake) => setTimeout(wake, 2000));
  }
}

async function start() {
  try {
    await unpackPlotly();
  } catch (error) {
    $("trouble").hidden = false;
    $("trouble").textContent = `This browser cannot unpack the charts (${error}); the tables below are complete.`;
    for (const part of [drawHead, drawVerdict, drawProblems, drawTable, drawCoverage, drawDropped, drawRepeat]) part();
    return;
  }
  for (const id of [
    "curves-y", "curves-x", "curves-seeds", "curves-full", "distillation-full", "line-method", "confusion-method",
    "partition-run", "weights-run", "weights-when", "weights-of", "target", "features-method", "losses-name",
    "losses-full",
  ]) {
    $(id).addEventListener("change", (event) => { state.choices[id] = event.target.value; drawAll(); });
  }
  $("copy-markdown").addEventListener("click", () => copy(tableAs("markdown"), "as Markdown"));
  $("copy-latex").addEventListener("click", () => copy(tableAs("latex"), "as LaTeX"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  for (const [moment, printing] of [["beforeprint", true], ["afterprint", false]]) {
    // In print the charts are light and as wide as the sheet.
    addEventListener(moment, () => { document.documentElement.classList.toggle("printing", printing); drawAll(); });
  }
  drawAll();
  document.documentElement.dataset.drawn = "yes";
  if (data.live) follow();
}

start();
