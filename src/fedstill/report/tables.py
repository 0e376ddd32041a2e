"""The summary of runs: one row per method, mean and standard deviation over its seeds, the best of each column marked.

The same columns make the Markdown of ``table.md``, the LaTeX for a paper, the table on the terminal and the one on the page.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from fedstill.report.numbers import fixed
from fedstill.report.runs import Run

__all__ = [
    "Column",
    "Row",
    "Spread",
    "best_rows",
    "columns",
    "labels",
    "latex",
    "latex_lines",
    "markdown",
    "markdown_lines",
    "rich_table",
    "spread",
    "summarise",
    "with_ensembles",
]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (None for one value) of ``count`` values, out of ``of`` runs."""

    mean: float
    std: float | None
    count: int
    of: int


@dataclass(frozen=True)
class Row:
    """One method over its seeds; accuracies are fractions, sizes are bytes; None if no run has the value."""

    label: str
    algorithm: str
    seeds: list[int | None]
    runs: list[Run]
    accuracy: Spread | None
    best: Spread | None
    domains: dict[str, Spread]
    prototypes: dict[str, Spread]
    rounds_to: dict[str, Spread | None]
    bytes_to: dict[str, Spread | None]
    bytes_total: Spread | None
    seconds: Spread | None

    @property
    def unfinished(self) -> int:
        """The number of runs without a summary."""
        return sum(not run.finished for run in self.runs)


@dataclass(frozen=True)
class Column:
    """A column of the summary: its title, its value for a row, and whether high or low is better."""

    title: str
    spread: Callable[[Row], Spread | None]
    text: Callable[[Spread], str]
    better: Literal["high", "low"]
    whole: bool = False  # only finished runs compete: a run that has just started has spent the least

    def cell(self, row: Row) -> str:
        """The text for ``row``; a dash if it has no value."""
        found = self.spread(row)
        return "-" if found is None else self.text(found)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and sample standard deviation of the values that are not None.

    >>> spread([1.0, 3.0, 5.0, None])
    Spread(mean=3.0, std=2.0, count=3, of=4)
    >>> spread([None]) is None
    True
    """
    every = list(values)
    there = [value for value in every if value is not None]
    if not there:
        return None
    std = statistics.stdev(there) if len(there) > 1 else None
    return Spread(statistics.fmean(there), std, len(there), len(every))


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run's method: its algorithm, and the settings that differ if an algorithm ran with several.

    Runs with the same name differ only in their seed.
    """
    named: list[str] = []
    settings = [_settings(run.config) for run in runs]
    for run, own in zip(runs, settings, strict=True):
        same = [s for r, s in zip(runs, settings, strict=True) if r.algorithm == run.algorithm]
        differing = [key for key in sorted({k for s in same for k in s}) if len({s.get(key, "default") for s in same}) > 1]
        detail = ", ".join(f"{key.removeprefix('algorithm.')}={own.get(key, 'default')}" for key in differing)
        named.append(f"{run.algorithm} ({detail})" if detail else run.algorithm)
    return named


_NOT_THE_METHOD = ("engine.", "evaluation.")


