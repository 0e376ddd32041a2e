"""MOON: clients pull their features towards the global model's and away from their own previous model's.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021. The local objective is cross-entropy plus
``mu * -log( exp(sim(z, z_glob)/tau) / (exp(sim(z, z_glob)/tau) + exp(sim(z, z_prev)/tau)) )``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from fedstill.algorithm import Client, algorithm
from fedstill.algorithms.fedavg import FedAvg, FedAvgOptions
from fedstill.core.message import Message
from fedstill.core.options import Part
from fedstill.local.terms import model_contrastive
from fedstill.local.update import local_update
from fedstill.training.fit import Term

__all__ = ["Contrastive", "Moon", "contrastive_terms"]


class Contrastive(Part):
    """MOON's term in the clients' objective."""

    mu: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the term."""

    temperature: Annotated[float, Field(gt=0)] = 0.5
    """Temperature of the similarities."""


class MoonOptions(FedAvgOptions):
    """The contrastive term. The paper's network has a two-layer projection head, ``model.options = { projection = 256 }``."""

    mu: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the contrastive term; the paper tunes it from 0.1 to 10 and takes 5 for CIFAR-10."""

    temperature: Annotated[float, Field(gt=0)] = 0.5
    """Temperature tau of the similarities."""


def contrastive_terms(message: Message, client: Client, mu: float, temperature: float) -> Sequence[Term]:
    """The term against the previous local model in the client's memory; empty in the client's first round, when there is no
    previous model (the loss over one candidate is zero)."""
    previous = client.memory.group("previous")
    if not previous or mu == 0:
        return ()
    frozen = client.task.networks.load(client.prototype, message.group("model"), role="global")
    old = client.task.networks.load(client.prototype, previous, role="previous")
    return (model_contrastive(frozen, [old], mu, temperature),)


@algorithm
class Moon(FedAvg[MoonOptions]):
    """FedAvg with the model-contrastive term; the previous model is the client's private state."""

    name = "moon"
    title = "MOON"
    paper = "Li, He and Song, CVPR 2021"
    parts = {"local term": "model-contrastive", "merge": "average by examples"}
    Options = MoonOptions

    def terms(self, message: Message, client: Client) -> Sequence[Term]:
        """The contrastive term."""
        return contrastive_terms(message, client, self.options.mu, self.options.temperature)

    def update(self, message: Message, client: Client) -> Message:
        """Train, and keep the result as the previous model."""
        reply = local_update(message, client, self.terms(message, client))
        client.memory = client.memory.with_parts(previous=reply.group("model"))
        return reply
