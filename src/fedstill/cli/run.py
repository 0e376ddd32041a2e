"""``fedstill run``: one configuration, one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.show import Shown, console
from fedstill.run.configuration import configuration
from fedstill.run.loop import run as run_config
from fedstill.run.trackers import tracker

__all__ = ["run"]

What = Annotated[str, typer.Argument(metavar="PRESET|FILE.toml", help="A shipped preset or a configuration file.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, e.g. --set local.epochs=5.")]


def run(
    what: What,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/last"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's last checkpoint.")] = False,
    workers: Annotated[int | None, typer.Option(min=0, help="Worker processes (engine.workers).")] = None,
    track: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Also record in tensorboard or mlflow.")] = None,
) -> None:
    """Run a configuration; writes config.toml, history.jsonl, summary.json, the model and checkpoints to OUT."""
    assignments = [*(set_ or []), *([f"engine.workers={workers}"] if workers is not None else [])]
    config = configuration(what, assignments)
    run_config(config, out, resume=resume, listeners=[Shown(), *(tracker(name, out) for name in track or [])])
    console.print(f"written to {out}", soft_wrap=True)
