"""SHOT: source models are sent to the target, where their features learn to fit the sources' frozen classifiers.

Liang, Hu and Feng, Do We Really Need to Access the Source Data?, ICML 2020. Sources train with label smoothing and send their
models once. On the target's unlabelled samples, each model's classifier is frozen and the rest minimises

    mean_i H(p_i) - H(mean_i p_i)  +  beta * CE(pseudo-labels)        (information maximisation, self-supervision)

with pseudo-labels from class centroids, refreshed every epoch. With several sources, the adapted models' softmaxes are summed
(``multi = "ensemble"``), or the sources are first averaged as in FedAvg and the average is adapted (``multi = "merged"``).

SHOT has no rounds. Here the first ``source_rounds`` train the sources, and from the last of these on, every round adapts for
``epochs`` passes over the target. With ``source_rounds`` equal to ``rounds`` this is the original: all adaptation at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedstill.algorithm import Algorithm, Client, Options, Reply, Round, Scores, Server, algorithm
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State, clone
from fedstill.core.options import Positive
from fedstill.core.streams import numpy_stream
from fedstill.data.samples import Samples, hold_out
from fedstill.fusion.distillation.transfer import note_merged
from fedstill.fusion.merges import by_examples, merge_models, note_shares, weighted_sum
from fedstill.local.update import local_update
from fedstill.models.network import Network
from fedstill.models.predict import accuracy, apply, predict_logits
from fedstill.training.batches import batches
from fedstill.training.optimizers import by_depth, make_optimizer
from fedstill.training.options import Optimizer

__all__ = ["SHOT", "SHOTOptions", "information_loss", "pseudo_labels"]


class SHOTOptions(Options):
    """The defaults are the paper's for objects. Its networks end in ``model.options = { bottleneck = 256 }``."""

    multi: Literal["ensemble", "merged"] = "ensemble"
    """With several sources: sum the softmaxes of the adapted models, or average the sources into one model and adapt that."""

    source_rounds: Positive | None = None
    """Rounds in which the sources train; half of all if not set. From the last of them on, every round adapts."""

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Label smoothing while the sources train."""

    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Fraction of a source's data to hold out, to choose the best of its rounds (ensemble)."""

    epochs: Positive = 15
    """Passes over the target in a round (30 for digits)."""

    batch_size: Annotated[int, Field(ge=2)] = 64
    """Target samples in a batch."""

    optimizer: Optimizer = Optimizer(lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-3)
    """Optimiser while adapting. Its rate decays as ``lr * (1 + 10 p)^-0.75`` with the share p of all steps."""

    backbone_rate: Annotated[float, Field(gt=0)] = 0.1
    """Factor of the learning rate below the neck, for pretrained backbones; 1 for digits."""

    information: Annotated[float, Field(ge=0)] = 1.0
    """Weight of information maximisation."""

    pseudo: Annotated[float, Field(ge=0)] = 0.3
    """Weight beta of the pseudo-labels (0.1 for MNIST to USPS); 0 is SHOT-IM."""

    threshold: Annotated[int, Field(ge=0)] = 0
    """A class may be assigned if it is predicted for more samples than this (10 for partial adaptation)."""


def information_loss(logits: Tensor, epsilon: float = 1e-5) -> Tensor:
    """``mean_i H(p_i) - H(mean_i p_i)``: each prediction confident, all together diverse. Its least value is -log C.

    >>> sure = torch.tensor([[50.0, 0.0], [0.0, 50.0]])
    >>> [round(float(information_loss(x)), 3) for x in (sure, torch.zeros(2, 2), sure[:1].repeat(2, 1))]  # -log 2, 0, 0
    [-0.693, 0.0, 0.0]
    """
    p = logits.softmax(1)
    each = -(p * (p + epsilon).log()).sum(1).mean()
    mean = p.mean(0)
    return each + (mean * (mean + epsilon).log()).sum()


