"""``fedstill reproduce``: a paper's table, with its figures beside ours."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.table import Table

from fedstill.cli.options import Set, whole_numbers, words
from fedstill.core.console import console
from fedstill.core.errors import FedstillError
from fedstill.reproduce import STUDIES, Plan, Scale, cell_texts, grid, studies
from fedstill.reproduce import reproduce as run_study
from fedstill.run.show import Shown

__all__ = ["reproduce"]


SCALES: dict[str, Scale] = {scale: scale for scale in get_args(Scale)}


def _studies(incomplete: str) -> list[str]:
    return [name for name in STUDIES.names() if name.startswith(incomplete)]


def reproduce(
    name: Annotated[str | None, typer.Argument(help="The study, e.g. fedd3a-table2.", autocompletion=_studies)] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the studies and their expected times.")] = False,
    data: Annotated[Path | None, typer.Option(help="The folder of data sets.")] = None,
    scale: Annotated[str, typer.Option(help="tiny or small (this machine), or paper (the full protocol).")] = "small",
    seeds: Annotated[str, typer.Option(metavar="0,1,2")] = "0",
    only: Annotated[str, typer.Option(metavar="A,B", help="Only these rows.")] = "",
    columns: Annotated[str, typer.Option(metavar="X,Y", help="Only these columns.")] = "",
    out: Annotated[Path | None, typer.Option(help="The study's folder (runs/reproduce/NAME).")] = None,
    line: Annotated[
        bool, typer.Option("--line", help="Also run every system that distils with a judge and the line, in separate rows.")
    ] = False,
    set_: Set = None,
) -> None:
    """Run a paper's table or figure and print its figures beside ours. It can be stopped and started again."""
    if list_ or name is None:
        console.print(listing())
        return
    if scale not in SCALES:
        raise FedstillError(f"--scale is tiny, small or paper, not '{scale}'")
    if data is not None and not data.is_dir():
        raise FedstillError(f"--data: no such folder: {data}")
    folder = out or Path("runs/reproduce") / name
    plan = Plan(
        folder,
        data,
        SCALES[scale],
        seeds=tuple(whole_numbers("--seeds", seeds)),
        only=tuple(words(only.lower())),
        columns=tuple(words(columns.lower())),
        sets=tuple(set_ or ()),
        line=line,
        listener=lambda run: Shown(run, who=False),
    )
    clock = time.monotonic()
    chosen, cells = run_study(name, plan)
    title = f"{chosen.title} ({scale} scale, seeds {seeds})"
    if any(found.paper and found.ours for found in cells):  # one line per figure: three columns for each would not fit
        heads, lines = ["", "", "paper", "ours", "difference"], [[c.row, c.column, *cell_texts(c, chosen.unit)] for c in cells]
        print_table(title, heads, lines)
    else:
        print_table(title, *grid([found for found in cells if found.ours], chosen.unit))
        published = [found for found in cells if found.paper]
        if published:
            print_table("The paper's figures", *grid(published, chosen.unit))
    if chosen.note:
        console.print(chosen.note)
    console.print(f"{time.monotonic() - clock:.0f} s; the table: {folder / 'table.md'}", soft_wrap=True)


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on the terminal."""
    shown = Table(title=title)
    for head in heads:
        shown.add_column(head)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def listing() -> Table:
    """Every study and its expected time."""
    shown = Table(title="Studies")
    for column in ("name", "what", "small: minutes on 2 cores", "paper: hours on a GPU"):
        shown.add_column(column)
    for study in studies().values():
        hours = study.minutes["paper"] / 60
        shown.add_row(study.name, study.title, f"{study.minutes['small']:g}", f"{hours:.0f}" if hours >= 1 else f"{hours:.1f}")
    return shown
