"""Private votes under a secure sum: the server sees the noised histogram of each sample and nothing of any single client.

With ``[privacy.votes]`` and ``[privacy.secure]`` FedDF's clients keep their models. A client trains from the student, votes for
one class of each pool sample that is asked about, and its votes go through the exchanges of a secure sum in place of weights
(:mod:`fedstill.algorithms.secure_average`). Before they are masked it adds its part of the noise: with t the number of clients
that must stay,

    votes_k + N(0, sigma^2 / (t - 1)),

so that any sum has at least N(0, sigma^2), also for a client who subtracts its own part. Replacing a client moves one vote of a
sample, the histogram by at most sqrt(2). One noised histogram serves the question of confident-GNMax and the answer, so that n
samples cost a Gaussian mechanism each: ``c = n / sigma^2``. docs/privacy.md says what epsilon covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstill.algorithm import Client, Reply, Round, Server
from fedstill.algorithms import secure_average
from fedstill.config.votes import Votes
from fedstill.core.accounting import gaussian_cost
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, clone
from fedstill.core.streams import secret_stream, stream
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.transfer import learn, note_merged
from fedstill.fusion.ensemble import Table
from fedstill.fusion.weightings.private_votes import HISTOGRAM_SENSITIVITY, budget_cost, spent_epsilon
from fedstill.local.update import local_update
from fedstill.models.predict import predict_logits
from fedstill.task import Task
from fedstill.training.fit import Term

if TYPE_CHECKING:  # it imports this module
    from fedstill.algorithms.feddf import FedDF

__all__ = ["check", "fault", "fuse", "instruct", "is_masked", "train"]

ASKED = "asked"  # about how many samples a round asks
COVERS = (
    "epsilon covers the student and what the server sees of the votes, for each client as a whole, if the server follows the "
    "protocol and no clients work together; numbers of samples are public"
)


def is_masked(task: Task) -> bool:
    """Whether votes go through a secure sum."""
    return task.config.privacy.votes is not None and task.config.privacy.secure is not None


def check(system: FedDF) -> None:
    """Refuse what needs a client's model, before any client trains."""
    options, task = system.options, system.task
    if not is_masked(task):
        return
    secure_average.check(task, "uniform", "drop_worst" if options.drop_worst is not None else None)
    if system.personal or options.contrastive or options.line or options.distillation.start == "average":
        raise FedstillError(
            "privacy.votes with privacy.secure hides all weights: set algorithm.line = false and algorithm.distillation.start = "
            "'previous' or 'scratch', and remove model.student and contrastive"
        )


def settings(task: Task) -> Votes:
    """The options of the votes."""
    votes = task.config.privacy.votes
    assert votes is not None
    return votes


def asked(task: Task, before: int) -> int:
    """How many samples a round asks about: the pool, or as many as the budget allows after those ``before``."""
    votes, pool = settings(task), task.pool
    assert pool is not None, "checked when the algorithm is created"
    if votes.epsilon is None:
        return len(pool)
    affordable = budget_cost(votes.epsilon, votes.delta) / gaussian_cost(HISTOGRAM_SENSITIVITY, votes.sigma)
    return max(0, min(len(pool), int(affordable * (1 + 1e-12)) - before))


def samples_of(task: Task, round: int, count: int) -> Samples:
    """The ``count`` pool samples of a round, the same on every client and the server."""
    pool = task.pool
    if pool is None:
        raise FedstillError("privacy.votes asks clients about the pool, which this one does not have: set data.server")
    chosen = torch.randperm(len(pool), generator=stream(task.seed, "masked votes", round))[:count]
    return pool.samples.take(chosen.sort().values)


# -- in each selected client -------------------------------------------------------------------------------------------------


