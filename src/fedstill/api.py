"""The calls that a Python program makes besides ``fedstill.run`` and ``fedstill.fuse``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.config.trees import as_assignments
from fedstill.core.files import atomic_write, to_json
from fedstill.report.page import build_page
from fedstill.report.runs import Run, load_runs
from fedstill.report.tables import markdown, summarise, with_ensembles
from fedstill.run.compare import Planned, plan, run_planned
from fedstill.run.listener import Listener
from fedstill.run.pulse import alive

__all__ = ["compare"]


def compare(
    what: str | Path | Mapping[str, Any],
    algorithms: Sequence[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path = "runs/compare",
    settings: Sequence[str] | Mapping[str, Any] = (),
    listener: Callable[[Planned], Listener] = lambda one: Listener(),
    say: Callable[[str], None] = lambda text: None,
) -> list[Run]:
    """Run every system with every seed, as ``fedstill compare`` does. Writes table.md, summary.json and report.html.

    ``what`` is a preset, a TOML file or a tree of plain values; ``listener`` makes the listener of each run. Finished runs in
    ``out`` are kept and interrupted ones resumed, so the same call can be repeated.

    The training options in ``[algorithm]`` (``distillation``, ``source.size``, ...) and ``settings`` apply to every system that
    has the option. Before the first run, ``say`` is called with one line for each set of options that does not apply to a
    system. It is also called with a sign of life if the work between runs takes long.
    """
    folder = Path(out)
    with alive(say, lambda: "checking the configurations"):
        plans = plan(what, algorithms, seeds, folder, as_assignments(settings))
    for note in dict.fromkeys(one.note for one in plans if one.note):
        say(note)
    run_planned(plans, listener)
    with alive(say, lambda: "writing the table and the page"):
        runs = load_runs([one.folder for one in plans])
        atomic_write(folder / "table.md", markdown(with_ensembles(summarise(runs))))
        atomic_write(folder / "summary.json", to_json([run.summary for run in runs]) + "\n")
        build_page([run.folder for run in runs], folder / "report.html")
    return runs
