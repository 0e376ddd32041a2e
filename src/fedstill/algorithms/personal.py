"""Systems without a global model: every client keeps its own model and exchanges predictions, not weights.

A client's model is its private memory, kept in the run's folder ``clients/``. Since there is no global model to test, clients
report the accuracy of their own, and the accuracy in the history is the mean over the clients; each line says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from typing_extensions import TypeVar

from fedstill.algorithm import Algorithm, Client, Options, Reply, Round, Scores, Server
from fedstill.core.message import Message, clone
from fedstill.local.private import ACCURACY, client_fit
from fedstill.models.network import Network
from fedstill.models.predict import accuracy
from fedstill.training.fit import Fit, Term, steps_of
from fedstill.training.schedules import learning_rate

__all__ = ["PersonalModels", "PersonalOptions", "PersonalT"]


class PersonalOptions(Options):
    """Options common to systems whose clients keep their own models."""

    tested: Literal["everywhere", "own"] = "everywhere"
    """Whether a client's model is tested on every domain's test set, or only on that of its own domain."""


PersonalT = TypeVar("PersonalT", bound=PersonalOptions, covariant=True, default=PersonalOptions)


class PersonalModels(Algorithm[PersonalT]):
    """The base of systems whose clients keep their models: FD, FedMD, Cronus."""

    requires = ("predictions",)
    Options: type[PersonalT] = PersonalOptions  # type: ignore[assignment]  # the default of PersonalT

    def start(self) -> Server:
        """No model; only the clients' accuracies."""
        return Server({}, {}, {"accuracies": {}})

    def own_network(self, client: Client) -> Network:
        """The client's network with its own weights; in its first round, with the architecture's initial weights."""
        return client.task.networks.load(
            client.prototype, client.memory.group("own") or client.task.networks.initial(client.prototype)
        )

    def train_privately(
        self, network: Network, client: Client, purpose: str, terms: Sequence[Term] = (), epochs: int | None = None
    ) -> Fit:
        """Train on the client's private data, as in ``local`` or for a number of epochs."""
        config = self.task.config
        local = config.local.model_copy(update={"epochs": epochs, "steps": None}) if epochs else config.local
        rate = learning_rate(local.optimizer.lr, local.schedule, client.round, config.rounds)
        return client_fit(
            network, client, local, purpose=purpose, planned=self.planned_steps(client, network), lr=rate, terms=terms
        )

    def planned_steps(self, client: Client, network: Network) -> int:
        """The most steps on private data that a client takes in all rounds."""
        return self.task.config.rounds * steps_of(len(client.data), self.task.config.local, network)

    def answer(self, network: Network, client: Client, done: Fit) -> Message:
        """Keep the model, and reply with the values that all these systems send."""
        client.memory = client.memory.with_parts(own=clone(network.state_dict()))
        reply = Message.of(samples=len(client.data), loss=done.loss)
        evaluation = self.task.config.evaluation
        if not evaluation.due(client.round, self.task.config.rounds):
            return reply
        tests = (
            client.task.tests
            if self.options.tested == "everywhere" or client.domain not in client.task.tests
            else {client.domain: client.task.tests[client.domain]}
        )
        size = evaluation.batch_size
        found = {ACCURACY + name: accuracy(network, test, size) for name, test in tests.items() if test.y is not None}
        return reply.with_parts(**found)

    def reported(self, server: Server, replies: Sequence[Reply], round: Round) -> dict[str, dict[str, float]]:
        """Every client's latest accuracies by domain, this round's replies included."""
        round.note(accuracy_of="the mean over the clients' own models")
        known = dict(server.values["accuracies"])
        for reply in replies:
            values = reply.message.values
            found = {key.removeprefix(ACCURACY): float(v) for key, v in values.items() if key.startswith(ACCURACY)}
            known[reply.client] = found or known.get(reply.client, {})
        return known

    def evaluate(self, server: Server) -> Scores:
        """The mean over the clients, by test domain, without clients that are poisoned on purpose."""
        known = server.values["accuracies"]
        honest = {name: found for name, found in known.items() if name not in self.task.poisoned} or known
        by_domain = {domain: [found[domain] for found in honest.values() if domain in found] for domain in self.task.tests}
        return Scores({domain: fmean(found) for domain, found in by_domain.items() if found})