def _settings(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """The configuration as dotted keys and text, without the settings that may differ between seeds of one method."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _settings(value, f"{prefix}{key}.")
        elif prefix + key not in ("seed", "algorithm.name", "data.root") and not prefix.startswith(_NOT_THE_METHOD):
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def summarise(runs: list[Run]) -> list[Row]:
    """One row for each method among ``runs``, in the order in which they first appear."""
    groups: dict[str, list[Run]] = {}
    for label, run in zip(labels(runs), runs, strict=True):
        groups.setdefault(label, []).append(run)
    targets = sorted({target for run in runs for target in run.targets}, key=float)
    return [_row(label, group, targets) for label, group in groups.items()]


def _row(label: str, runs: list[Run], targets: list[str]) -> Row:
    return Row(
        label=label,
        algorithm=runs[0].algorithm,
        seeds=[run.seed for run in runs],
        runs=runs,
        accuracy=spread(run.final_accuracy for run in runs),
        best=spread(run.best_accuracy for run in runs),
        domains=_last(runs, "domains"),
        prototypes=_last(runs, "prototypes"),
        rounds_to={target: spread(run.rounds_to(target) for run in runs) for target in targets},
        bytes_to={target: spread(run.bytes_to(target) for run in runs) for target in targets},
        bytes_total=spread(run.bytes_total for run in runs),
        seconds=spread(run.seconds for run in runs),
    )


def with_ensembles(rows: Sequence[Row]) -> list[Row]:
    """The rows, each followed by the ensemble that its runs kept (``run --keep-ensemble``), from which the student was distilled.
    It is an alternative if you can afford to run all teachers for every prediction."""
    shown: list[Row] = []
    for row in rows:
        shown.append(row)
        kept = [run for run in row.runs if run.kept_ensemble is not None]
        if kept:
            accuracy = spread(run.kept_ensemble for run in kept)
            nothing: dict[str, Spread | None] = dict.fromkeys(row.rounds_to)
            seeds = [run.seed for run in kept]
            shown.append(
                Row(f"{row.label}: its ensemble", row.algorithm, seeds, [], accuracy, None, {}, {}, nothing, nothing, None, None)
            )
    return shown


def _last(runs: list[Run], name: Literal["domains", "prototypes"]) -> dict[str, Spread]:
    """The spread, by key, of the last value of ``name`` in each run's history; not every round is evaluated."""
    last: list[dict[str, float]] = [next((line[name] for line in reversed(run.history) if line.get(name)), {}) for run in runs]
    keys = dict.fromkeys(key for values in last for key in values)
    spreads = {key: spread(values.get(key) for values in last) for key in keys}
    return {key: found for key, found in spreads.items() if found is not None}


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that have values for these rows."""
    domains = dict.fromkeys(name for row in rows for name in row.domains)
    prototypes = dict.fromkeys(name for row in rows for name in row.prototypes)
    targets = _telling_targets(rows)
    every = [
        Column("accuracy %", lambda row: row.accuracy, _percent, "high"),
        Column("best %", lambda row: row.best, _percent, "high"),
        # The column of a single domain would repeat the accuracy.
        *(Column(f"{name} %", _of("domains", name), _percent, "high") for name in domains if len(domains) > 1),
        *(Column(f"{name} %", _of("prototypes", name), _percent, "high") for name in prototypes),
        *(Column(f"rounds to {_target(t)}", _of("rounds_to", t), _some(_rounds), "low") for t in targets),
        *(Column(f"MB to {_target(t)}", _of("bytes_to", t), _some(_megabytes), "low") for t in targets),
        Column("MB", lambda row: row.bytes_total, _megabytes, "low", whole=True),
        Column("seconds", lambda row: row.seconds, _seconds, "low", whole=True),
    ]
    return [column for column in every if any(column.spread(row) for row in rows) or "to " in column.title]


def _telling_targets(rows: Sequence[Row]) -> list[str]:
    """At most two targets: of more, the highest that every method reached and the highest that any method reached."""
    targets = list(rows[0].rounds_to) if rows else []
    if len(targets) <= 2:
        return targets
    by_all = [t for t in targets if all(row.rounds_to[t] for row in rows)]
    by_any = [t for t in targets if any(row.rounds_to[t] for row in rows)]
    return list(dict.fromkeys([*by_all[-1:], *by_any[-1:]])) or targets[:1]


def _of(field: str, name: str) -> Callable[[Row], Spread | None]:
    return lambda row: getattr(row, field).get(name)


def _target(target: str) -> str:
    return f"{float(target) * 100:g} %"


def _plus_minus(found: Spread, digits: int, scale: float = 1.0) -> str:
    mean = fixed(found.mean * scale, digits)
    return mean if found.std is None else f"{mean} ± {found.std * scale:.{digits}f}"


def _percent(found: Spread) -> str:
    return _plus_minus(found, 2, 100.0)


def _rounds(found: Spread) -> str:
    return _plus_minus(found, 0 if found.mean == int(found.mean) and not found.std else 1)


def _megabytes(found: Spread) -> str:
    size = found.mean / 1e6
    return _plus_minus(found, 0 if size >= 1000 else 1 if size >= 10 else 3, 1e-6)


def _seconds(found: Spread) -> str:
    return _plus_minus(found, 1)


def _some(text: Callable[[Spread], str]) -> Callable[[Spread], str]:
    """Adds the number of seeds that reached a target if not all did; the mean is over those that did."""
    return lambda found: text(found) + (f" ({found.count}/{found.of})" if found.count < found.of else "")


def best_rows(column: Column, rows: Sequence[Row]) -> set[int]:
    """The places of the rows that are best in ``column``, as displayed; empty if there is nothing to compare."""
    shown = {place: column.spread(row) for place, row in enumerate(rows)}
    there = {p: found for p, found in shown.items() if found and not (column.whole and rows[p].unfinished)}
    if len(rows) < 2 or not there:
        return set()
    # A method that reached the target with only some seeds does not beat one that reached it with all.
    most = max(found.count / found.of for found in there.values())
    able = {p: f for p, f in there.items() if f.count / f.of == most}
    pick = max if column.better == "high" else min
    means = {p: column.text(replace(f, std=None)) for p, f in able.items()}
    winner = means[pick(able, key=lambda p: able[p].mean)]
    winners = {place for place, mean in means.items() if mean == winner}
    return winners if len(winners) < len(rows) else set()  # if all are equal, none is best


def _seeds(row: Row) -> str:
    return str(len(row.runs)) + (f" ({row.unfinished} unfinished)" if row.unfinished else "")


def markdown_lines(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """The head of the Markdown table and a line for each row, so that rows can be reordered."""
    shown = columns(rows)
    head = ["method", *(column.title for column in shown), "seeds"]
    lines = []
    for place, row in enumerate(rows):
        cells = [f"**{c.cell(row)}**" if place in best_rows(c, rows) else c.cell(row) for c in shown]
        lines.append(_markdown_line([row.label.replace("|", "\\|"), *cells, _seeds(row)]))
    return [_markdown_line(head), "|---" + "|---:" * (len(head) - 1) + "|"], lines


def _markdown_line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def markdown(rows: Sequence[Row]) -> str:
    """The summary as a Markdown table, the best of each column in bold.

    >>> print(markdown(summarise([])), end="")
    | method | seeds |
    |---|---:|
    """
    head, lines = markdown_lines(rows)
    return "\n".join([*head, *lines]) + "\n"


def latex_lines(rows: Sequence[Row]) -> tuple[list[str], list[str], list[str]]:
    """The head, a line for each row, and the foot of the LaTeX table (booktabs)."""
    shown = columns(rows)
    titles = ["method", *(column.title for column in shown), "seeds"]
    head = [
        r"\begin{tabular}{l" + "r" * (len(titles) - 1) + "}",
        r"\toprule",
        " & ".join(_tex(title) for title in titles) + r" \\",
        r"\midrule",
    ]
    lines = []
    for place, row in enumerate(rows):
        cells = [_tex(column.cell(row)) for column in shown]
        marked = [
            rf"\textbf{{{cell}}}" if place in best_rows(column, rows) else cell for column, cell in zip(shown, cells, strict=True)
        ]
        lines.append(" & ".join([_tex(row.label), *marked, _tex(_seeds(row))]) + r" \\")
    return head, lines, [r"\bottomrule", r"\end{tabular}"]


def latex(rows: Sequence[Row]) -> str:
    """The summary as a LaTeX ``tabular`` with booktabs rules, the best of each column in bold."""
    head, lines, foot = latex_lines(rows)
    return "\n".join([*head, *lines, *foot]) + "\n"


_TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)


def _tex(text: str) -> str:
    return text.translate(_TEX)


def rich_table(rows: Sequence[Row], width: int | None = None) -> Table:
    """The summary for a terminal, the best of each column in bold. If it is wider than ``width`` characters, the least
    important columns are left out and the caption names them."""
    shown, left = _fitting(columns(rows), rows, width)
    table = Table("method", caption=f"not shown here: {', '.join(left)}" if left else None)
    for column in shown:
        table.add_column(_two_lines(column.title), justify="right")
    table.add_column("seeds", justify="right")
    for place, row in enumerate(rows):
        cells = [Text(c.cell(row), style="bold" if place in best_rows(c, rows) else "") for c in shown]
        table.add_row(Text(row.label), *cells, _seeds(row))
    return table


def _two_lines(title: str) -> str:
    """A title in two lines, broken so that the longer line is as short as possible.

    >>> _two_lines("rounds to 80 %")
    'rounds\\nto 80 %'
    """
    words = title.split()
    ways = [(" ".join(words[:i]), " ".join(words[i:])) for i in range(1, len(words))]
    return "\n".join(min(ways, key=lambda way: max(map(len, way)))) if ways else title


def _fitting(every: list[Column], rows: Sequence[Row], width: int | None) -> tuple[list[Column], list[str]]:
    """The columns that fit into ``width``, and the titles of those that do not."""
    shown, left = list(every), list[str]()

    def needed() -> int:
        wide = [max(len(text) for text in (*_two_lines(c.title).split("\n"), *(c.cell(row) for row in rows))) for c in shown]
        return max(6, *(len(row.label) for row in rows)) + sum(wide) + 3 * len(shown) + 3 + 8 + 1

    for least in ("MB to", "best", "seconds", "rounds to", "MB", "%"):
        while width is not None and rows and needed() > width and len(shown) > 1:
            place = next((i for i in range(len(shown) - 1, 0, -1) if least in shown[i].title), None)
            if place is None:
                break
            left.insert(0, shown.pop(place).title)
    return shown, left
