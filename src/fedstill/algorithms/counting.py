"""What FedGen and FedFTG share: clients report how many samples of each class they have, and the server trains a generator."""

from __future__ import annotations

from fedstill.algorithm import Client, Server
from fedstill.algorithms.fedavg import FedAvg, FedAvgT
from fedstill.core.message import Message, State, clone
from fedstill.fusion.weightings.counts import fault as counts_fault
from fedstill.local.reports import make_report
from fedstill.models.generator import Generator

__all__ = ["Counting"]


class Counting(FedAvg[FedAvgT]):
    """FedAvg with label counts in the replies (which reveal each client's label histogram) and a generator on the server."""

    calibrates = False
    sums_models = False

    def generator(self, state: State | None = None) -> Generator:
        """The generator, with ``state`` or its initial weights."""
        raise NotImplementedError

    def trained_generator(self, server: Server) -> Generator:
        """The server's generator."""
        return self.generator(server.parts["generator"])

    def start(self) -> Server:
        """Initial models and generator."""
        server = super().start()
        server.parts["generator"] = clone(self.generator().state_dict())
        return server

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """FedAvg's training, and the number of samples of each class."""
        reply = super().train(message, client, phase)
        return reply.with_parts(counts=make_report("counts", message, client, {}))

    def screen(self, server: Server, client: str, message: Message) -> str | None:
        """Label counts must be one number per class."""
        problem = super().screen(server, client, message) or counts_fault(message.group("counts"), 0)
        if problem is None and len(message.group("counts")["labels"]) != len(self.task.classes):
            return "its 'counts' do not match this task's classes"
        return problem
