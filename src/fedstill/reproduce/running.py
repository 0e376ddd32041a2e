"""Run a study, each run in its own folder, and write its table."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write, part_of, to_json
from fedstill.reproduce.catalogue import STUDIES, Study
from fedstill.reproduce.jobs import Pool, finished, pool, run_jobs
from fedstill.reproduce.plan import Cell, Job, Plan, Scale
from fedstill.reproduce.tables import table
from fedstill.run.history import Line, Summary, read_history, read_summary
from fedstill.run.listener import Listener

__all__ = ["Estimate", "Result", "Run", "estimate", "gather", "planned", "reproduce", "runs_of"]

SCALES: tuple[Scale, ...] = get_args(Scale)


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
    from fedstill.config.tables import to_toml
    from fedstill.run.compare import complete
    from fedstill.run.configuration import resolve

    given = [*assignments, *plan.sets]
    judged = _has_line(tree, given)
    name = f"{name}-line" if judged and plan.line else name
    printed = ["algorithm.line=false"] if judged and not plan.line else []  # as in the papers
    found = []
    for seed in plan.seeds:
        said = (*printed, *given, f"seed={seed}")
        config = resolve(tree, said)
        folder = place(plan, f"{name}/seed{seed}", to_toml(config))
        job = Job(f"{name} seed {seed}", folder, tree, said)
        if plan.gathered is not None:
            plan.gathered.append(job)
        if plan.rehearsing or folder in plan.failed:
            found.append(stand_in(folder))
            continue
        complete(config, folder, plan.listener(job.name))
        found.append(Run(folder, read_summary(folder / "summary.json"), read_history(folder / "history.jsonl")))
    return found


def place(plan: Plan, name: str, config: str) -> Path:
    """The folder of a run. If studies share their runs, it is the folder of the first study that planned the same configuration:
    FedAvg on the same task is a row of many tables, and is run once."""
    if plan.runs is None:
        return plan.out / name
    mark = plan.runs / "same" / hashlib.sha256(config.encode()).hexdigest()[:24]
    mark.parent.mkdir(parents=True, exist_ok=True)
    first = part_of(mark)
    first.write_text(f"{os.path.basename(os.path.abspath(plan.out))}/{name}")  # "." has no name of its own
    with contextlib.suppress(FileExistsError):
        os.link(first, mark)  # whole or not at all, also if two processes plan the same run
    first.unlink()
    return plan.runs / mark.read_text()


class _NoTargets(dict[str, "int | None"]):
    def __missing__(self, target: str) -> int | None:
        return None


def stand_in(folder: Path) -> Run:
    """In place of a run that failed or has not been made: every accuracy is NaN, and no target is reached."""
    nan = math.nan
    line: Line = {
        "round": 1,
        "accuracy": nan,
        "domains": {"failed": nan},
        "merged_accuracy": nan,
        "ensemble_accuracy": nan,
        "clients": ["failed"],
        "seconds": {},
    }
    return Run(folder, {"final_accuracy": nan, "best_accuracy": nan, "rounds_to": _NoTargets(), "seconds_total": 0.0}, [line])


def _has_line(tree: Mapping[str, Any], given: Sequence[str]) -> bool:
    """Whether the system has a judge that chooses between average and student (``algorithm.line``), and it is not configured."""
    # slow: they import torch
    from fedstill.algorithms import algorithms
    from fedstill.run.configuration import resolve

    config = resolve(tree, given)
    options = algorithms()[config.algorithm["name"]].Options
    told = "line" in tree.get("algorithm", {}) or any(one.startswith("algorithm.line") for one in given)
    return "line" in options.model_fields and not told


@dataclass(frozen=True)
class Estimate:
    """What a study will do: its runs, how many of them are finished, and the expected minutes of the others."""

    runs: int
    finished: int
    minutes: float

    def __str__(self) -> str:
        """
        >>> str(Estimate(8, 2, 90.0))
        '8 runs, 2 finished; the rest takes about 90 min on two cores (paper scale: one GPU)'
        """
        done = f", {self.finished} finished" if self.finished else ""
        took = f"{self.minutes:.0f} min" if self.minutes >= 1 else "a minute"
        return f"{self.runs} runs{done}; the rest takes about {took} on two cores (paper scale: one GPU)"


@dataclass(frozen=True)
class Result:
    """A study's cells, and the runs that failed with the reasons."""

    study: Study
    cells: list[Cell]
    failed: dict[str, str]


def planned(chosen: Study, plan: Plan) -> Plan:
    """The plan at the nearest scale that the study has; its smallest one is the small one with fewer rows and other settings."""
    scale = next((s for s in SCALES[SCALES.index(plan.scale) :] if s in chosen.minutes), plan.scale)
    if scale != "tiny" or chosen.tiny is None:
        return replace(plan, scale=scale)
    return replace(
        plan,
        scale=chosen.tiny.scale,  # type: ignore[arg-type]
        sets=(*chosen.tiny.sets, *plan.sets),
        only=plan.only or chosen.tiny.only,
        columns=plan.columns or chosen.tiny.columns,
    )