def pseudo_labels(features: Tensor, probabilities: Tensor, threshold: int = 0) -> Tensor:
    """Every sample's class by the nearest centroid in cosine distance: first with centroids weighted by the predictions, then
    with centroids of the resulting labels. Only classes with more than ``threshold`` samples take part, so no centroid is empty;
    they are counted anew before the second pass, as in the authors' code.

    >>> features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> wrong = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.1, 0.9], [0.1, 0.9]])
    >>> pseudo_labels(features, wrong).tolist()  # the second sample lies with the first
    [0, 0, 1, 1]
    """
    classes = probabilities.shape[1]
    f = F.normalize(torch.cat([features, torch.ones_like(features[:, :1])], 1))
    affinity, labels = probabilities, probabilities.argmax(1)
    for _ in range(2):
        allowed = torch.bincount(labels, minlength=classes) > threshold
        if not bool(allowed.any()):
            break  # no class may be assigned
        centroids = affinity.T @ f / (1e-8 + affinity.sum(0)[:, None])
        nearness = f @ F.normalize(centroids).T
        labels = nearness.masked_fill(~allowed, -torch.inf).argmax(1)
        affinity = F.one_hot(labels, classes).to(f.dtype)
    return labels


@algorithm
class SHOT(Algorithm[SHOTOptions]):
    """Source models adapted to the target without any source data."""

    name = "shot"
    title = "SHOT"
    paper = "Liang, Hu and Feng, ICML 2020"
    parts = {
        "local term": "label smoothing",
        "merge": "none: the adapted models' softmaxes are summed",
        "source": "the target's unlabelled data",
        "distillation": "information maximisation and pseudo-labels, classifier frozen",
    }
    requires = ()
    needs = ("target",)
    everyone = True
    Options = SHOTOptions

    @property
    def source_rounds(self) -> int:
        """The last round in which sources train."""
        rounds = self.task.config.rounds
        return min(self.options.source_rounds or max(1, rounds // 2), rounds)

    def phases(self, round: int) -> Sequence[str]:
        """``source`` while the sources train, then ``adapt``, in which nothing is exchanged."""
        return ("source",) if round <= self.source_rounds else ("adapt",)

    def required(self, phase: str) -> Sequence[str]:
        """Sources send their models; after that, nothing."""
        return ("model",) if phase == "source" else ()

    # -- the source ----------------------------------------------------------------------------------------------------------

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """The initial weights until a source has replied, then nothing; in the merged variant, the average so far."""
        if round.phase == "adapt":
            return Message()
        if self.options.multi == "merged":
            return super().instruct(server, client, round)
        if f"source {client}" in server.parts:  # it continues from its own weights
            return Message()
        return Message.of(model=self.task.networks.initial(self.task.clients[client].prototype))

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Continue training with smoothed labels; a source sends the model of the round that is best on its held-out data."""
        if phase == "adapt":
            return Message.of(samples=len(client.data))
        loss = partial(F.cross_entropy, label_smoothing=self.options.smoothing)
        if self.options.multi == "merged" or not self.options.holdout:
            start = client.memory.group("model") or message.group("model")
            reply = local_update(message, client, start=start, base_loss=loss)
            if self.options.multi == "ensemble":
                client.memory = Message.of(model=reply.group("model"))
            return reply
        kept, held = hold_out(client.data, self.options.holdout, numpy_stream(client.seed, "holdout", client.id))
        client.data = kept
        start = client.memory.group("model") or message.group("model")
        reply = local_update(message, client, start=start, base_loss=loss)
        score = accuracy(client.network, held)
        best, so_far = client.memory.group("best"), float(client.memory.values.get("score", -1.0))
        if not best or not score < so_far:  # on a tie, the later round
            best, so_far = reply.group("model"), score
        client.memory = Message.of(model=reply.group("model"), best=best, score=so_far)
        return Message.of(model=best, samples=len(kept), loss=reply.values["loss"])

    # -- the target ----------------------------------------------------------------------------------------------------------

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Collect the sources' models; when source training ends, adapt."""
        parts, models = dict(server.parts), server.models
        if round.phase == "source":
            if self.options.multi == "merged":
                models = merge_models(self.task, server, replies, by_examples)
            else:
                parts.update({f"source {reply.client}": reply.model for reply in replies})
        if round.number >= self.source_rounds:
            if self.options.multi == "merged":
                models = {name: self.adapt(name, state, round, name) for name, state in models.items()}
            else:
                for name, state in parts.items():
                    client = name.removeprefix("source ")
                    parts[name] = self.adapt(self.task.clients[client].prototype, state, round, client)
        if self.options.multi == "merged":
            note_shares("examples", replies, round)
        else:
            models = self.averages(models, parts)
            note_merged(self.task, models, round)  # the accuracy of the average, not of the ensemble
            names = [name.removeprefix("source ") for name in parts]
            round.note(weights=dict.fromkeys(names, 1 / len(names)))
        return Server(models, parts, server.values)

    def averages(self, models: dict[str, State], parts: dict[str, State]) -> dict[str, State]:
        """The adapted models averaged, prototype by prototype: a single model if one is needed, but a poor one."""
        found = dict(models)
        for prototype in models:
            group = [s for name, s in parts.items() if self.task.clients[name.removeprefix("source ")].prototype == prototype]
            if group:
                found[prototype] = weighted_sum(group, [1 / len(group)] * len(group))
        return found

    def adapt(self, prototype: str, state: State, round: Round, name: str) -> State:
        """``epochs`` passes over the target with the classifier frozen."""
        pool = self.task.pool
        assert pool is not None, "a target domain is a pool"
        network = self.task.networks.load(prototype, state, role="student")
        first = round.number - self.source_rounds
        planned = (round.total - self.source_rounds + 1) * self.options.epochs
        adapt(network, pool.samples, self.options, rng=round.rng("adapt", name), done=first * self.options.epochs, of=planned)
        return clone(network.state_dict())

    def products(self, server: Server) -> dict[str, tuple[str, State]]:
        """For an ensemble, its members, one file per source: the accuracy in the history is that of all together."""
        if self.options.multi == "merged" or not server.parts:
            return super().products(server)
        clients = {name.removeprefix("source "): state for name, state in server.parts.items()}
        return {client: (self.task.clients[client].prototype, state) for client, state in clients.items()}

    def evaluate(self, server: Server) -> Scores:
        """The accuracy of the ensemble as a whole, if there is one."""
        if self.options.multi == "merged" or not server.parts:
            return super().evaluate(server)
        found = {}
        for domain, test in self.task.tests.items():
            assert test.y is not None, "a test set has labels"
            [said] = self.predictions(server, test)
            found[domain] = float((said == test.y).double().mean())
        return Scores(found)

    def predictions(self, server: Server, samples: Samples) -> list[Tensor]:
        """The class with the largest sum of the adapted models' softmaxes."""
        if self.options.multi == "merged" or not server.parts:
            return super().predictions(server, samples)
        size = self.task.config.evaluation.batch_size
        total: Tensor | None = None
        for name, state in server.parts.items():
            prototype = self.task.clients[name.removeprefix("source ")].prototype
            outputs = predict_logits(self.task.networks.load(prototype, state, role="student"), samples, size).softmax(1)
            total = outputs if total is None else total + outputs
        assert total is not None
        return [total.argmax(1).cpu()]


def adapt(
    network: Network, samples: Samples, options: SHOTOptions, *, rng: torch.Generator, done: int = 0, of: int | None = None
) -> None:
    """Adapt ``network`` in place for ``options.epochs`` passes over ``samples``, after ``done`` of ``of`` planned epochs.

    The rate decays as ``lr * (1 + 10 p)^-0.75`` with the share ``p`` of all steps.
    """
    device = next(network.parameters()).device
    classifier = {id(p) for p in network.head.parameters()}
    trained = [p for p in network.parameters() if p.requires_grad and id(p) not in classifier]
    if not trained:
        raise FedstillError("SHOT adapts what is below the classifier, and all of it is frozen: set model.options.bottleneck")
    optimizer = make_optimizer(options.optimizer, by_depth(network, trained, options.backbone_rate, 1.0), 1.0)
    factors = [group["lr"] for group in optimizer.param_groups]
    x_all = samples.x.to(device)
    per_epoch = -(-len(samples) // options.batch_size)
    total = (of or options.epochs) * per_epoch
    step = done * per_epoch
    for _ in range(options.epochs):
        labels = None
        if options.pseudo:
            outputs = apply(lambda x: torch.cat([(f := network.features(x)), network.head(f)], 1), network, samples)
            features, logits = outputs.split([outputs.shape[1] - network.classes, network.classes], 1)
            labels = pseudo_labels(features, logits.softmax(1), options.threshold)
        network.train()
        network.head.eval()
        for index in batches(len(samples), options.batch_size, rng):
            step += 1
            if len(index) == 1:
                continue  # one sample has neither batch statistics nor diversity
            rate = options.optimizer.lr * (1 + 10 * step / total) ** -0.75
            for group, factor in zip(optimizer.param_groups, factors, strict=True):
                group["lr"] = rate * factor
            index = index.to(device)
            logits = network(network.normalise(x_all[index]))
            loss = options.information * information_loss(logits)
            if labels is not None:
                loss = loss + options.pseudo * F.cross_entropy(logits, labels[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    network.zero_grad(set_to_none=True)
