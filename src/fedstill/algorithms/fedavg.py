"""FedAvg: average the clients' weights.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypeVar

from fedstill.algorithm import Algorithm, Client, Options, Reply, Round, Server, algorithm
from fedstill.core.message import Message
from fedstill.fusion.merges import MergeName, make_merge, note_shares
from fedstill.fusion.worst import DropWorst, check_worst, drop_worst
from fedstill.local.update import local_update
from fedstill.task import Task
from fedstill.training.fit import Term

__all__ = ["FedAvg", "FedAvgOptions", "FedAvgT"]


class FedAvgOptions(Options):
    """How the clients' models become one."""

    merge: MergeName = "examples"
    """How the clients' models are merged: weighed by their numbers of examples in the paper."""

    drop_worst: DropWorst | None = None
    """Leave out clients that predict no better than chance (FedDF, Table 3); needs ``data.validation``."""


FedAvgT = TypeVar("FedAvgT", bound=FedAvgOptions, covariant=True, default=FedAvgOptions)


@algorithm
class FedAvg(Algorithm[FedAvgT]):
    """``w <- sum_k n_k/n w_k`` over the round's clients."""

    name = "fedavg"
    title = "FedAvg"
    paper = "McMahan et al., AISTATS 2017"
    parts = {"merge": "average by examples"}
    Options: type[FedAvgT] = FedAvgOptions  # type: ignore[assignment]  # the default of FedAvgT

    def __init__(self, task: Task, options: FedAvgT | None = None):
        super().__init__(task, options)
        check_worst(task, self.options.drop_worst)

    def terms(self, message: Message, client: Client) -> Sequence[Term]:
        """What the local objective has besides cross-entropy."""
        return ()

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Local SGD from the global weights."""
        return local_update(message, client, self.terms(message, client))

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """The weighted average, prototype by prototype."""
        return self.averaged(server, self.trusted(replies, round), round)

    def trusted(self, replies: Sequence[Reply], round: Round) -> Sequence[Reply]:
        """The replies that are not dropped."""
        return drop_worst(self.task, replies, self.options.drop_worst, round)

    def averaged(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """The average of all of these replies."""
        merged = make_merge(self.options.merge)(self.task, server, replies, round)
        note_shares(self.options.merge, replies, round)
        return Server(merged, server.parts, server.values)
