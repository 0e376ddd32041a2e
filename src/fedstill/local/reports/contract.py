"""What a client sends besides weights.

A report is made with the weights as received, before local training, unless it is registered with ``after=True``: then
``client.network`` holds the weights just trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fedstill.algorithm import Client
from fedstill.core.message import Message, State
from fedstill.core.registry import Registry

__all__ = ["REPORTS", "Report", "after_training", "make_report", "report"]

MakeReport = Callable[[Message, Client, Mapping[str, Any]], State]
Make = TypeVar("Make", bound=MakeReport)


@dataclass(frozen=True)
class Report:
    """A report before it is made."""

    make: MakeReport
    after: bool = False  # made with the trained weights


REPORTS: Registry[Report] = Registry("report", group="fedstill.reports", home="fedstill.local.reports")


def report(name: str, *, after: bool = False) -> Callable[[Make], Make]:
    """Register a report under the name of its tensor group."""
    return REPORTS.register(name, lambda make: Report(make, after))


def after_training(name: str) -> bool:
    """Whether the report is made with the trained weights."""
    return REPORTS.get(name).after


def make_report(name: str, message: Message, client: Client, options: Mapping[str, Any]) -> State:
    """The report called ``name``, as named tensors."""
    return REPORTS.get(name).make(message, client, options)
