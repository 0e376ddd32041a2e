"""Label counts, as FedGen's and FedFTG's servers need to know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedstill.algorithm import Client
from fedstill.core.message import Message, State
from fedstill.local.reports.contract import report

__all__ = ["label_counts"]


@report("counts")
def label_counts(message: Message, client: Client, options: Mapping[str, Any]) -> State:
    """How many samples of each class the client has (this reveals its label histogram)."""
    return {"labels": client.data.counts(len(client.task.classes))}
