"""Run a study, each run in its own folder, and write its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write, to_json
from fedstill.reproduce.catalogue import STUDIES, Study
from fedstill.reproduce.plan import Cell, Plan
from fedstill.reproduce.tables import table
from fedstill.run.history import Line, Summary, read_history, read_summary

__all__ = ["Run", "reproduce", "runs_of"]


@dataclass(frozen=True)
class Run:
    """A finished run of a study."""

    folder: Path
    summary: Summary
    history: list[Line]

    @property
    def accuracy(self) -> float:
        """The final accuracy."""
        found = self.summary["final_accuracy"]
        if found is None:
            raise FedstillError(f"{self.folder} was not evaluated")
        return found


def runs_of(plan: Plan, name: str, tree: Mapping[str, Any], assignments: Sequence[str] = ()) -> list[Run]:
    """Run a configuration once per seed in ``plan.out/name/seedN``; finished runs are read, interrupted runs continue."""
    # slow: they import torch, which the list of studies does not need
    from fedstill.run.compare import complete
    from fedstill.run.configuration import resolve

    given = [*assignments, *plan.sets]
    judged = _has_line(tree, given)
    name = f"{name}-line" if judged and plan.line else name
    printed = ["algorithm.line=false"] if judged and not plan.line else []  # as in the papers
    found = []
    for seed in plan.seeds:
        config = resolve(tree, [*printed, *given, f"seed={seed}"])
        folder = plan.out / name / f"seed{seed}"
        complete(config, folder, plan.listener(f"{name} seed {seed}"))
        found.append(Run(folder, read_summary(folder / "summary.json"), read_history(folder / "history.jsonl")))
    return found


def _has_line(tree: Mapping[str, Any], given: Sequence[str]) -> bool:
    """Whether the system has a judge that chooses between average and student (``algorithm.line``), and it is not configured."""
    # slow: they import torch
    from fedstill.algorithms import algorithms
    from fedstill.run.configuration import resolve

    config = resolve(tree, given)
    options = algorithms()[config.algorithm["name"]].Options
    told = "line" in tree.get("algorithm", {}) or any(one.startswith("algorithm.line") for one in given)
    return "line" in options.model_fields and not told


def reproduce(name: str, plan: Plan) -> tuple[Study, list[Cell]]:
    """Run the study ``name`` and write ``table.md`` and ``cells.json`` to the plan's folder."""
    chosen = STUDIES.get(name)
    if plan.scale == "tiny" and not chosen.tiny:
        plan = replace(plan, scale="small")
    cells = list(chosen.run(replace(plan, line=False)))
    if plan.line:  # a system without a line gives the same runs again, and no second row
        once = {(cell.row, cell.column): cell.ours for cell in cells}
        again = [cell for cell in chosen.run(plan) if once.get((cell.row, cell.column)) != cell.ours]
        cells += [Cell(f"{cell.row} + line", cell.column, cell.ours) for cell in again]
    if not cells:
        raise FedstillError(f"{name} has no such row or column: --only {','.join(plan.only)} --columns {','.join(plan.columns)}")
    atomic_write(plan.out / "table.md", table(chosen, cells))
    rows = [{"row": c.row, "column": c.column, "ours": list(c.ours), "paper": vars(c.paper) if c.paper else None} for c in cells]
    atomic_write(
        plan.out / "cells.json", to_json({"study": name, "scale": plan.scale, "seeds": list(plan.seeds), "cells": rows}) + "\n"
    )
    return chosen, cells
