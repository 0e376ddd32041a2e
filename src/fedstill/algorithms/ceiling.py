"""Ceiling: one model trained on all clients' data in one place (FedD3A, Table 1).

This is not a federated system. It breaks the rule that all others keep: the server reads every client's data. It exists so that
tables can show the cost of privacy, and it runs only in a simulation, which has that data.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedstill.algorithm import Algorithm, Client, Reply, Round, Server, algorithm
from fedstill.core.message import Message, clone
from fedstill.data.samples import Samples
from fedstill.training.fit import fit
from fedstill.training.schedules import learning_rate

__all__ = ["Ceiling"]


@algorithm
class Ceiling(Algorithm):
    """Train on the pooled data, in each round for as many epochs as a client trains locally; nothing is exchanged."""

    name = "ceiling"
    title = "Ceiling"
    paper = "Su, Li and Xue, 2022, Table 1 (all data in one place: not federated)"
    parts = {"local": "none", "server": "all clients' data, pooled"}
    requires = ()
    everyone = True

    def start(self) -> Server:
        """One model."""
        return Server({self.task.networks.student: self.task.networks.initial(self.task.networks.student)})

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """Nothing to do."""
        return Message()

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Report only the number of samples."""
        return Message.of(samples=len(client.data))

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Train the local epochs on the union of the clients' data."""
        shares = [self.task.data_of(reply.client) for reply in replies]
        views = [s.views for s in shares if s.views is not None]
        pooled = Samples(
            torch.cat([s.x for s in shares]),
            torch.cat([s.y for s in shares if s.y is not None]),
            torch.cat(views) if views else None,
        )
        network = self.task.networks.load(self.task.networks.student, server.models[self.task.networks.student])
        rate = learning_rate(self.local.optimizer.lr, self.local.schedule, round.number, round.total)
        fit(network, pooled, self.local, rng=round.rng("fit"), lr=rate)
        round.note(pooled_samples=len(pooled))
        return Server({self.task.networks.student: clone(network.state_dict())})
