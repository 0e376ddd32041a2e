"""``fedstill reproduce``: a paper's table, with its figures beside ours."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args

import typer

from fedstill.cli.options import Set, whole_numbers, words
from fedstill.cli.tables import print_table
from fedstill.core.console import console, duration, remark
from fedstill.core.errors import FedstillError, first_line
from fedstill.reproduce import STUDIES, Plan, Scale, cell_texts, estimate, grid, studies
from fedstill.reproduce import reproduce as run_study
from fedstill.reproduce.index import write_index
from fedstill.reproduce.jobs import pool
from fedstill.run.show import Shown

__all__ = ["reproduce"]


SCALES: dict[str, Scale] = {scale: scale for scale in get_args(Scale)}


def _studies(incomplete: str) -> list[str]:
    return [name for name in STUDIES.names() if name.startswith(incomplete)]


def reproduce(
    name: Annotated[str | None, typer.Argument(help="The study, e.g. fedd3a-table2.", autocompletion=_studies)] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the studies and their expected times.")] = False,
    data: Annotated[Path | None, typer.Option(help="The folder of data sets.")] = None,
    scale: Annotated[
        str, typer.Option(help="tiny (minutes), reduced or small (this machine), or paper (the full protocol).")
    ] = "small",
    seeds: Annotated[str, typer.Option(metavar="0,1,2")] = "0",
    only: Annotated[
        str, typer.Option(metavar="A,B", help="Only these rows; a name that has a comma is written without it.")
    ] = "",
    columns: Annotated[str, typer.Option(metavar="X,Y", help="Only these columns, likewise.")] = "",
    out: Annotated[Path | None, typer.Option(help="The study's folder (runs/reproduce/NAME).")] = None,
    runs: Annotated[
        Path | None, typer.Option(help="A folder of runs that studies share: the same configuration is run once for all of them.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at the same time, each in a process with its share of the cores.")] = 1,
    all_: Annotated[bool, typer.Option("--all", help="Run every study, and write one page of all: OUT/index.html.")] = False,
    line: Annotated[
        bool, typer.Option("--line", help="Also run every system that distils with a judge and the line, in separate rows.")
    ] = False,
    set_: Set = None,
) -> None:
    """Run a paper's table or figure and print its figures beside ours. It can be stopped and started again. A run that fails does
    not stop the others: it is named at the end, and the exit status is 1."""
    if list_ or (name is None and not all_):
        print_table("Studies: minutes on two cores; paper: hours on one GPU", ["name", *SCALES, "what"], listing(), whole=5)
        return
    if all_ and name is not None:
        raise FedstillError(f"--all runs every study: leave out '{name}'")
    if scale not in SCALES:
        raise FedstillError(f"--scale is tiny, reduced, small or paper, not '{scale}'")
    if jobs < 1:
        raise FedstillError("--jobs is at least 1")
    if data is not None and not data.is_dir():
        raise FedstillError(f"--data: no such folder: {data}")
    plan = Plan(
        out or Path("runs/reproduce") / (name or "all"),
        data,
        SCALES[scale],
        seeds=tuple(whole_numbers("--seeds", seeds)),
        only=tuple(words(only.lower())),
        columns=tuple(words(columns.lower())),
        sets=tuple(set_ or ()),
        line=line,
        listener=lambda run: Shown(run, who=False),
        jobs=jobs,
        runs=runs,
    )
    if name is not None:
        failed = run_one(name, plan)
    else:
        failed = run_all(plan)
    for place, reason in failed.items():
        console.print(f"failed: {place}: {reason}", soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


def run_one(name: str, plan: Plan) -> dict[str, str]:
    """Run a study and print its table; what failed, and why."""
    console.print(f"{name}: {estimate(name, plan)}", soft_wrap=True)
    clock = time.monotonic()
    result = run_study(name, plan, told=remark)
    chosen, cells = result.study, result.cells
    title = f"{chosen.title} ({plan.scale} scale, seeds {','.join(map(str, plan.seeds))})"
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
    console.print(f"{time.monotonic() - clock:.0f} s; the table: {plan.out / 'table.md'}", soft_wrap=True)
    return result.failed


def run_all(plan: Plan) -> dict[str, str]:
    """Run every study, each in its folder, and keep the index page up to date; what failed, and why."""
    failed: dict[str, str] = {}
    unable: dict[str, str] = {}
    minutes = sum(study.minutes.get(plan.scale, study.minutes.get("small", 0)) for study in studies().values())
    console.print(f"{len(studies())} studies: about {duration(60 * minutes * len(plan.seeds))} on two cores", soft_wrap=True)
    with pool(plan.jobs) as processes:
        for name in studies():
            mine = replace(plan, out=plan.out / name, runs=plan.runs or plan.out / "runs")
            try:
                console.print(f"{name}: {estimate(name, mine)}", soft_wrap=True)
                result = run_study(name, mine, processes, told=remark)
                failed |= {f"{name} {place}": reason for place, reason in result.failed.items()}
            except FedstillError as error:
                unable[name] = str(error)
            except Exception as error:  # one study's fault is not the others'
                unable[name] = first_line(error)
            page = write_index(plan.out, unable)
    console.print(f"the page of all studies: {page}", soft_wrap=True)
    return {**failed, **unable}


def listing() -> list[list[str]]:
    """Every study: its name, its expected times, its title."""
    rows = []
    for study in studies().values():
        minutes = [f"{study.minutes[scale]:g}" if scale in study.minutes else "-" for scale in SCALES if scale != "paper"]
        hours = study.minutes.get("paper", 0) / 60
        paper = "-" if not hours else f"{hours:.0f} h" if hours >= 1 else f"{max(0.1, hours):.1f} h"
        rows.append([study.name, *minutes, paper, study.title])
    return rows
