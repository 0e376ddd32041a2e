"""The clients of a task."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import overload

import numpy as np

from fedstill.data.partition import Shares

__all__ = ["ClientInfo", "ClientTable", "Ids"]


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Who a client is and which of its domain's training samples it holds."""

    id: str
    domain: str
    prototype: str
    indices: np.ndarray

    @property
    def samples(self) -> int:
        """How many samples it holds."""
        return len(self.indices)


class ClientTable(Mapping[str, ClientInfo]):
    """Every client by its id, in order of domain and number. There may be a hundred thousand, so only what they hold is kept, in
    one array for each domain, and a client's record is made when it is asked for.

    The architectures ``dealt`` go to the clients in turn, or with ``by_domain`` to the domains.

    >>> shares = {"a": Shares(np.array([0, 4, 2]), np.array([1, 3])), "b": Shares(np.array([7]), np.array([1]))}
    >>> table = ClientTable(shares, ["mlp", "cnn"])
    >>> list(table), table["a-1"].indices.tolist(), table["b-0"].prototype, "b-1" in table
    (['a-0', 'a-1', 'b-0'], [4, 2], 'mlp', False)
    """

    def __init__(self, shares: Mapping[str, Shares], dealt: Sequence[str], by_domain: bool = False):
        self.shares, self._dealt, self._by_domain = dict(shares), list(dealt), by_domain
        self._place = {domain: place for place, domain in enumerate(self.shares)}
        self.ends = np.cumsum([len(held) for held in self.shares.values()]).tolist()  # by domain: clients up to its last

    @property
    def ids(self) -> Ids:
        """The ids by number."""
        return Ids(self)

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.ends else 0

    def __iter__(self) -> Iterator[str]:
        return (f"{domain}-{i}" for domain, held in self.shares.items() for i in range(len(held)))

    def __getitem__(self, client: str) -> ClientInfo:
        domain, _, number = client.rpartition("-")
        held = self.shares.get(domain, ())
        # "01" and other ways to write a number are no client's
        i = int(number) if number.isdecimal() and len(number) <= len(str(len(held))) else len(held)
        if i >= len(held) or client != f"{domain}-{i}":
            raise KeyError(client)
        return self._record(domain, i, held[i])

    def values(self) -> ValuesView[ClientInfo]:
        """The records, made one after the other."""
        return _Records(self)

    def records(self) -> Iterator[ClientInfo]:
        """The records without looking up an id for each."""
        return (self._record(domain, i, own) for domain, held in self.shares.items() for i, own in enumerate(held))

    def _record(self, domain: str, i: int, indices: np.ndarray) -> ClientInfo:
        place = self._place[domain]
        turn = place if self._by_domain else i + (self.ends[place - 1] if place else 0)
        return ClientInfo(f"{domain}-{i}", domain, self._dealt[turn % len(self._dealt)], indices)


class _Records(ValuesView[ClientInfo]):
    def __init__(self, table: ClientTable):
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[ClientInfo]:
        return self._table.records()


class Ids(Sequence[str]):
    """The ids of a table's clients by number, without a list of them."""

    def __init__(self, table: ClientTable):
        self._table, self._domains = table, list(table.shares)

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[i] for i in range(len(self))[number]]
        number = range(len(self))[number]
        place = bisect_right(self._table.ends, number)
        return f"{self._domains[place]}-{number - (self._table.ends[place - 1] if place else 0)}"
