"""The papers' tables and figures as commands: each a study with a protocol at full scale and one that runs on a small machine.

A study is a function from a :class:`Plan` to cells, registered under a name; it says what it runs, this module runs it
(resumably, a folder a run), puts the paper's figures beside ours and writes the table.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write, to_json
from fedstill.core.registry import Registry
from fedstill.run.compare import complete
from fedstill.run.configuration import resolve
from fedstill.run.history import read_history
from fedstill.run.listener import Listener

__all__ = ["Cell", "Plan", "Published", "Study", "cell", "grid", "published", "reproduce", "runs_of", "studies", "study", "table"]

Scale = Literal["tiny", "small", "paper"]  # a study without a tiny protocol runs its small one: reproduce sees to it


@dataclass(frozen=True)
class Plan:
    """How a study is to be run."""

    out: Path
    data: Path | None = None
    scale: Scale = "small"
    seeds: tuple[int, ...] = (0,)
    only: tuple[str, ...] = ()  # rows (systems) to run, all where empty
    columns: tuple[str, ...] = ()  # columns (data sets) to run, all where empty
    sets: tuple[str, ...] = ()  # assignments laid over every run
    listener: Callable[[str], Listener] = lambda name: Listener()

    def wants(self, row: str) -> bool:
        """Whether this row was asked for."""
        return not self.only or row.lower() in self.only

    def wants_column(self, column: str) -> bool:
        """Whether this column was asked for; ``mnist`` asks for every column that begins so.

        >>> plan = Plan(Path(), columns=("mnist 0.1", "svhn"))
        >>> plan.wants_column("MNIST 0.1"), plan.wants_column("SVHN 10"), plan.wants_column("MNIST 1")
        (True, True, False)
        """
        name = column.lower()
        return not self.columns or any(name == c or name.startswith(c + " ") for c in self.columns)

    def root(self) -> Path:
        """The folder of data sets, which this study cannot do without."""
        if self.data is None:
            raise FedstillError("this study needs real data: give its folder with --data DIR")
        return self.data


@dataclass(frozen=True)
class Published:
    """A figure of a paper, as printed there."""

    value: float
    deviation: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell: what the paper has and what our runs gave, one value a seed (None: never reached)."""

    row: str
    column: str
    ours: tuple[float | None, ...]
    paper: Published | None = None


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper."""

    name: str
    title: str
    minutes: Mapping[str, float]  # expected on two cores (small) or one GPU (paper)
    run: Callable[[Plan], Sequence[Cell]] = field(repr=False)
    unit: Literal["accuracy", "rounds", "number"] = "accuracy"
    note: str = ""  # what differs from the paper at the small scale
    tiny: bool = False  # whether there is a protocol below the small one


STUDIES: Registry[Study] = Registry("study", group="fedstill.studies", home="fedstill.reproduce")


def study(
    name: str,
    title: str,
    *,
    small: float,
    paper: float,
    unit: Literal["accuracy", "rounds", "number"] = "accuracy",
    note: str = "",
    tiny: bool = False,
) -> Callable:
    """Register the decorated function as the study ``name``; ``small`` and ``paper`` are the expected minutes."""

    return STUDIES.register(name, lambda run: Study(name, title, {"small": small, "paper": paper}, run, unit, note, tiny))


def studies() -> dict[str, Study]:
    """Every study by its name."""
    return dict(sorted(STUDIES.items()))


@cache
def _papers() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "papers.toml").read_text())


def published(name: str, row: str, column: str) -> Published | None:
    """What the paper printed in this cell of the study's table, or None where it has no such cell.

    >>> published("fedd3a-table2", "projection", "MNIST").value
    0.907
    """
    found = _papers().get(name, {}).get(row, {}).get(column)
    if found is None:
        return None
    if isinstance(found, list):
        return Published(float(found[0]), float(found[1]))
    if isinstance(found, dict):
        return Published(float(found["value"]), found.get("deviation"), found.get("note", ""))
    return Published(float(found))


def cell(name: str, row: str, column: str, ours: Sequence[float | None]) -> Cell:
    """A cell with the paper's figure looked up."""
    return Cell(row, column, tuple(ours), published(name, row, column))


@dataclass(frozen=True)
class Run:
    """A finished run of a study."""

    folder: Path
    summary: dict[str, Any]
    history: list[dict[str, Any]]


