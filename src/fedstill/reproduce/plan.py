"""The plan of a study, and the cells of its table: the paper's figure beside ours."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fedstill.core.errors import FedstillError
from fedstill.run.listener import Listener

__all__ = ["Cell", "Job", "Plan", "Published", "Scale", "cell", "published"]

Scale = Literal["tiny", "reduced", "small", "paper"]  # from the smallest; a study that lacks one runs at the next larger


@dataclass(frozen=True)
class Job:
    """One run of a study: a configuration, a seed and a folder."""

    name: str
    folder: Path
    tree: Mapping[str, Any]
    assignments: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """How to run a study."""

    out: Path
    data: Path | None = None
    scale: Scale = "small"
    seeds: tuple[int, ...] = (0,)
    only: tuple[str, ...] = ()  # rows (systems) to run; all if empty
    columns: tuple[str, ...] = ()  # columns (data sets) to run; all if empty
    sets: tuple[str, ...] = ()  # assignments that override the configuration of every run
    line: bool = False  # also run the systems with judge and line, as separate rows
    listener: Callable[[str], Listener] = lambda name: Listener()
    jobs: int = 1  # runs at the same time
    runs: Path | None = None  # the folder of the runs, if several studies share them; otherwise ``out`` has them
    gathered: list[Job] | None = None  # if given, runs are only listed here, and stand-ins are returned
    failed: Mapping[Path, str] = field(default_factory=dict)  # runs that failed: folder -> reason

    @property
    def rehearsing(self) -> bool:
        """Whether the study is asked which runs it needs; one that computes without runs has nothing to do then."""
        return self.gathered is not None

    def wants(self, row: str) -> bool:
        """Whether the plan includes this row; the command line has its name without commas, which separate names there.

        >>> Plan(Path(), only=("kdcl target trained",)).wants("KDCL, target trained")
        True
        """
        return not self.only or row.lower() in self.only or _plain(row) in self.only

    def wants_column(self, column: str) -> bool:
        """Whether the plan includes this column; ``mnist`` includes every column whose first word it is.

        >>> plan = Plan(Path(), columns=("mnist 0.1", "svhn"))
        >>> plan.wants_column("MNIST 0.1"), plan.wants_column("SVHN 10"), plan.wants_column("MNIST 1")
        (True, True, False)
        """
        name = column.lower()
        return not self.columns or any(c in (name, _plain(column)) or name.startswith(c + " ") for c in self.columns)

    def root(self) -> Path:
        """The folder of data sets; an error if it was not given."""
        if self.data is None:
            raise FedstillError("this study needs real data: give its folder with --data DIR")
        return self.data


def _plain(name: str) -> str:
    return name.lower().replace(",", "")


@dataclass(frozen=True)
class Published:
    """A figure of a paper, as printed there."""

    value: float
    deviation: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell: the paper's figure and those of our runs, one value per seed (None: never reached)."""

    row: str
    column: str
    ours: tuple[float | None, ...]
    paper: Published | None = None


@cache
def _papers() -> dict[str, Any]:
    """The papers' figures, one file per paper: study -> row -> column."""
    found: dict[str, Any] = {}
    for path in sorted((Path(__file__).parent / "papers").glob("*.toml")):
        found |= tomllib.loads(path.read_text())
    return found


def published(name: str, row: str, column: str) -> Published | None:
    """The paper's figure in this cell of the study's table, or None if it has no such cell.

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
