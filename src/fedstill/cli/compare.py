"""``fedstill compare``: several systems, several seeds, one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedstill.api import compare as compare_runs
from fedstill.cli.run import Set, What
from fedstill.cli.show import Shown, console
from fedstill.core.errors import FedstillError
from fedstill.report.tables import rich_table, summarise
from fedstill.run.compare import Planned

__all__ = ["compare", "compare_shown"]


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
    compare_shown(what, names, numbers, out, set_ or [])


def compare_shown(what: str, names: Sequence[str], seeds: Sequence[int], out: Path, assignments: Sequence[str]) -> None:
    """The comparison, drawn on the console; ``demo`` uses it too."""
    first = True

    def listener(one: Planned) -> Shown:
        nonlocal first
        who, first = first, False
        return Shown(f"{one.algorithm} seed {one.seed}" if len(seeds) > 1 else one.algorithm, who=who)

    runs = compare_runs(what, names, seeds=seeds, out=out, settings=assignments, listener=listener)
    console.print(rich_table(summarise(runs), console.width))
    console.print(f"the page: {out / 'report.html'}", soft_wrap=True)
