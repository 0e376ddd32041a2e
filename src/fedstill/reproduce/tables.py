"""A study's cells as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from fedstill.reproduce.catalogue import Study
from fedstill.reproduce.plan import Cell

__all__ = ["cell_texts", "grid", "table"]


def table(chosen: Study, cells: Sequence[Cell]) -> str:
    """The study as Markdown: for every column the paper's value, ours (mean ± standard deviation over seeds), the difference."""
    heads, rows = grid(cells, chosen.unit)
    lines = [f"### {chosen.title}", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    if chosen.note:
        lines += ["", chosen.note]
    return "\n".join(lines) + "\n"


def grid(cells: Sequence[Cell], unit: str) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the study's table, with one column instead of three if only the paper or only we have figures.

    >>> from fedstill.reproduce import Published
    >>> grid([Cell("FedAvg", "MNIST", (0.9,), Published(0.91)), Cell("FedAvg", "digits", (0.8,))], "accuracy")
    (['', 'MNIST: paper', 'ours', 'difference', 'digits'], [['FedAvg', '0.910', '0.900 (1)', '-0.010', '0.800 (1)']])
    """
    heads = [""]
    rows = {c.row: [c.row] for c in cells}
    for column in dict.fromkeys(c.column for c in cells):
        here = [c for c in cells if c.column == column]
        published, measured = any(c.paper for c in here), any(c.ours for c in here)
        shown = slice(0, 3) if published and measured else slice(0, 1) if published else slice(1, 2)
        notes = {c.paper.note for c in here if c.paper}
        if not measured and len(notes) == 1:  # shown once, above the column
            column, here = " ".join([column, *(f"({note})" for note in notes if note)]), [_without_note(c) for c in here]
        heads += [f"{column}: paper", "ours", "difference"] if published and measured else [column]
        for row, words in rows.items():
            words += cell_texts(next((c for c in here if c.row == row), None), unit)[shown]
    return heads, list(rows.values())


def _without_note(cell: Cell) -> Cell:
    return replace(cell, paper=replace(cell.paper, note="")) if cell.paper else cell


def cell_texts(found: Cell | None, unit: str) -> list[str]:
    """The three texts of a cell: the paper's, ours, the difference.

    >>> from fedstill.reproduce import Published
    >>> cell_texts(Cell("a", "b", (0.9, 0.92), Published(0.907, 0.004)), "accuracy")
    ['0.907 ± 0.004', '0.910 ± 0.014 (2)', '+0.003']
    """
    if found is None:
        return ["", "", ""]
    digits = 1 if unit == "rounds" else 3
    paper = "-"
    if found.paper:
        spread = f" ± {found.paper.deviation:.{digits}f}" if found.paper.deviation is not None else ""
        paper = f"{found.paper.value:.{digits}f}{spread}" + (f" ({found.paper.note})" if found.paper.note else "")
    reached = [value for value in found.ours if value is not None]
    if not reached:
        missing = "not reached" if unit == "rounds" else "failed"
        return [paper, missing if found.ours else "-", ""]
    spread = f" ± {stdev(reached):.{digits}f}" if len(reached) > 1 else ""
    of = f" ({len(reached)} of {len(found.ours)})" if len(reached) < len(found.ours) else f" ({len(reached)})"
    difference = f"{fmean(reached) - found.paper.value:+.{digits}f}" if found.paper else ""
    return [paper, f"{fmean(reached):.{digits}f}{spread}{of}", difference]