def gather(chosen: Study, plan: Plan) -> list[Job]:
    """The runs that the study needs, without running them."""
    listed: list[Job] = []
    for lined in (False, True) if plan.line else (False,):
        try:
            chosen.run(replace(plan, line=lined, gathered=listed))
        except (FedstillError, OSError):
            raise
        except Exception:  # a study that cannot do without figures: its other runs follow one after the other
            break
    return list({job.folder: job for job in listed}.values())


def estimate(name: str, plan: Plan) -> Estimate:
    """How many runs the plan has and how long those that are not finished should take."""
    chosen = STUDIES.get(name)
    mine = planned(chosen, plan)
    jobs = gather(chosen, mine)
    everything = replace(plan, only=(), columns=(), sets=())  # what is set may have no place in rows that are not run
    whole = gather(chosen, replace(planned(chosen, everything), line=False, seeds=(0,)))
    done = sum(finished(job) for job in jobs)
    scale = next((s for s in SCALES[SCALES.index(plan.scale) :] if s in chosen.minutes), "small")
    share = (len(jobs) - done) / max(1, len(whole)) if jobs else len(plan.seeds)
    return Estimate(len(jobs), done, chosen.minutes.get(scale, 0.0) * share)


def reproduce(name: str, plan: Plan, processes: Pool | None = None, told: Callable[[str], None] = lambda text: None) -> Result:
    """Run the study ``name`` and write ``table.md`` and ``cells.json`` to the plan's folder."""
    chosen = STUDIES.get(name)
    asked, plan = plan, planned(chosen, plan)
    with contextlib.ExitStack() as stack:
        processes = processes or stack.enter_context(pool(plan.jobs))
        failed = run_jobs(gather(chosen, plan), processes, plan.listener, told)
    # everything is finished or has failed: the listener has nothing to say a second time
    plan = replace(plan, failed=failed, listener=lambda name: Listener())
    cells = list(chosen.run(replace(plan, line=False)))
    if plan.line:  # a system without a line gives the same runs again, and no second row
        once = {(cell.row, cell.column): cell.ours for cell in cells}
        again = [cell for cell in chosen.run(plan) if once.get((cell.row, cell.column)) != cell.ours]
        cells += [Cell(f"{cell.row} + line", cell.column, cell.ours) for cell in again]
    if not cells:
        asked_for = [f"--{word} {','.join(some)}" for word, some in (("only", plan.only), ("columns", plan.columns)) if some]
        raise FedstillError(f"{name} has no such row or column: {' '.join(asked_for)}")
    cells = [replace(c, ours=tuple(None if v is None or math.isnan(v) else v for v in c.ours)) for c in cells]
    root = plan.runs or plan.out
    reasons = {folder.relative_to(root).as_posix(): reason for folder, reason in failed.items()}
    atomic_write(plan.out / "table.md", table(chosen, cells))
    atomic_write(plan.out / "cells.json", to_json(record(chosen, asked, plan, cells, reasons)) + "\n")
    return Result(chosen, cells, reasons)


def record(chosen: Study, asked: Plan, plan: Plan, cells: Sequence[Cell], failed: Mapping[str, str]) -> dict[str, Any]:
    """What is kept of a study: its cells, and how to repeat them."""
    rows = [{"row": c.row, "column": c.column, "ours": list(c.ours), "paper": vars(c.paper) if c.paper else None} for c in cells]
    seconds = [seconds_of(job) for job in gather(chosen, plan)]
    scale = asked.scale if asked.scale in chosen.minutes else plan.scale
    return {
        "study": chosen.name,
        "scale": scale,
        "seeds": list(plan.seeds),
        "command": command(chosen.name, scale, asked),
        "minutes": round(sum(seconds) / 60, 2),
        "runs": len(seconds),
        "failed": dict(failed),
        "cells": rows,
    }


def seconds_of(job: Job) -> float:
    """How long a run took; 0 if it did not end."""
    path = job.folder / "summary.json"
    return read_summary(path).get("seconds_total", 0.0) if path.exists() else 0.0


def command(name: str, scale: str, plan: Plan) -> str:
    """The command that repeats the study.

    >>> command("fedd3a-table2", "small", Plan(Path("out"), Path("/data"), seeds=(0, 1), sets=("rounds=2",)))
    'fedstill reproduce fedd3a-table2 --scale small --seeds 0,1 --data DATA --set rounds=2'
    """
    words = ["fedstill", "reproduce", name, "--scale", scale, "--seeds", ",".join(map(str, plan.seeds))]
    words += ["--data", "DATA"] if plan.data else []
    words += ["--only", ",".join(plan.only)] if plan.only else []
    words += ["--columns", ",".join(plan.columns)] if plan.columns else []
    words += ["--line"] if plan.line else []
    for one in plan.sets:
        words += ["--set", one]
    return shlex.join(words)
