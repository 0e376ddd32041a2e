"""``fedstill demo``: a complete comparison, on digits that come inside the wheels."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.compare import compare_shown
from fedstill.cli.options import Set
from fedstill.core.console import console

__all__ = ["demo"]

SYSTEMS = ("fedavg", "fedprox", "moon", "feddf", "fedd3a", "dafkd")


def demo(
    out: Annotated[Path, typer.Option(help="The demo's folder; the runs of an earlier demo there are replaced.")] = Path(
        "runs/demo"
    ),
    set_: Set = None,
) -> None:
    """Compare the systems on embedded digit domains, in minutes and without a download."""
    # slow: they import torch
    from fedstill.run.compare import folder_of
    from fedstill.run.configuration import configuration

    clock = time.monotonic()
    console.print("[bold]fedstill demo[/]: three sites with different digits, one pool of unlabelled images, no download")
    configuration("demo", set_ or [])  # a mistake in the options must not delete anything
    for name in SYSTEMS:  # an earlier demo's runs, and nothing else
        if (folder_of(out, name, 0) / "history.jsonl").exists():
            shutil.rmtree(folder_of(out, name, 0))
    compare_shown("demo", SYSTEMS, [0], out, set_ or [])
    console.print(f"demo took {time.monotonic() - clock:.0f} s; every run has a folder in {out}", soft_wrap=True)
