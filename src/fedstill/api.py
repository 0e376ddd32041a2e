"""The calls that a Python program makes besides ``fedstill.run`` and ``fedstill.fuse``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedstill.core.files import atomic_write, to_json
from fedstill.report.page import build_page
from fedstill.report.runs import Run, load_runs
from fedstill.report.tables import markdown, summarise
from fedstill.run.compare import Planned, plan, run_planned
from fedstill.run.listener import Listener

__all__ = ["compare"]


def compare(
    what: str | Path,
    algorithms: Sequence[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path = "runs/compare",
    settings: Sequence[str] = (),
    listener: Callable[[Planned], Listener] = lambda one: Listener(),
) -> list[Run]:
    """Run every system with every seed, as ``fedstill compare`` does. Writes table.md, summary.json and report.html."""
    plans = plan(str(what), list(algorithms), list(seeds), Path(out), list(settings))
    run_planned(plans, listener)
    runs = load_runs([one.folder for one in plans])
    atomic_write(Path(out) / "table.md", markdown(summarise(runs)))
    atomic_write(Path(out) / "summary.json", to_json([run.summary for run in runs]) + "\n")
    build_page([run.folder for run in runs], Path(out) / "report.html")
    return runs
