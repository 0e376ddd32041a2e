"""What a client sends besides weights. A report is made with the weights as received, before local training, unless it is
registered with ``after=True``: then ``client.network`` holds the weights just trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedstill.algorithm import Client
from fedstill.core.errors import unknown
from fedstill.core.message import Message, State

__all__ = ["after_training", "make_report", "report"]

_REPORTS: dict[str, Callable[[Message, Client, Mapping[str, Any]], State]] = {}
_AFTER: set[str] = set()


def report(name: str, *, after: bool = False) -> Callable:
    """Register a report under the name of its tensor group."""

    def add(make: Callable[[Message, Client, Mapping[str, Any]], State]) -> Callable:
        _REPORTS[name] = make
        if after:
            _AFTER.add(name)
        return make

    return add


def after_training(name: str) -> bool:
    """Whether the report is made with the trained weights."""
    return name in _AFTER


def make_report(name: str, message: Message, client: Client, options: Mapping[str, Any]) -> State:
    """The report called ``name``, as named tensors."""
    if name not in _REPORTS:
        raise unknown("report", name, _REPORTS)
    return _REPORTS[name](message, client, options)


@report("counts")
def label_counts(message: Message, client: Client, options: Mapping[str, Any]) -> State:
    """How many samples of each class the client has (this reveals its label histogram)."""
    return {"labels": client.data.counts(len(client.task.classes))}
