"""KD3A: a target model learns what confident sources agree on, and all backbones are merged, weighted by contribution.

Feng et al., KD3A: Unsupervised Multi-Source Decentralized Domain Adaptation via Knowledge Distillation, ICML 2021. A round, as in
the authors' code: (1) every source trains on its own data; (2) the sources vote on the target's samples and the target model
trains on the votes, with mixup; (3) consensus focus (Shapley values of the votes' quality) gives the domains' weights; (4) all
backbones are replaced by their weighted sum, BatchNorm statistics included (the paper's "BatchNorm MMD"); every domain keeps its
classifier.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithm import Algorithm, Client, Options, Reply, Round, Server, algorithm
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State, clone
from fedstill.core.options import Positive
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.distil import distil
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Table, spooled_logits
from fedstill.fusion.merges import weighted_sum
from fedstill.fusion.merges.contributions import Contributions, Focus, contribution_weights, contributions_of, note_focus
from fedstill.fusion.teacher import Teacher, teachers_of
from fedstill.fusion.vote import Gate, knowledge_vote
from fedstill.fusion.vote_norm import VoteNorm, by_batch_statistics
from fedstill.local.private import client_fit
from fedstill.models.network import Network
from fedstill.models.predict import BATCH, accuracy
from fedstill.models.statistics import buffer_names
from fedstill.task import Task
from fedstill.training.optimizers import by_depth, make_optimizer, optimizer_state, restore_optimizer
from fedstill.training.schedules import learning_rate

__all__ = ["KD3A", "KD3AOptions", "domain_weights"]

TARGET = "target"  # the target's key in the weights


PAPER: dict[str, Any] = {
    "contributions": {"method": "leave-one-out"},
    "knowledge": "soft",
    "count": "support",
    "by_examples": True,
    "vote_norm": "own",
}


class KD3AOptions(Options):
    """The defaults are those of the authors' code for digits, with which others compare."""

    preset: Literal["authors-code", "paper"] = "authors-code"
    """``paper`` changes the defaults to those of the paper's text (docs/adaptation.md)."""

    contributions: Contributions = Contributions(gate=Gate(start=0.9, end=0.95, reach=False), variant="kd3a", method="shapley")
    """How the sources' contributions (consensus focus) are measured. For DomainNet the gate starts at 0.8; the paper's text has
    ``leave-one-out``."""

    knowledge: Literal["hard", "soft"] = "hard"
    """The target model's targets: the consensus class (``hard``), or the supporters' mean prediction (``soft``, the paper's
    text)."""

    count: Literal["mask", "support"] = "mask"
    """How much a sample with supporters counts: once (``mask``), or once per supporter (``support``, the paper's text)."""

    mixup: Annotated[float, Field(gt=0)] | None = 2.0
    """Mix target samples and their votes in pairs, in a proportion drawn from Beta(mixup, mixup)."""

    target_epochs: Positive = 1
    """Passes over the target's samples in a round, if ``local.steps`` is not set."""

    batchnorm: Literal["merge", "own"] = "merge"
    """Whether BatchNorm statistics are merged with the weights, or every model keeps its own."""

    classifiers: Literal["own", "merge"] = "own"
    """Whether every model keeps its classifier (the authors' code), or the whole model is merged."""

    vote_norm: VoteNorm = "pool"
    """BatchNorm statistics of the voting sources. ``pool``: those of the target's batches, to which the running statistics drift
    (the authors' code). ``own``: their own running statistics."""

    by_examples: bool = False
    """Weight the contributions by the sources' numbers of examples (the paper's text)."""

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Smoothing of the domains' weights over the rounds; the weights of the first round are not smoothed."""

    keep_momentum: bool = True
    """Keep the optimisers' state from round to round, as in the authors' code."""

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of the paper's text."""
        return PAPER if given.get("preset") == "paper" else {}


