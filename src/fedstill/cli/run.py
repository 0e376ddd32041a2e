"""``fedstill run``: one configuration, one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.options import Set, What
from fedstill.config.presets import tree_of
from fedstill.config.trees import settings
from fedstill.core.console import console, remark
from fedstill.engine.prepared import prepare
from fedstill.run.show import Shown
from fedstill.run.trackers import TRACKERS, tracker

__all__ = ["run"]


def _trackers(incomplete: str) -> list[str]:
    return [name for name in TRACKERS.names() if name.startswith(incomplete)]


def _prepare_workers(what: str, assignments: Sequence[str]) -> None:
    """Start the process from which workers are forked, so that both import torch side by side. The configuration is checked
    later; a wrong one prepares nothing."""
    match settings(tree_of(what), assignments).get("engine"):
        case {"name": "flower-simulation"}:
            pass
        case {"workers": int(workers), "threads": int(threads)} if workers > 0:
            prepare(threads)
        case {"workers": int(workers)} if workers > 0:
            prepare(0)


def run(
    what: What,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/last"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the folder's last checkpoint.")] = False,
    workers: Annotated[int | None, typer.Option(min=0, help="Worker processes (engine.workers).")] = None,
    keep_ensemble: Annotated[
        bool,
        typer.Option("--keep-ensemble", help="Also keep the last round's teachers as an ensemble."),
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also log to tensorboard or mlflow.", autocompletion=_trackers),
    ] = None,
) -> None:
    """Run a configuration; writes config.toml, history.jsonl, summary.json, the model and checkpoints to OUT."""
    assignments = [*(set_ or []), *([f"engine.workers={workers}"] if workers is not None else [])]
    assignments += ["evaluation.keep_ensemble=true"] if keep_ensemble else []
    _prepare_workers(what, assignments)
    # slow: they import torch
    from fedstill.run.configuration import resolved, tree_in
    from fedstill.run.loop import run as run_config

    found = resolved(tree_in(what), assignments)
    if found.note:
        remark(found.note)
    run_config(found.config, out, resume=resume, listeners=[Shown(), *(tracker(name, out) for name in track or [])])
    console.print(f"written to {out}", soft_wrap=True)
