"""Tables of the command line: drawn on a terminal, plain lines elsewhere. What a user may copy, such as a name, is never cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from fedstill.core.console import console, remark

__all__ = ["print_table"]


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, whole: int = 1, lines: bool = False) -> None:
    """Print a table whose first ``whole`` columns are not wrapped. Elsewhere than on a terminal, a row is one line, whatever its
    length."""
    if not console.is_terminal:
        for text in [title, *plain_lines([heads, *rows])]:
            remark(text)
        return
    shown = Table(title=escape(title), show_lines=lines)
    for place, head in enumerate(heads):
        shown.add_column(escape(head), no_wrap=place < whole, overflow="fold", style="bold" if place == 0 else None)
    for row in rows:
        shown.add_row(*map(escape, row))
    console.print(shown)


def plain_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; the lines of a cell become one.

    >>> plain_lines([["name", "minutes", "what"], ["feddf", "3", "two\\nlines"]])
    ['name   minutes  what', 'feddf  3        two; lines']
    """
    texts = [["; ".join(cell.splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts]
