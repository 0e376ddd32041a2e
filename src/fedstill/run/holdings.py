"""A table for the terminal that shows which data each client holds."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from rich.table import Table

from fedstill.run.clients import ClientRecords

__all__ = ["blocks", "who_holds_what"]

_BLOCKS = " ▁▂▃▄▅▆▇█"


class Holding(NamedTuple):
    """A client whose samples are known by class."""

    client: str
    domain: str
    counts: list[int]


@dataclass
class DomainHolding:
    """What the clients of a domain hold together."""

    counts: list[int]  # of each class
    sizes: array[int] = field(default_factory=lambda: array("q"))  # each client's samples
    held: int = 0  # classes that each client holds, summed over the clients

    def add(self, counts: Sequence[int]) -> None:
        """Count one more client."""
        self.counts = [total + own for total, own in zip(self.counts, counts, strict=True)]
        self.sizes.append(sum(counts))
        self.held += sum(own > 0 for own in counts)


def who_holds_what(records: ClientRecords, most: int = 20) -> Table | None:
    """A table of clients, or of domains if there are more than ``most`` clients; None if no client's counts are known.

    The blocks show the classes in order, their height relative to the largest class of the row.

    >>> from rich.console import Console
    >>> clients = [{"id": "mnist-0", "domain": "mnist", "prototype": "mlp", "samples": 60, "counts": [40, 0, 20]},
    ...            {"id": "mnist-1", "domain": "mnist", "prototype": "mlp", "samples": 81, "counts": [1, 40, 40]}]
    >>> Console(width=60).print(who_holds_what({"classes": ["0", "1", "2"], "clients": clients}))
    ... # doctest: +NORMALIZE_WHITESPACE
    client   domain  samples  012
    mnist-0  mnist        60  █ ▄
    mnist-1  mnist        81  ▁██
    """
    classes = records["classes"]
    held: list[Holding] = []
    domains: dict[str, DomainHolding] = {}
    for one in records["clients"]:  # there may be too many to keep them all
        if one["counts"] is not None:
            domains.setdefault(one["domain"], DomainHolding([0] * len(classes))).add(one["counts"])
            if len(held) <= most:
                held.append(Holding(one["id"], one["domain"], one["counts"]))
    if not held:
        return None
    head = "".join(classes) if all(len(name) == 1 for name in classes) else f"{len(classes)} classes"
    if len(held) > most:
        return _by_domain(domains, head)
    table = _table("client", "domain", "samples")
    table.add_column(head, no_wrap=True)
    for client, domain, counts in held:
        table.add_row(client, domain, f"{sum(counts):,}", blocks(counts))
    return table


def blocks(counts: Sequence[int]) -> str:
    """Counts as a row of blocks; any count above 0 is visible.

    >>> blocks([0, 1, 50, 100])
    ' ▁▄█'
    """
    highest = max(max(counts, default=0), 1)
    return "".join(_BLOCKS[-(-8 * int(count) // highest)] for count in counts)


def _by_domain(domains: Mapping[str, DomainHolding], head: str) -> Table:
    table = _table("domain", "clients", "samples", "fewest", "median", "most", "classes held")
    table.add_column(head, no_wrap=True)
    for domain, own in domains.items():
        sizes = own.sizes
        row = [len(sizes), sum(sizes), min(sizes), int(median(sizes)), max(sizes)]
        table.add_row(domain, *(f"{value:,}" for value in row), f"{own.held / len(sizes):.1f}", blocks(own.counts))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in ("client", "domain") else "right")
    return table
