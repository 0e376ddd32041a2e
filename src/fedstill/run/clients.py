"""The clients of a run and their data, as recorded in ``clients.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:  # clients.json can be read without torch, which is slow to import
    from fedstill.task import Task

__all__ = ["ClientRecord", "ClientRecords", "client_records"]


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
    clients: list[ClientRecord]


def client_records(task: Task) -> ClientRecords:
    """The clients and their label counts, for ``clients.json``, the table on the console and the bubble chart."""
    counts = task.counts()
    clients: list[ClientRecord] = [
        {
            "id": info.id,
            "domain": info.domain,
            "prototype": info.prototype,
            "samples": info.samples,
            "counts": None if counts is None else counts[info.id],
        }
        for info in task.clients.values()
    ]
    return {"classes": list(task.classes), "clients": clients}
