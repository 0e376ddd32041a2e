"""How a study is to be run, and the cells it fills: the paper's figure beside ours."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fedstill.core.errors import FedstillError
from fedstill.run.listener import Listener

__all__ = ["Cell", "Plan", "Published", "Scale", "cell", "published"]

Scale = Literal["tiny", "small", "paper"]  # a study without a tiny protocol runs its small one: reproduce sees to it


@dataclass(frozen=True)
class Plan:
    """How a study is to be run."""

    out: Path
    data: Path | None = None
    scale: Scale = "small"
    seeds: tuple[int, ...] = (0,)
    only: tuple[str, ...] = ()  # rows (systems) to run, all where empty
    columns: tuple[str, ...] = ()  # columns (data sets) to run, all where empty
    sets: tuple[str, ...] = ()  # assignments laid over every run
    line: bool = False  # also the systems with judge and line, as rows of their own
    listener: Callable[[str], Listener] = lambda name: Listener()

    def wants(self, row: str) -> bool:
        """Whether this row was asked for."""
        return not self.only or row.lower() in self.only

    def wants_column(self, column: str) -> bool:
        """Whether this column was asked for; ``mnist`` asks for every column that begins so.

        >>> plan = Plan(Path(), columns=("mnist 0.1", "svhn"))
        >>> plan.wants_column("MNIST 0.1"), plan.wants_column("SVHN 10"), plan.wants_column("MNIST 1")
        (True, True, False)
        """
        name = column.lower()
        return not self.columns or any(name == c or name.startswith(c + " ") for c in self.columns)

    def root(self) -> Path:
        """The folder of data sets, which this study cannot do without."""
        if self.data is None:
            raise FedstillError("this study needs real data: give its folder with --data DIR")
        return self.data


@dataclass(frozen=True)
class Published:
    """A figure of a paper, as printed there."""

    value: float
    deviation: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell: what the paper has and what our runs gave, one value a seed (None: never reached)."""

    row: str
    column: str
    ours: tuple[float | None, ...]
    paper: Published | None = None


@cache
def _papers() -> dict[str, Any]:
    """The papers' figures, a file a paper: study -> row -> column."""
    found: dict[str, Any] = {}
    for path in sorted((Path(__file__).parent / "papers").glob("*.toml")):
        found |= tomllib.loads(path.read_text())
    return found


def published(name: str, row: str, column: str) -> Published | None:
    """What the paper printed in this cell of the study's table, or None where it has no such cell.

    >>> published("fedd3a-table2", "projection", "MNIST").value
    0.907
    """
    found = _papers().get(name, {}).get(row, {}).get(column)
    if found is None:
        return None
    if isinstance(found, list):
        return Published(float(found[0]), float(found[1]))
    if isinstance(found, dict):
        return Published(float(found["value"]), found.get("deviation"), found.get("note", ""))
    return Published(float(found))


def cell(name: str, row: str, column: str, ours: Sequence[float | None]) -> Cell:
    """A cell with the paper's figure looked up."""
    return Cell(row, column, tuple(ours), published(name, row, column))
