"""``fedstill compare``: several systems, several seeds, one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedstill.algorithms import create
from fedstill.cli.run import Set, What
from fedstill.cli.show import Shown, console
from fedstill.errors import FedstillError
from fedstill.message import atomic_write, to_json
from fedstill.report.runs import load_runs
from fedstill.report.tables import markdown, rich_table, summarise
from fedstill.run.config import read
from fedstill.run.loop import finished_run, same_run
from fedstill.run.loop import run as run_config
from fedstill.run.presets import resolve, tree_of
from fedstill.task import Task

__all__ = ["compare", "compare_runs", "folder_of"]


def compare(
    what: What,
    algorithms: Annotated[str, typer.Option(metavar="A,B,C", help="Systems to compare.")] = "fedavg,fedprox,fedavgm",
    seeds: Annotated[str, typer.Option(metavar="0,1,2", help="Seeds; the table gives mean and deviation.")] = "0,1,2",
    out: Annotated[Path, typer.Option(help="The folder of all runs.")] = Path("runs/compare"),
    set_: Set = None,
) -> None:
    """Run every system with every seed; finished runs are kept, interrupted ones resumed. Writes table.md, summary.json and
    report.html."""
    try:
        numbers = [int(seed) for seed in seeds.split(",") if seed.strip()]
    except ValueError:
        raise FedstillError(f"--seeds takes whole numbers, not '{seeds}'") from None
    names = [name.strip() for name in algorithms.split(",") if name.strip()]
    if not names or not numbers:
        raise FedstillError("compare needs at least one algorithm and one seed")
    compare_runs(what, names, numbers, out, set_ or [])


def folder_of(out: Path, name: str, seed: int) -> Path:
    """Where a comparison keeps one of its runs."""
    return out / name.replace(":", "_") / f"seed{seed}"


def compare_runs(what: str, names: Sequence[str], seeds: Sequence[int], out: Path, assignments: Sequence[str]) -> None:
    """The comparison itself, as ``demo`` uses it too."""
    raw = tree_of(what)
    plans = [
        (name, seed, resolve(raw, [*assignments, f'algorithm.name="{name}"', f"seed={seed}"])) for name in names for seed in seeds
    ]
    for _, _, config in plans:
        create(Task(config))  # what one of them cannot do is said before the first one trains
    first = True
    for name, seed, config in plans:
        folder = folder_of(out, name, seed)
        kept = folder / "config.toml"
        if finished_run(folder, config):
            console.print(f"{name} seed {seed}: already there", soft_wrap=True)
            continue
        if kept.exists() and not same_run(read(kept), config):
            raise FedstillError(f"{folder} holds a run of another configuration; choose another --out")
        shown = Shown(f"{name} seed {seed}" if len(seeds) > 1 else name, who=first)
        first = False
        try:
            run_config(config, folder, resume=(folder / "history.jsonl").exists(), listeners=[shown])
        finally:
            shown.stop()
    runs = load_runs([folder_of(out, name, seed) for name, seed, _ in plans])
    rows = summarise(runs)
    console.print(rich_table(rows, console.width))
    atomic_write(out / "table.md", markdown(rows))
    atomic_write(out / "summary.json", to_json([run.summary for run in runs]) + "\n")
    from fedstill.report.page import build_page

    page = build_page([run.folder for run in runs], out / "report.html")
    console.print(f"the page: {page}", soft_wrap=True)
