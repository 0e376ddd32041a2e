"""``fedstill compare``: several systems, several seeds, one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstill.cli.completion import systems
from fedstill.cli.options import Set, What, whole_numbers, words
from fedstill.core.console import console, remark
from fedstill.core.errors import FedstillError
from fedstill.run.show import Shown

if TYPE_CHECKING:  # slow: imports torch
    from fedstill.run.compare import Planned

__all__ = ["compare", "compare_shown"]


def compare(
    what: What,
    algorithms: Annotated[
        str, typer.Option(metavar="A,B,C", help="Systems to compare.", autocompletion=systems)
    ] = "fedavg,fedprox,fedavgm",
    seeds: Annotated[str, typer.Option(metavar="0,1,2", help="Seeds; the table has mean and standard deviation.")] = "0,1,2",
    out: Annotated[Path, typer.Option(help="The folder of all runs.")] = Path("runs/compare"),
    set_: Set = None,
) -> None:
    """Run every system with every seed; finished runs are kept, interrupted runs are resumed. Writes table.md, summary.json and
    report.html."""
    names, numbers = words(algorithms), whole_numbers("--seeds", seeds)
    if not names:
        raise FedstillError("compare needs at least one algorithm")
    compare_shown(what, names, numbers, out, set_ or [])


def compare_shown(what: str, names: Sequence[str], seeds: Sequence[int], out: Path, assignments: Sequence[str]) -> None:
    """The comparison, shown on the console; ``demo`` uses it too."""
    # slow: they import torch
    from fedstill.api import compare as compare_runs
    from fedstill.report.tables import rich_table, summarise, with_ensembles
    from fedstill.report.verdict import verdict

    def listener(one: Planned) -> Shown:
        name = f"{one.algorithm} seed {one.seed}" if len(seeds) > 1 else one.algorithm
        return Shown(name, who=(one.algorithm, one.seed) == (names[0], seeds[0]))  # the partition is shown once

    runs = compare_runs(what, names, seeds=seeds, out=out, settings=assignments, listener=listener, say=remark)
    rows = summarise(runs)
    console.print(rich_table(with_ensembles(rows), console.width))
    if said := verdict(rows).line:
        console.print(said, soft_wrap=True, markup=False, highlight=False)
    console.print(f"the page: {out / 'report.html'}", soft_wrap=True)
