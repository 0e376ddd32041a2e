"""Who holds what: the clients of a run as ``clients.json`` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:  # what clients.json holds can be read without torch, which is slow to import
    from fedstill.task import Task

__all__ = ["ClientRecord", "ClientRecords", "client_records"]


class ClientRecord(TypedDict):
    """A client as ``clients.json`` has it."""

    id: str
    domain: str
    prototype: str
    samples: int
    counts: list[int] | None  # of each class; None where the server does not know


class ClientRecords(TypedDict):
    """What is in ``clients.json``."""

    classes: list[str]
    clients: list[ClientRecord]


def client_records(task: Task) -> ClientRecords:
    """The clients and their label counts, for ``clients.json``, the table on the console and the bubble chart."""
    clients: list[ClientRecord] = [
        {
            "id": info.id,
            "domain": info.domain,
            "prototype": info.prototype,
            "samples": info.samples,
            "counts": task.counts(info.id),
        }
        for info in task.clients.values()
    ]
    return {"classes": list(task.classes), "clients": clients}