def domain_weights(focus: Tensor, known: float, examples: Sequence[int] | None = None) -> tuple[Tensor, float]:
    """The sources' weights and the target's. The target has ``known / (K + 1)``, where ``known`` is the fraction of its samples
    with a confident vote; the sources share the rest in proportion to their focus (equally if all have none).

    >>> sources, target = domain_weights(torch.tensor([3.0, 1.0]), 0.6)
    >>> [round(w, 3) for w in sources.tolist()], round(target, 3)
    ([0.6, 0.2], 0.2)
    """
    target = known / (len(focus) + 1)
    if examples is not None:
        focus = focus * torch.tensor(examples, dtype=focus.dtype)
    return contribution_weights(focus) * (1 - target), target


@algorithm
class KD3A(Algorithm[KD3AOptions]):
    """Vote, train the target model, merge by consensus focus."""

    name = "kd3a"
    title = "KD3A"
    paper = "Feng et al., ICML 2021"
    parts = {
        "merge": "backbones by consensus focus, classifiers kept",
        "source": "the target's unlabelled data",
        "weighting": "knowledge vote",
        "distillation": "hard votes of confident sources, mixup",
    }
    needs = ("target",)
    private_items = ("model",)
    Options = KD3AOptions

    def __init__(self, task: Task, options: KD3AOptions | None = None):
        super().__init__(task, options)
        if len(task.networks.prototypes) > 1:
            raise FedstillError("kd3a averages the backbones of all domains: model.clients must name one architecture")
        self.prototype: str = task.networks.prototypes[0]

    def shared(self, state: State) -> State:
        """The tensors that all domains share: the backbone's parameters, and those that the options add."""
        own = set()
        if self.options.classifiers == "own":
            own |= {name for name in state if name.startswith("head.")}
        if self.options.batchnorm == "own":
            own |= buffer_names(self.task.networks.get(self.prototype))
        return {name: tensor for name, tensor in state.items() if name not in own}

    # -- the source ----------------------------------------------------------------------------------------------------------

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """The shared backbone."""
        return Message.of(model=self.shared(server.models[self.prototype]))

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Train with the source's own classifier; tensors that are not shared stay on the client until the next round."""
        config = client.task.config
        own = client.memory.group("own") or client.task.networks.initial(client.prototype, "source", client.id)
        network = client.task.networks.load(client.prototype, {**own, **message.group("model")})
        rate = learning_rate(config.local.optimizer.lr, config.local.schedule, client.round, config.rounds)
        memory = client.memory.group("optimizer") if self.options.keep_momentum else None
        done = client_fit(network, client, config.local, lr=rate, memory=memory)
        state = clone(network.state_dict())
        kept = {name: tensor for name, tensor in state.items() if name not in message.group("model")}
        client.memory = Message.of(own=kept, optimizer=done.memory)
        return Message.of(model=state, samples=len(client.data), loss=done.loss)

    # -- the target ----------------------------------------------------------------------------------------------------------

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Vote, train on the votes, compute the weights, merge."""
        options, pool = self.options, self.task.pool
        assert pool is not None, "a target domain is a pool"
        gate = options.contributions.gate.at(round.number, round.total)
        teachers = teachers_of(self.task, replies)
        names = [reply.client for reply in replies]
        drifted: dict[int, State] = {}
        table, focus = self.vote(teachers, pool.samples, gate, round, drifted)
        note_focus(focus, names, gate, round)
        known = float((table.sample_weight > 0).double().mean()) if table.sample_weight is not None else 1.0
        target, memory = self.learn(server, table, pool.samples, round)
        self.note_votes(teachers, target, gate, round)
        examples = [reply.samples for reply in replies] if options.by_examples else None
        shares, own = domain_weights(focus.values, known, examples)
        fresh = {**dict(zip(names, shares.tolist(), strict=True)), TARGET: own}
        weights = smoothed(fresh, server.values.get("weights"), options.smoothing)
        round.note(weights=weights, known=known)
        # all backbones become their weighted sum; those of the sources have the statistics after voting
        states = ({**reply.model, **drifted.get(k, {})} for k, reply in enumerate(replies))
        merged = weighted_sum((self.shared(state) for state in [*states, target]), [weights[name] for name in [*names, TARGET]])
        parts = {**server.parts, "optimizer": memory} if memory else server.parts
        return Server({self.prototype: {**target, **merged}}, parts, {**server.values, "weights": weights})

    def vote(
        self,
        teachers: Sequence[Teacher],
        samples: Samples,
        gate: float,
        round: Round,
        drifted: dict[int, State] | None = None,
        batch_size: int = BATCH,
    ) -> tuple[Table, Focus]:
        """The table of votes and the sources' focus; ``drifted`` receives the sources' statistics after voting."""
        options = self.options

        def predict(k: int, network: Network, samples: Samples) -> Tensor:
            logits = by_batch_statistics(network, samples, self.local.batch_size, round.rng("vote", k))
            if drifted is not None:
                names = buffer_names(network)
                drifted[k] = {name: tensor.clone() for name, tensor in network.state_dict().items() if name in names}
            return logits

        chosen = predict if options.vote_norm == "pool" else None
        with spooled_logits(teachers, samples, predict=chosen, batch_size=batch_size) as spooled:
            variant = options.contributions.variant
            votes = [knowledge_vote(logits.softmax(2), gate, variant=variant) for logits in spooled.slices(batch_size)]
            focus = contributions_of(spooled, options.contributions, gate, round.rng("contributions"))
        targets = torch.cat([vote.hard() if options.knowledge == "hard" else vote.knowledge for vote in votes])
        support = torch.cat([vote.support for vote in votes])
        count = (support > 0).to(support.dtype) if options.count == "mask" else support
        return Table(targets, torch.cat([vote.supporters for vote in votes]).to(targets.dtype), count), focus

    def note_votes(self, teachers: Sequence[Teacher], target: State, gate: float, round: Round) -> None:
        """Note the accuracy of the votes, the target model's ceiling, and of the target model before it is merged."""
        evaluation = self.task.config.evaluation
        if not evaluation.ensemble or not evaluation.due(round.number, round.total):
            return
        [test] = self.task.tests.values()
        if test.y is None:
            return
        clock = time.perf_counter()
        table = self.vote(teachers, test, gate, round, batch_size=evaluation.batch_size)[0]
        found = accuracy(self.task.networks.load(self.prototype, target, role="student"), test, evaluation.batch_size)
        round.note(
            ensemble_accuracy=table.accuracy(test.y),
            confident=table.confident(test.y),
            target_accuracy=found,
            evaluate_seconds=time.perf_counter() - clock,
        )

    def learn(self, server: Server, table: Table, samples: Samples, round: Round) -> tuple[State, State]:
        """The target model, trained on the votes as the sources train on their labels, and its optimiser's state."""
        local, options = self.local, self.options
        rate = learning_rate(local.optimizer.lr, local.schedule, round.number, round.total)
        wanted = Distillation(
            epochs=None if local.steps else options.target_epochs,
            steps=local.steps or 1,
            batch_size=local.batch_size,
            optimizer=local.optimizer.model_copy(update={"lr": rate}),
            schedule="constant",
            clip=local.clip,
            patience=None,
            student_norm="train",
            mixup=options.mixup,
        )
        student = self.task.networks.load(self.prototype, server.models[self.prototype], role="student")
        optimizer = make_optimizer(wanted.optimizer, by_depth(student, list(student.parameters()), local.backbone_rate, rate))
        if options.keep_momentum:
            restore_optimizer(optimizer, student.named_parameters(), server.parts.get("optimizer", {}))
        done = distil(student, samples, table, wanted, rng=round.rng("distil"), optimizer=optimizer)
        round.note(distillation={self.prototype: {"steps": done.steps, "first": done.first_loss, "last": done.last_loss}})
        memory = optimizer_state(optimizer, student.named_parameters()) if options.keep_momentum else {}
        return clone(student.state_dict()), memory


def smoothed(fresh: dict[str, float], before: dict[str, float] | None, smoothing: float) -> dict[str, float]:
    """Moving averages of the weights, scaled to sum to one over the present domains; the first weights are not smoothed.

    >>> smoothed({"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.5}, 0.9)
    {'a': 0.55, 'b': 0.45}
    """
    mean = {
        name: smoothing * before.get(name, value) + (1 - smoothing) * value if before else value for name, value in fresh.items()
    }
    total = sum(mean.values())
    return {name: value / total for name, value in mean.items()}
