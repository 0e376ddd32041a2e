"""Studies that are a grid over one configuration, as data: one TOML file per paper.

``[base.NAME]`` has the paper's protocol as ``tree`` and what the scales ``small`` and ``tiny`` change in it; ``like`` takes
another base first. ``[study.NAME]`` has rows, columns and panels, each a table of labels and changes to the configuration; a cell
is one of each, and its column is "panel column". ``also`` adds rows from other fields of the history, ``tiny_columns`` and the
like are those that the tiny scale keeps, ``figure`` says how it is drawn.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from fedstill.core.nested import laid_over
from fedstill.reproduce.figures import draw
from fedstill.reproduce.plan import Cell, Plan, cell

__all__ = ["Grid", "base_tree", "grids"]

NONE: dict[str, dict[str, Any]] = {"": {}}


@cache
def _files() -> dict[str, dict[str, Any]]:
    """All bases and studies."""
    found: dict[str, dict[str, Any]] = {"base": {}, "study": {}}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for kind, members in tomllib.loads(path.read_text()).items():
            found[kind] |= members
    return found


@dataclass(frozen=True)
class Grid:
    """A study of a file, as a function of the plan."""

    name: str

    @property
    def told(self) -> dict[str, Any]:
        """What the file says; ``like`` is the study that this one changes."""
        mine = _files()["study"][self.name]
        return {**Grid(mine["like"]).told, **mine} if "like" in mine else mine

    def function(self) -> Callable[[Plan], Sequence[Cell]]:
        """The function itself, as other studies have it."""
        return lambda plan: self(plan)

    def settings(self, plan: Plan) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
        """(row, panel, column, configuration) of every cell."""
        told = self.told
        base = base_tree(told["base"], plan)
        for panel, its in self._of("panels", plan).items():
            for column, more in self._of("columns", plan).items():
                label = f"{panel} {column}".strip()
                for row, system in self._of("rows", plan).items():
                    if plan.wants(row) and plan.wants_column(label):
                        yield row, panel, column, laid_over(laid_over(laid_over(base, its), more), system)

    def _of(self, axis: str, plan: Plan) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.told.get(axis, NONE)
        kept = self.told.get(f"{plan.scale}_{axis}", self.told.get(f"small_{axis}") if plan.scale == "tiny" else None)
        return {label: found[label] for label in kept} if kept is not None else found

    def __call__(self, plan: Plan) -> Sequence[Cell]:
        from fedstill.reproduce.running import runs_of  # slow: it imports the catalogue, which imports this

        told, cells, curves = self.told, [], []
        for row, panel, column, tree in self.settings(plan):
            label = f"{panel} {column}".strip()
            name = f"{label}/{row}".lower().strip("/").replace(" ", "-").replace(",", "")
            runs = runs_of(plan, name, tree)
            shown = {row: [run.summary["final_accuracy"] for run in runs]}
            lines = {row: [run.history for run in runs]}
            for extra, field in told.get("also", {}).get(row, {}).items():
                shown[extra] = [cast(Any, run.history[-1]).get(field) for run in runs]
            for field in told.get("parts", ()):  # accuracies by domain or by prototype
                for part in cast(Any, runs[0].history[-1]).get(field, {}):
                    values = [cast(Any, run.history[-1]).get(field, {}).get(part) for run in runs]
                    cells.append(cell(self.name, row, f"{label} {part}".strip(), values))
            cells += [cell(self.name, one, label or "accuracy", values) for one, values in shown.items()]
            curves += [(panel, one, column, histories) for one, histories in lines.items()]
        if "figure" in told and not plan.rehearsing and cells:
            draw(plan.out / f"{self.name}.png", told["figure"], cells, curves, list(self._of("panels", plan)))
        return cells


def base_tree(name: str, plan: Plan) -> dict[str, Any]:
    """A base at the plan's scale, with the folder of data; tiny ones of embedded data need none."""
    base = _files()["base"][name]
    tree: dict[str, Any] = base_tree(base["like"], plan) if "like" in base else {}
    tree = laid_over(tree, base.get("tree", {}))
    for scale in ("small", "tiny"):
        if plan.scale in ("tiny", scale):
            tree = laid_over(tree, base.get(scale, {}))
    domains = tree.get("data", {}).get("domains", [])
    if not all(str(domain).startswith("embedded:") for domain in domains):
        tree = laid_over(tree, {"data": {"root": str(plan.root())}})
    return tree


def grids() -> dict[str, Grid]:
    """Every study of the files.

    >>> grids()["feddf-table2"].told["base"]
    'cifar-less'
    """
    return {name: Grid(name) for name in _files()["study"]}
