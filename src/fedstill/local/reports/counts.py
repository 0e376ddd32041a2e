"""Label counts, as FedGen's and FedFTG's servers need to know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedstill.algorithm import Client
from fedstill.core.message import Message, State
from fedstill.local.reports.contract import report
from fedstill.local.reports.noise import noised

__all__ = ["label_counts"]


@report("counts")
def label_counts(message: Message, client: Client, options: Mapping[str, Any]) -> State:
    """How many samples of each class the client has (this reveals its label histogram). With ``privacy.reports`` they have noise,
    and become the nearest possible counts."""
    counts = client.data.counts(len(client.task.classes))
    if client.task.config.privacy.reports is None:
        return {"labels": counts}
    (told,) = noised(client, "counts", (counts, 1.0))  # one sample changes one count by 1
    told = told.round().clamp_min(0).long()
    return {"labels": told if bool(told.any()) else torch.ones_like(told)}  # noise that leaves nothing tells nothing
