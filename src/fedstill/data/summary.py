"""A table for the terminal that says which client holds what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

__all__ = ["Holding", "who_holds_what"]

_BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Holding:
    """A client, its domain and how many samples of each class it has."""

    client: str
    domain: str
    counts: Sequence[int]


def who_holds_what(holdings: Sequence[Holding], classes: Sequence[str], most: int = 20) -> Table:
    """A table of clients, or of domains where there are more than ``most`` clients.

    The blocks show the classes in order, their height relative to the largest class of the row.

    >>> from rich.console import Console
    >>> holdings = [Holding("mnist-0", "mnist", [40, 0, 20]), Holding("mnist-1", "mnist", [1, 40, 40])]
    >>> Console(width=60).print(who_holds_what(holdings, ["0", "1", "2"]))  # doctest: +NORMALIZE_WHITESPACE
    client   domain  samples  012
    mnist-0  mnist        60  █ ▄
    mnist-1  mnist        81  ▁██
    """
    head = "".join(classes) if all(len(name) == 1 for name in classes) else f"{len(classes)} classes"
    if len(holdings) > most:
        return _by_domain(holdings, head)
    table = _table("client", "domain", "samples")
    table.add_column(head, no_wrap=True)
    for holding in holdings:
        total = f"{sum(holding.counts):,}"
        table.add_row(holding.client, holding.domain, total, blocks(holding.counts))
    return table


def blocks(counts: Sequence[int]) -> str:
    """Counts as a row of blocks; anything above nothing is visible.

    >>> blocks([0, 1, 50, 100])
    ' ▁▄█'
    """
    highest = max(max(counts, default=0), 1)
    return "".join(_BLOCKS[-(-8 * int(count) // highest)] for count in counts)


def _by_domain(holdings: Sequence[Holding], head: str) -> Table:
    table = _table("domain", "clients", "samples", "fewest", "median", "most", "classes held")
    table.add_column(head, no_wrap=True)
    for domain in dict.fromkeys(holding.domain for holding in holdings):
        counts = np.array([holding.counts for holding in holdings if holding.domain == domain])
        sizes = counts.sum(axis=1)
        row = [len(counts), int(sizes.sum()), int(sizes.min()), int(np.median(sizes)), int(sizes.max())]
        held = f"{(counts > 0).sum(axis=1).mean():.1f}"
        table.add_row(domain, *(f"{value:,}" for value in row), held, blocks(counts.sum(axis=0).tolist()))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in ("client", "domain") else "right")
    return table
