"""FedMD: clients of any architecture agree on the logits of public data.

Li and Wang, FedMD: Heterogenous Federated Learning via Model Distillation, 2019. In a round, every party receives the last
consensus, *digests* it (learns the consensus logits of that round's public subset), *revisits* its private data, and uploads its
logits on the next subset, drawn from the round's random stream so that all parties draw the same one. There is no global model.

The paper first trains on labelled public data. The public data here is the server's pool, which has no labels, so parties start
with their private data alone, and the outputs are only the private classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F
from typing_extensions import TypeVar

from fedstill.algorithm import Client, Reply, Round, Server, algorithm
from fedstill.algorithms.personal import PersonalModels, PersonalOptions
from fedstill.core.message import Message, State
from fedstill.core.options import Positive
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.local.reports.noise import noised_rows
from fedstill.models.network import Network
from fedstill.models.predict import predict_logits
from fedstill.training.fit import Fit, fit, steps_of
from fedstill.training.options import Local, Optimizer

__all__ = ["FedMD", "FedMDOptions", "PublicConsensus", "PublicOptions", "PublicT"]


class PublicOptions(PersonalOptions):
    """Options common to systems that use public data."""

    subset: Positive = 5000
    """Public samples in a round, drawn anew each time."""

    start_epochs: Positive | None = None
    """Epochs of private training before the first exchange (FedMD: up to 25); as in ``local`` if not set."""


class FedMDOptions(PublicOptions):
    """How the consensus is digested. Private data is revisited as in ``local`` (the paper: 4 epochs with batches of 5, or 10 with
    batches of 10)."""

    digest_epochs: Positive = 1
    """Passes over the round's public samples to learn the consensus."""

    digest_batch_size: Positive = 256
    """Public samples in a batch."""

    digest_optimizer: Optimizer = Optimizer(name="adam", lr=1e-3)
    """Optimiser for learning the consensus."""


PublicT = TypeVar("PublicT", bound=PublicOptions, covariant=True, default=PublicOptions)


class PublicConsensus(PersonalModels[PublicT]):
    """The base of systems whose clients agree on predictions of public data: FedMD, Cronus."""

    needs = ("pool",)
    private_items = ("predictions",)  # of public data
    Options: type[PublicT] = PublicOptions  # type: ignore[assignment]  # the default of PublicT

    def public(self, number: int) -> Samples:
        """The public subset of round ``number``, the same for every party."""
        pool = self.task.pool
        assert pool is not None, "checked when the algorithm is created"
        chosen = torch.randperm(len(pool), generator=stream(self.task.seed, "public", number))[: self.options.subset]
        return pool.samples.take(chosen.sort().values)

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """The consensus and the round of its subset; empty in the first round."""
        if "consensus" not in server.parts:
            return Message()
        return Message.of(consensus=server.parts["consensus"], subset=int(server.values["subset"]))

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Digest and revisit, then send the client's logits on this round's subset."""
        network = self.own_network(client)
        if not client.memory.group("own"):
            done = self.train_privately(network, client, "start", epochs=self.options.start_epochs)
        consensus = message.group("consensus")
        if consensus:
            done = self.learn(network, client, self.public(int(message.values["subset"])), consensus)
        elif client.memory.group("own"):  # trained before, but there is no consensus yet
            done = self.train_privately(network, client, "revisit")
        logits = predict_logits(network, self.public(client.round)).cpu()
        if self.task.config.privacy.reports is not None:
            (logits,) = noised_rows(client, "predictions", logits)
        predictions = {"logits": logits.float()}
        return self.answer(network, client, done).with_parts(predictions=predictions)

    def planned_steps(self, client: Client, network: Network) -> int:
        """A client's first training, and one in every round."""
        local = self.task.config.local
        if self.options.start_epochs:
            local = local.model_copy(update={"epochs": self.options.start_epochs, "steps": None})
        return super().planned_steps(client, network) + steps_of(len(client.data), local, network)

    def learn(self, network: Network, client: Client, public: Samples, consensus: State) -> Fit:
        """Train on the consensus on ``public`` samples and on the client's own data."""
        raise NotImplementedError

    def screen(self, server: Server, client: str, message: Message) -> str | None:
        """The reply must hold logits for every public sample of the round."""
        assert self.task.pool is not None
        expected = (min(self.options.subset, len(self.task.pool)), len(self.task.classes))
        found = message.group("predictions").get("logits")
        if found is None or tuple(found.shape) != expected or not found.is_floating_point():
            return f"predictions should be logits of shape {expected}"
        return None

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """The consensus of the round."""
        parts = {"consensus": self.consensus(server, replies, round)}
        return Server({}, parts, {"subset": round.number, "accuracies": self.reported(server, replies, round)})

    def consensus(self, server: Server, replies: Sequence[Reply], round: Round) -> State:
        """The consensus of the replies' logits."""
        raise NotImplementedError


@algorithm
class FedMD(PublicConsensus[FedMDOptions]):
    """Consensus on public logits, digest, revisit."""

    name = "fedmd"
    title = "FedMD"
    paper = "Li and Wang, 2019"
    parts = {"local term": "digest the consensus, revisit private data", "report": "logits of public data"}
    Options = FedMDOptions

    def learn(self, network: Network, client: Client, public: Samples, consensus: State) -> Fit:
        """Digest by the mean absolute error of logits, then revisit; in the other order, the consensus would be forgotten."""
        options = self.options
        digest = Local(epochs=options.digest_epochs, batch_size=options.digest_batch_size, optimizer=options.digest_optimizer)
        lesson = Samples(public.x, consensus["logits"])  # the consensus takes the place of labels
        fit(network, lesson, digest, rng=client.rng("digest"), base_loss=F.l1_loss)
        return self.train_privately(network, client, "revisit")

    def consensus(self, server: Server, replies: Sequence[Reply], round: Round) -> State:
        """The plain mean of the logits, one reply in memory at a time."""
        total = sum((reply.part("predictions")["logits"].double() for reply in replies), torch.zeros(()))
        return {"logits": (total / len(replies)).float()}
