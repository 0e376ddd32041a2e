"""The clients of a run and their data, as recorded in ``clients.json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import TYPE_CHECKING, TypedDict

from fedstill.core.files import to_json

if TYPE_CHECKING:  # clients.json can be read without torch, which is slow to import
    from fedstill.task import Task

__all__ = ["ClientRecord", "ClientRecords", "as_json", "client_records"]


PIECE = 1000  # clients that are written at once


class ClientRecord(TypedDict):
    """A client in ``clients.json``."""

    id: str
    domain: str
    prototype: str
    samples: int
    counts: list[int] | None  # of each class; None if the server does not know


class ClientRecords(TypedDict):
    """The contents of ``clients.json``."""

    classes: list[str]
    clients: Iterable[ClientRecord]


def client_records(task: Task) -> ClientRecords:
    """The clients and their label counts, for ``clients.json``, the table on the console and the bubble chart. A client's record
    is made when it is read, and can be read once."""
    return {"classes": list(task.classes), "clients": _records(task)}


def _records(task: Task) -> Iterator[ClientRecord]:
    counts = task.counts()
    for info, own in zip(task.clients.values(), repeat(None) if counts is None else counts, strict=False):
        yield {"id": info.id, "domain": info.domain, "prototype": info.prototype, "samples": info.samples, "counts": own}


def as_json(records: ClientRecords) -> Iterator[str]:
    """The text of ``clients.json`` in pieces, for as many clients as there may be.

    >>> one = {"id": "a-0", "domain": "a", "prototype": "mlp", "samples": 1, "counts": [0, 1]}
    >>> "".join(as_json({"classes": ["0", "1"], "clients": iter([one])})) == to_json({"classes": ["0", "1"], "clients": [one]})
    True
    """
    yield f'{{"classes": {to_json(records["classes"])}, "clients": ['
    clients, comma = iter(records["clients"]), ""
    while piece := list(islice(clients, PIECE)):
        yield comma + to_json(piece)[1:-1]
        comma = ", "
    yield "]}"
