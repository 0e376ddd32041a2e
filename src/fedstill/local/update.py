"""A client's ordinary turn: load the weights it was sent, train, send them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn import functional as F

from fedstill.algorithm import Client
from fedstill.core.message import Message, State
from fedstill.local.private import client_fit
from fedstill.training.fit import Term
from fedstill.training.schedules import learning_rate

__all__ = ["local_update"]


def local_update(
    message: Message,
    client: Client,
    terms: Sequence[Term] = (),
    start: State | None = None,
    base_loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> Message:
    """Train from ``start`` (the message's model by default) on the client's data and reply with the weights."""
    config = client.task.config
    network = client.task.networks.load(client.prototype, message.group("model") if start is None else start)
    rate = learning_rate(config.local.optimizer.lr, config.local.schedule, client.round, config.rounds)
    done = client_fit(network, client, config.local, lr=rate, terms=terms, base_loss=base_loss)
    return Message.of(model=client.task.networks.snapshot(client.prototype), samples=len(client.data), loss=done.loss)
