"""Tables of the results' pages, written from the kept records, so that a page cannot differ from what was measured.

A page holds the place of a table and what it shows; ``make results`` writes what stands between the two marks::

    <!-- table: study = "photographs", columns = "one round", against = "FedAvg", mean = true -->
    <!-- end of table -->

``columns`` is how the names of the columns begin, or a list of them; what they begin with is left out of the heads. ``rows``
lists rows, ``names`` gives some rows and columns other names. ``against`` is the row from which differences are shown, in points.
``mean`` adds the mean over the columns, ``turned`` exchanges rows and columns, ``digits`` is the number of decimals (0 for
rounds).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from fedstill.core.errors import FedstillError, first_line

__all__ = ["PageTable", "filled", "page_table"]

MARK = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
Values = Sequence[float | None]


@dataclass(frozen=True)
class PageTable:
    """What a table of a page shows."""

    study: str
    columns: str | Sequence[str] = ""
    rows: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    against: str | None = None
    mean: bool = False
    turned: bool = False
    digits: int = 3


def filled(text: str, records: Mapping[str, Mapping[str, Any]]) -> str:
    """A page with its tables written anew.

    >>> cells = [{"row": "A", "column": "on x", "ours": [0.5, 0.7]}, {"row": "B", "column": "on x", "ours": [0.6, 0.9]}]
    >>> page = '<!-- table: study = "s", columns = "on", against = "A" -->\\nold\\n<!-- end of table -->'
    >>> print(filled(page, {"s": {"cells": cells, "seeds": [0, 1], "commit": "abc", "command": "fedstill reproduce s"}}))
    <!-- table: study = "s", columns = "on", against = "A" -->
    <BLANKLINE>
    | | x |
    |---|---|
    | A | .600 ± .100 |
    | B | .750 ± .150 (+15.0) |
    <BLANKLINE>
    Seeds 0, 1; commit abc.
    <BLANKLINE>
    <!-- end of table -->
    """

    def table(match: re.Match[str]) -> str:
        told = _told(match[2])
        if told.study not in records:
            raise FedstillError(f"a page has a table of the study '{told.study}', of which no result is kept")
        return f"{match[1]}\n{page_table(records[told.study], told)}\n\n{match[3]}"

    return MARK.sub(table, text)


def _told(text: str) -> PageTable:
    """What a mark says."""
    try:
        return PageTable(**tomllib.loads("t = {" + text.replace("\n", " ") + "}")["t"])
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise FedstillError(f"a page's mark cannot be read: {first_line(error)}: {text}") from None


def page_table(record: Mapping[str, Any], told: PageTable) -> str:
    """The table as Markdown, and where it comes from."""
    chosen = {column: head for column in dict.fromkeys(c["column"] for c in record["cells"]) if (head := _head(column, told))}
    found = {(c["row"], c["column"]): c["ours"] for c in record["cells"] if c["column"] in chosen and c["ours"]}
    rows = [row for row in told.rows or dict.fromkeys(row for row, _ in found) if any(row == r for r, _ in found)]
    if not rows:
        raise FedstillError(f"the kept result of '{told.study}' has no row or column of a page's table: {told.columns}")
    if told.against is not None and all(told.against != row for row, _ in found):
        raise FedstillError(f"the kept result of '{told.study}' has no row '{told.against}' for differences from it")
    if told.mean:
        chosen = {**chosen, "": "mean"}
        for row in rows:
            whole = [found.get((row, column)) for column in chosen if column]
            if all(values is not None and len(values) == len(whole[0] or ()) for values in whole):
                found[row, ""] = [_mean(one) for one in zip(*(values for values in whole if values is not None), strict=True)]
    lines = [["", *(told.names.get(column, head) for column, head in chosen.items())]]
    for row in rows:
        against = told.against if row != told.against else None
        texts = [_text(found.get((row, column)), found.get((against or "", column)), told.digits) for column in chosen]
        lines.append([told.names.get(row, row), *texts])
    if told.turned:
        lines = [list(line) for line in zip(*lines, strict=True)]
    table = ["| " + " | ".join(line).strip() + " |" for line in lines]
    table.insert(1, "|---" * len(lines[0]) + "|")
    return "\n".join([*table, "", _source(record, {(r, c) for r in rows for c in chosen})]).replace("|  |", "| |")


def _head(column: str, told: PageTable) -> str:
    """The head of a column; empty if it is not shown."""
    if not isinstance(told.columns, str):
        return column if column in told.columns else ""
    rest = column.removeprefix(told.columns)
    if not column.startswith(told.columns) or (told.columns and rest[:1] not in ("", " ", ",")):
        return ""
    return rest.strip(" ,") or column


def _mean(values: Values) -> float | None:
    return None if any(v is None for v in values) else fmean(v for v in values if v is not None)


def _text(ours: Values | None, others: Values | None, digits: int) -> str:
    """
    >>> _text([0.5, 0.52], [0.5, 0.5], 3), _text([4.0, None], None, 0), _text([0.25], None, 3)
    ('.510 ± .010 (+1.0)', '4, -', '.250 (one seed)')
    """
    if not ours:
        return ""
    if digits == 0 or any(value is None for value in ours):  # rounds, some of which were never reached
        return ", ".join("-" if value is None else f"{value:.{digits}f}" for value in ours)
    known = [value for value in ours if value is not None]
    text = _number(fmean(known), digits)
    text += f" ± {_number(stdev(known) / sqrt(len(known)), digits)}" if len(known) > 1 else " (one seed)"
    before = [value for value in others or () if value is not None]
    return f"{text} ({100 * (fmean(known) - fmean(before)):+.1f})" if before else text


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.removeprefix("0") if abs(value) < 1 and digits else text


def _source(record: Mapping[str, Any], places: set[tuple[str, str]]) -> str:
    """Seeds and commits of these cells."""
    mine = [cell for cell in record["cells"] if (cell["row"], cell["column"]) in places]
    commits = list(dict.fromkeys(cell.get("commit", record["commit"]) for cell in mine))
    seeds = ", ".join(map(str, record["seeds"]))
    return f"Seed{'s' * (len(record['seeds']) > 1)} {seeds}; commit{'s' * (len(commits) > 1)} {', '.join(commits)}."
