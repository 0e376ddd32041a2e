"""FedAvg: average the clients' weights.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import TypeVar

from fedstill.algorithm import Algorithm, Client, Options, Reply, Round, Server, algorithm
from fedstill.algorithms import private_average, secure_average
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.fusion.calibration import Calibration, calibrated
from fedstill.fusion.clipping import update_of
from fedstill.fusion.distillation.transfer import note_merged
from fedstill.fusion.merges import MergeName, make_merge, note_shares
from fedstill.fusion.worst import DropWorst, check_worst, drop_worst
from fedstill.local.reports import make_report
from fedstill.local.reports.statistics import reply_fault
from fedstill.local.update import local_update
from fedstill.task import Task
from fedstill.training.fit import Term

__all__ = ["FedAvg", "FedAvgOptions", "FedAvgT"]

DESCRIBE = "describe"  # the exchange in which clients describe their features under the average


class FedAvgOptions(Options):
    """How the clients' models become one."""

    merge: MergeName = "examples"
    """How the clients' models are merged; in the paper, weighted by their numbers of examples."""

    drop_worst: DropWorst | None = None
    """Leave out clients that predict no better than chance (FedDF, Table 3); needs ``data.validation``."""

    calibrate: bool = False
    """Retrain the head of the average, on features drawn from statistics that the clients report in a further exchange (CCVR,
    NeurIPS 2021)."""

    calibration: Calibration = Calibration()
    """How the head is retrained (``calibrate``)."""


FedAvgT = TypeVar("FedAvgT", bound=FedAvgOptions, covariant=True, default=FedAvgOptions)


@algorithm
class FedAvg(Algorithm[FedAvgT]):
    """``w <- sum_k n_k/n w_k`` over the round's clients."""

    name = "fedavg"
    title = "FedAvg"
    paper = "McMahan et al., AISTATS 2017"
    parts = {"merge": "average by examples"}
    sums_models = True
    private_items: ClassVar[Sequence[str]] = ("model",)
    calibrates: ClassVar[bool] = True  # whether the head of its average can be retrained
    Options: type[FedAvgT] = FedAvgOptions  # type: ignore[assignment]  # the default of FedAvgT

    def __init__(self, task: Task, options: FedAvgT | None = None):
        super().__init__(task, options)
        check_worst(task, self.options.drop_worst)
        if self.options.calibrate and not self.calibrates:
            raise FedstillError(f"{self.title} already trains the average further: remove calibrate")
        self.secure = task.config.privacy.secure is not None
        self.private = task.config.privacy.client is not None
        single = {"drop_worst": self.options.drop_worst, "calibrate": self.options.calibrate}
        needed = next((name for name, given in single.items() if given), None)
        if self.secure:
            secure_average.check(task, self.options.merge, needed)
        if self.private:
            private_average.check(task, self.options.merge, needed)

    def start(self) -> Server:
        """Initial weights; with ``privacy.client``, also the noise and the norm."""
        server = super().start()
        if self.private:
            server.values.update(private_average.start(self.task))
        return server

    def phases(self, round: int) -> Sequence[str]:
        """One exchange, and another if the head is then calibrated; four for a secure sum."""
        if self.secure:
            return secure_average.PHASES
        due = self.options.calibration.when == "every" or round == self.task.config.rounds
        return ("train", DESCRIBE) if self.options.calibrate and due else ("train",)

    def required(self, phase: str) -> Sequence[str]:
        """Statistics in the second exchange, otherwise the model; no model if the sum is secure."""
        if self.secure:
            return secure_average.required(phase)
        return ("statistics",) if phase == DESCRIBE else super().required(phase)

    def sent(self) -> Sequence[str]:
        """The model, and statistics if the head is calibrated."""
        return (*super().sent(), "statistics") if self.options.calibrate else super().sent()

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """The weights; in the later exchanges of a secure sum, what those need."""
        if self.secure and round.phase != secure_average.FIRST:
            return secure_average.instruct(self, server, client, round)
        return super().instruct(server, client, round)

    def terms(self, message: Message, client: Client) -> Sequence[Term]:
        """The terms of the local objective besides cross-entropy."""
        return ()

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Local SGD from the global weights; in the second exchange, statistics of the client's features under the average."""
        if phase == DESCRIBE:
            wanted = self.options.calibration.statistics.model_dump()
            return Message.of(statistics=make_report("statistics", message, client, wanted), samples=len(client.data))
        if self.secure and phase != secure_average.FIRST:
            return secure_average.train(message, client, phase)
        reply = self.update(message, client)
        if self.secure and self.private:
            reply = reply.with_parts(model=update_of(reply.group("model"), message.group("model")))
        return secure_average.withhold(reply, client) if self.secure else reply

    def update(self, message: Message, client: Client) -> Message:
        """Local SGD."""
        return local_update(message, client, self.terms(message, client))

    def screen(self, server: Server, client: str, message: Message) -> str | None:
        """A reply whose statistics cannot be used is dropped, and so is a faulty part of a secure sum."""
        if self.secure:
            return secure_average.fault(self, server, client, message)
        part = message.group("statistics")
        return reply_fault(self.task, client, part) if part else None

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """The weighted average, prototype by prototype; with ``calibrate``, its head is then calibrated."""
        if self.secure:
            merge, average = ("uniform", self.noised) if self.private else (self.options.merge, self.averaged)
            return secure_average.fuse(self, server, replies, round, merge, average)
        if self.private:
            return self.noised(server, replies, round)
        if round.phase == DESCRIBE:
            note_merged(self.task, server.models, round)
            models = calibrated(self.task, server.models, replies, self.options.calibration, round)
            return Server(models, server.parts, server.values)
        return self.averaged(server, self.trusted(replies, round), round)

    def noised(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """The average with noise on the sum of the clipped updates (``privacy.client``)."""
        sums = private_average.masked_sums(replies) if self.secure else private_average.clipped_sums(server, replies)
        after = private_average.fuse(self.task, server, sums, round, self.averaged)
        if not self.secure:
            shares = {reply.client: 1 / private_average.expected(self.task, reply.prototype) for reply in replies}
            round.note(weights={client: float(f"{share:.5g}") for client, share in shares.items()})
        return after

    def trusted(self, replies: Sequence[Reply], round: Round) -> Sequence[Reply]:
        """The replies that are not dropped."""
        return drop_worst(self.task, replies, self.options.drop_worst, round)

    def averaged(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """The average of these replies."""
        merged = make_merge(self.options.merge)(self.task, server, replies, round)
        note_shares(self.options.merge, replies, round)
        return Server(merged, server.parts, server.values)
