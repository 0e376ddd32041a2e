// The summary table: sorted by its headings, copied in the same order.

// ---- the table -------------------------------------------------------------------------------------------------

function tableOrder() {
  const rows = data.table.rows.map((row, place) => ({ row, place }));
  if (!state.sort) return rows;
  const { column, down } = state.sort, c = data.table.columns.findIndex((k) => k.title === column);
  const own = { method: (row) => row.label, seeds: (row) => row.seeds }[column];
  const value = ({ row }) => (own ? own(row) : row.cells[c]?.value ?? null);
  return rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return (x === null) - (y === null);  // missing values come last in either order
    const ascending = typeof x === "string" ? x.localeCompare(y) : x - y;
    return (down ? -ascending : ascending) || a.place - b.place;
  });
}

// If the table is too wide, a cell breaks between the mean and its deviation and nowhere else.
function parted(text) {
  const pieces = text.split(/ (?=±|\()/);
  return pieces.flatMap((piece, i) => [...(i ? [" "] : []), element("span", { class: i ? "whole soft" : "whole" }, piece)]);
}

// A heading breaks anywhere except before its last word, which may be a unit.
function headed(title) {
  const words = title.split(" "), last = words.splice(-2).join(" ");
  return [...(words.length ? [`${words.join(" ")} `] : []), element("span", { class: "whole" }, last)];
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
    element("button", { type: "button", "data-column": title, onclick: sortBy(title, better) }, ...headed(title)));
  $("table").classList.toggle("dense", data.table.columns.length > 11);
  $("table").replaceChildren(
    element(
      "thead", {},
      element(
        "tr", {}, heading("method"), ...data.table.columns.map((c) => heading(c.title, c.better)),
        heading("seeds", "high"),
      ),
    ),
    element("tbody", {}, ...tableOrder().map(({ row }) => element("tr", { class: on(row.method) ? "" : "off" },
      element(
        "th", { scope: "row" },
        element(
          "div", {}, element("span", { class: "swatch", style: `background:${look(row.method).colour}` }),
          element("span", {}, row.label),
        ),
      ),
      ...row.cells.map((cell) => element("td", { class: cell.best ? "best" : "" }, ...parted(cell.text))),
      element("td", {}, String(row.seeds) + (row.unfinished ? ` (${row.unfinished} unfinished)` : ""))))),
  );
}

function drawAccuracyOf() {
  const told = data.methods.filter((method) => method.accuracyOf);
  $("accuracy-of").textContent = told.map((m) => `The accuracy of ${m.label} is that of ${m.accuracyOf}.`).join(" ");
}

function drawPrivacy() {
  const told = data.runs.filter((run) => run.privacy.length);
  show("privacy", told.length);
  $("privacy").replaceChildren(...told.map((run) => element("li", {}, `${run.name}: ${run.privacy.join(". ")}.`)));
}

function tableAs(form) {
  const { head, foot } = data.table[form];
  return [...head, ...tableOrder().map(({ row }) => row[form]), ...foot].join("\n") + "\n";
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Some browsers deny the clipboard to a page from disk; the old way still works there.
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