def runs_of(plan: Plan, name: str, tree: Mapping[str, Any], assignments: Sequence[str] = ()) -> list[Run]:
    """Run a configuration tree once a seed in ``plan.out/name/seedN``; finished runs are read back, interrupted ones go on."""
    found = []
    for seed in plan.seeds:
        config = resolve(tree, [*assignments, *plan.sets, f"seed={seed}"])
        folder = plan.out / name / f"seed{seed}"
        complete(config, folder, lambda seed=seed: plan.listener(f"{name} seed {seed}"))  # type: ignore[misc]
        summary = json.loads((folder / "summary.json").read_text())
        found.append(Run(folder, summary, read_history(folder / "history.jsonl")))
    return found


def reproduce(name: str, plan: Plan) -> tuple[Study, list[Cell]]:
    """Run the study ``name`` and write ``table.md`` and ``cells.json`` to the plan's folder."""
    chosen = STUDIES.get(name)
    if plan.scale == "tiny" and not chosen.tiny:
        plan = replace(plan, scale="small")
    cells = list(chosen.run(plan))
    if not cells:
        raise FedstillError(f"{name} has no such row or column: --only {','.join(plan.only)} --columns {','.join(plan.columns)}")
    atomic_write(plan.out / "table.md", table(chosen, cells))
    rows = [{"row": c.row, "column": c.column, "ours": list(c.ours), "paper": vars(c.paper) if c.paper else None} for c in cells]
    atomic_write(
        plan.out / "cells.json", to_json({"study": name, "scale": plan.scale, "seeds": list(plan.seeds), "cells": rows}) + "\n"
    )
    return chosen, cells


def table(chosen: Study, cells: Sequence[Cell]) -> str:
    """The study as Markdown: for every column the paper's value, ours (mean ± deviation over seeds) and the difference."""
    heads, rows = grid(cells, chosen.unit)
    lines = [f"### {chosen.title}", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    if chosen.note:
        lines += ["", chosen.note]
    return "\n".join(lines) + "\n"


def grid(cells: Sequence[Cell], unit: str) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the study's table, with one column instead of three where only the paper or only we have figures.

    >>> grid([Cell("FedAvg", "MNIST", (0.9,), Published(0.91)), Cell("FedAvg", "digits", (0.8,))], "accuracy")
    (['', 'MNIST: paper', 'ours', 'difference', 'digits'], [['FedAvg', '0.910', '0.900 (1)', '-0.010', '0.800 (1)']])
    """
    heads = [""]
    rows = {c.row: [c.row] for c in cells}
    for column in dict.fromkeys(c.column for c in cells):
        here = [c for c in cells if c.column == column]
        published, measured = any(c.paper for c in here), any(c.ours for c in here)
        shown = slice(0, 3) if published and measured else slice(0, 1) if published else slice(1, 2)
        notes = {c.paper.note for c in here if c.paper}
        if not measured and len(notes) == 1:  # said once, above the column
            column, here = " ".join([column, *(f"({note})" for note in notes if note)]), [_without_note(c) for c in here]
        heads += [f"{column}: paper", "ours", "difference"] if published and measured else [column]
        for row, words in rows.items():
            words += cell_texts(next((c for c in here if c.row == row), None), unit)[shown]
    return heads, list(rows.values())


def _without_note(cell: Cell) -> Cell:
    return replace(cell, paper=replace(cell.paper, note="")) if cell.paper else cell


def cell_texts(found: Cell | None, unit: str) -> list[str]:
    """The three texts of a cell: the paper's, ours, the difference.

    >>> cell_texts(Cell("a", "b", (0.9, 0.92), Published(0.907, 0.004)), "accuracy")
    ['0.907 ± 0.004', '0.910 ± 0.014 (2)', '+0.003']
    """
    if found is None:
        return ["", "", ""]
    digits = 1 if unit == "rounds" else 3
    paper = "-"
    if found.paper:
        spread = f" ± {found.paper.deviation:.{digits}f}" if found.paper.deviation is not None else ""
        paper = f"{found.paper.value:.{digits}f}{spread}" + (f" ({found.paper.note})" if found.paper.note else "")
    reached = [value for value in found.ours if value is not None]
    if not reached:
        return [paper, "not reached" if found.ours else "-", ""]
    spread = f" ± {stdev(reached):.{digits}f}" if len(reached) > 1 else ""
    of = f" ({len(reached)} of {len(found.ours)})" if len(reached) < len(found.ours) else f" ({len(reached)})"
    difference = f"{fmean(reached) - found.paper.value:+.{digits}f}" if found.paper else ""
    return [paper, f"{fmean(reached):.{digits}f}{spread}{of}", difference]