def train(system: FedDF, message: Message, client: Client, phase: str, terms: Sequence[Term]) -> Message:
    """First exchange: train, vote and forget the model. Third: the votes with their noise, masked."""
    task = system.task
    if phase == secure_average.FIRST:
        count, voted = int(message.values[ASKED]), torch.zeros(0, len(task.classes))
        if count:  # otherwise the budget is spent, and there is nothing to train for
            trained = local_update(message, client, terms).group("model")
            network = task.networks.load(client.prototype, trained)
            said = predict_logits(network, samples_of(task, client.round, count)).argmax(1).cpu()
            voted = F.one_hot(said, len(task.classes)).float()
        return secure_average.withhold(Message.of(model={"votes": voted}, samples=len(client.data)), client)
    if phase == secure_average.MASK:
        votes = settings(task)
        rng = secret_stream() if votes.secret else client.rng("masked votes")
        counts = client.memory.group("trained")["votes"].double()
        part = votes.sigma / (int(client.memory.values["threshold"]) - 1) ** 0.5
        noised = counts + part * torch.randn(counts.shape, generator=rng, dtype=torch.float64)
        client.memory = client.memory.with_parts(trained={"votes": noised})
    return secure_average.train(message, client, phase)


# -- in the server -----------------------------------------------------------------------------------------------------------


def instruct(system: FedDF, server: Server, client: str, round: Round) -> Message:
    """First the student's weights and how many samples are asked about; then what the secure sum needs."""
    if round.phase != secure_average.FIRST:
        return secure_average.instruct(system, server, client, round)
    model = server.models[system.task.clients[client].prototype]
    return Message.of(model=model, **{ASKED: asked(system.task, spent(server))})


def spent(server: Server) -> int:
    """About how many samples earlier rounds asked."""
    return int(server.values.get("votes", {}).get("asked", 0))


def in_place_of_models(system: FedDF, server: Server) -> Server:
    """The server's state with a table of votes where each architecture's weights are."""
    count = asked(system.task, spent(server))
    table = torch.zeros(count, len(system.task.classes), dtype=torch.float64)
    return Server({name: {"votes": table} for name in server.models}, server.parts, server.values)


def fault(system: FedDF, server: Server, client: str, message: Message) -> str | None:
    """Why a reply cannot be used, or None."""
    return secure_average.fault(system, in_place_of_models(system, server), client, message)


def fuse(system: FedDF, server: Server, replies: Sequence[Reply], round: Round) -> Server:
    """The server's step after each exchange; after the last, students learn from the noised histograms."""
    told: list[Tensor] = []

    def summed(state: Server, done: Sequence[Reply], round: Round) -> Server:
        told.extend(reply.model["votes"] * int(reply.message.values["clients"]) for reply in done)
        return state

    after = secure_average.fuse(system, in_place_of_models(system, server), replies, round, "uniform", summed)
    if round.phase != secure_average.REVEAL:
        return Server(server.models, after.parts, after.values)
    round.notes.pop("weights", None)  # votes count equally
    return learned(system, server, torch.stack(told).sum(0), Server({}, after.parts, after.values), round)


def learned(system: FedDF, server: Server, histogram: Tensor, after: Server, round: Round) -> Server:
    """Students that learned the answers of confident-GNMax, and what they cost."""
    task, votes = system.task, settings(system.task)
    samples, whole = samples_of(task, round.number, len(histogram)), spent(server) + len(histogram)
    heard = torch.nonzero(histogram.amax(1) >= votes.threshold).flatten() if len(histogram) else torch.empty(0, dtype=torch.int64)
    answered = int(server.values.get("votes", {}).get("answered", 0)) + len(heard)
    epsilon = spent_epsilon(whole * gaussian_cost(HISTOGRAM_SENSITIVITY, votes.sigma), votes.delta)
    assert task.pool is not None
    round.note(
        votes={
            "asked": whole,
            "answered": answered,
            "left_out": len(task.pool) - len(heard),
            "epsilon": epsilon,
            "epsilon_each": epsilon / answered if answered else None,
            "delta": votes.delta,
            "covers": COVERS + votes.limits,
        }
    )
    values = {**after.values, "votes": {"asked": whole, "answered": answered}}
    models = {name: clone(state) for name, state in system.starts(server, server.models, round).items()}
    if len(heard):
        targets = F.one_hot(histogram[heard].argmax(1), len(task.classes)).float().to(task.device)
        table = Table(targets, targets[:, :0], torch.ones(len(heard), device=task.device))
        models = learn(task, models, samples.take(heard), table, system.distillation(round), round)
    else:
        round.notes.setdefault("warnings", []).append(f"round {round.number}: no sample was answered, nothing is learned")
    note_merged(task, server.models, round)
    return Server(models, after.parts, values)
