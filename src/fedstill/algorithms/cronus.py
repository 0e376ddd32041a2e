"""Cronus: clients agree on soft labels of public data, by a mean that a malicious minority cannot move far.

Chang, Shejwalkar, Shokri and Houmansadr, Cronus: Robust and Heterogeneous Collaborative Learning with Black-Box Knowledge
Transfer, 2019. After training alone, parties upload their predictions of the public samples. The server takes a robust mean of
each sample's soft labels (the spectral filter, whose scale is an option here: see :mod:`fedstill.fusion.weightings.robust`).
Parties then train on their private data together with the public samples and those soft labels. There is no global model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithm import Client, Reply, Round, Server, algorithm
from fedstill.algorithms.fedmd import PublicConsensus, PublicOptions
from fedstill.core.errors import FedstillError
from fedstill.core.message import State
from fedstill.core.options import validated
from fedstill.data.samples import Samples
from fedstill.fusion.weightings import Voting, WeightingContext, make_weighting, options_kind
from fedstill.models.network import Network
from fedstill.task import Task
from fedstill.training.fit import Batch, DataFree, Fit, Term

__all__ = ["Cronus", "CronusOptions", "soft_labels"]


class CronusOptions(PublicOptions):
    """How the server agrees on soft labels, and how clients learn them."""

    weighting: str = "spectral"
    """How the server agrees on a sample's soft label: any weighting that votes (``spectral``, ``median``, ``trimmed-mean``,
    ``vote``)."""

    weighting_options: dict[str, Any] = {}
    """Options of the weighting, listed with each weighting."""

    weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the public samples' soft labels in the clients' loss."""


def soft_labels(public: Samples, targets: Tensor, weight: float, size: int) -> Term:
    """Cross-entropy to soft labels on a batch of ``size`` public samples beside every private batch."""

    def term(batch: Batch) -> Tensor:
        index = torch.randint(len(public), (size,), generator=batch.rng)
        device = batch.logits.device
        logits: Tensor = batch.network(batch.network.normalise(public.x[index].to(device)))
        return -weight * (targets[index].to(device) * logits.log_softmax(1)).sum(1).mean()

    return DataFree(term)


@algorithm
class Cronus(PublicConsensus[CronusOptions]):
    """Robust soft labels on public data."""

    name = "cronus"
    title = "Cronus"
    paper = "Chang et al., 2019"
    parts = {
        "local term": "soft labels of public data",
        "report": "logits of public data",
        "weighting": "spectral filter",
    }
    Options = CronusOptions

    def __init__(self, task: Task, options: CronusOptions | None = None):
        super().__init__(task, options)
        kind = options_kind(self.options.weighting)
        if kind is not None:
            validated(kind, self.options.weighting_options, "algorithm.weighting_options")

    def learn(self, network: Network, client: Client, public: Samples, consensus: State) -> Fit:
        """Train on private data and public soft labels together."""
        size = self.task.config.local.batch_size
        return self.train_privately(network, client, "fit", [soft_labels(public, consensus["labels"], self.options.weight, size)])

    def consensus(self, server: Server, replies: Sequence[Reply], round: Round) -> State:
        """The robust mean of soft labels. Parties send logits and the server takes their softmax, so that every upload is a
        valid soft label."""
        context = WeightingContext(
            [], round.rng("weighting"), self.task, server, self.options.weighting_options, round.number, round.total
        )
        weighting = make_weighting(self.options.weighting, context)
        if not isinstance(weighting, Voting):
            raise FedstillError(f"cronus needs a weighting that votes, e.g. spectral or median, not '{self.options.weighting}'")
        ballot = weighting.vote(torch.stack([reply.part("predictions")["logits"].float() for reply in replies]))
        means = ballot.weights.mean(0).tolist()
        round.note(weights={reply.client: float(f"{mean:.5g}") for reply, mean in zip(replies, means, strict=True)})
        return {"labels": ballot.targets}
