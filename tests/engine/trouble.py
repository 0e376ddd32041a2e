"""FedDF whose clients misbehave after the first round. Imported by the nodes of a test federation."""

from __future__ import annotations

import time
from typing import Any

import torch

from fedstill.algorithms.feddf import FedDF
from fedstill.core.message import Message


class Trouble(FedDF):
    """One client is too late, one sends NaN, one wrong shapes."""

    name = "trouble"

    def train(self, message: Message, client: Any, phase: str = "train") -> Message:
        reply = super().train(message, client, phase)
        if (client.round, client.id) == (2, "mnist-1"):
            return reply.with_parts(
                model={n: t * torch.nan if t.is_floating_point() else t for n, t in reply.group("model").items()}
            )
        if (client.round, client.id) == (2, "optdigits-0"):
            time.sleep(1.2 * client.task.config.clients.timeout)
        if (client.round, client.id) == (3, "mnist-0"):
            return reply.with_parts(model={n: t.new_zeros(1, 2, 3) for n, t in reply.group("model").items()})
        return reply
