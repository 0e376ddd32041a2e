"""Client-level differential privacy of averages: clipped updates, equal weights, noise on their sum.

McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018, Algorithm 1. Every client
takes part in a round with probability q, independently of the others (``clients.fraction``). With the updates ``Delta_k`` of the
clients that did, the server releases

    w <- w + (sum_k clip(Delta_k) + N(0, (z C)^2 I)) / (q N),

with the fixed divisor q N, so that adding or removing a client changes the sum by at most C and nothing else. A client has one
architecture, so that it changes the sum of one; all of them are noised in every round, whoever took part, and a round with nobody
is a round of noise. With adaptive clipping (Andrew et al., NeurIPS 2021), C follows a quantile of the updates' norms, by a noised
count that is paid for by a larger noise on the sums (:mod:`fedstill.fusion.clipping`). docs/privacy.md says what epsilon covers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedstill.algorithm import Reply, Round, Server
from fedstill.config.client_level import ClientLevel
from fedstill.core.accounting import Ledger, exceeds, noise_for
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State
from fedstill.core.streams import secret_stream
from fedstill.fusion.clipping import clipped_to, next_clip, norm_of, sum_noise, update_of
from fedstill.models.binary import binary_weights
from fedstill.models.statistics import buffer_names
from fedstill.task import Task

__all__ = ["CLIENTS", "Sums", "check", "clipped_sums", "fuse", "masked_sums", "start"]

STATE = "client_level"  # the group of the server's values
CLIENTS = "clients"  # the value of a masked sum's reply that says how many clients are in it

Average = Callable[[Server, Sequence[Reply], Round], Server]


@dataclass(frozen=True)
class Sums:
    """The clipped updates of a round, summed by architecture. Nothing of this may be released without noise."""

    updates: dict[str, State]  # by architecture; one without clients is absent
    below: float = 0.0  # the sum of b_k - 1/2, where b_k is whether an update was not clipped
    clipped: int | None = None  # how many were clipped; None if nobody knows


def settings(task: Task) -> ClientLevel:
    """The options."""
    options = task.config.privacy.client
    assert options is not None
    return options


def expected(task: Task, prototype: str | None = None) -> float:
    """The expected number of clients in a round, q N, of one architecture or of all."""
    clients = task.clients
    count = len(clients) if prototype is None else sum(client.prototype == prototype for client in clients.values())
    return task.config.clients.fraction * count


def check(task: Task, merge: str, unbounded: str | None) -> None:
    """Refuse what no clipping covers, before any client trains."""
    options, config = settings(task), task.config
    if unbounded is not None:
        raise FedstillError(
            f"privacy.client covers sums of updates, and {unbounded} uses more of the clients: remove one of them"
        )
    if merge not in ("uniform", "examples"):
        raise FedstillError(f"privacy.client sums updates with equal weights: remove merge = '{merge}'")
    if config.clients.per_round is not None:
        raise FedstillError("privacy.client draws each client by itself: set clients.fraction instead of clients.per_round")
    if config.privacy.secure is not None and options.adaptive is not None:
        raise FedstillError("privacy.secure hides the norms that privacy.client.adaptive counts: remove one of them")
    for name in task.networks.prototypes:
        network = task.networks.get(name)
        if buffer_names(network):
            raise FedstillError(
                f"privacy.client bounds updates of weights, and the BatchNorm statistics of '{name}' would leave unbounded: set "
                "model.norm = 'group'"
            )
        if binary_weights(network):
            raise FedstillError(f"privacy.client bounds updates of weights, and '{name}' sends signs: use another architecture")


def start(task: Task) -> dict[str, Any]:
    """The server's first values: the noise of all rounds, the norm of the first, an empty ledger."""
    options, rate = settings(task), task.config.clients.fraction
    noise = options.noise
    if noise is None:
        assert options.epsilon is not None
        noise = noise_for(options.epsilon, options.delta, rate, task.config.rounds)
    state = {"noise": noise, "clip": options.clip, "ledger": []}
    if options.adaptive is not None:
        sum_noise(noise, count_noise(task, noise))  # refused here, before any client trains
    return {STATE: state}


def count_noise(task: Task, noise: float) -> float:
    """sigma_b: the noise on the number of updates that were not clipped."""
    adaptive = settings(task).adaptive
    assert adaptive is not None
    return adaptive.count_noise or max(expected(task) / 20, noise)


def clipped_sums(server: Server, replies: Sequence[Reply]) -> Sums:
    """The sums of the replies' clipped updates, one reply in memory at a time."""
    clip = server.values[STATE]["clip"]
    updates: dict[str, State] = {}
    below, clipped = 0.0, 0
    for reply in replies:
        update = update_of(reply.model, server.models[reply.prototype])
        inside = norm_of(update) <= clip
        below += float(inside) - 0.5
        clipped += not inside
        _add(updates.setdefault(reply.prototype, {}), clipped_to(update, clip))
    return Sums(updates, below, clipped)


def masked_sums(replies: Sequence[Reply]) -> Sums:
    """The same from secure sums, whose clients clipped: a reply of each architecture holds the mean over its clients."""
    return Sums({r.prototype: {n: t.double() * int(r.message.values[CLIENTS]) for n, t in r.model.items()} for r in replies})


def _add(total: State, update: State) -> None:
    for name, tensor in update.items():
        total[name] = total[name] + tensor if name in total else tensor


def fuse(task: Task, server: Server, sums: Sums, round: Round, average: Average) -> Server:
    """Noise the sums, divide them, account for it; ``average`` gets the released model of each architecture as one reply."""
    options, state = settings(task), dict(server.values[STATE])
    noise, clip = float(state["noise"]), float(state["clip"])
    spent = Ledger.from_values(state["ledger"]).gaussian(noise, task.config.clients.fraction)
    epsilon = spent.epsilon(options.delta)
    if exceeds(epsilon, options.epsilon):  # rounds were added after the noise was chosen
        raise FedstillError(f"round {round.number} would spend more than privacy.client.epsilon = {options.epsilon:g}: stop here")
    adaptive = options.adaptive
    spread = clip * (noise if adaptive is None else sum_noise(noise, count_noise(task, noise)))
    released = []
    for name, before in server.models.items():
        rng = random(options, round, name)
        whole, divisor = sums.updates.get(name, {}), expected(task, name)
        model: State = {}
        for key, tensor in sorted(before.items()):  # a checkpoint may change their order, and must not change the noise
            draw = torch.randn(tensor.shape, generator=rng, dtype=torch.float64) * spread
            model[key] = (tensor.double().cpu() + (whole.get(key, 0.0) + draw) / divisor).to(tensor)
        released.append(_reply(name, model))
    told: dict[str, Any] = {"epsilon": epsilon, "delta": options.delta, "noise": noise, "clip": clip}
    if sums.clipped is not None:
        told["clipped"] = sums.clipped
    if adaptive is not None:
        sigma = count_noise(task, noise)
        error = float(torch.randn((), generator=random(options, round, "count"), dtype=torch.float64)) * sigma
        below = 0.5 + (sums.below + error) / expected(task)  # Andrew et al., Algorithm 1: the noised part that is not clipped
        state["clip"] = next_clip(clip, below, adaptive.quantile, adaptive.rate)
        told |= {"count_noise": sigma, "next_clip": state["clip"]}
    state["ledger"] = spent.values()
    after = average(Server(server.models, server.parts, {**server.values, STATE: state}), released, round)
    round.notes.pop("weights", None)  # of the noised sums
    round.note(privacy={"client": {**told, "covers": covered(task)}})
    return after


def _reply(prototype: str, model: State) -> Reply:
    return Reply("the noised sum", "", prototype, 1, lambda: Message.of(model=model, samples=1))


def random(options: ClientLevel, round: Round, *purpose: str) -> torch.Generator:
    """The stream that noise is drawn from: of the run's seed, or with ``secret`` of the operating system."""
    return secret_stream() if options.secret else round.rng("client-level", *purpose)


def covered(task: Task) -> str:
    """What epsilon covers, in words."""
    config = task.config
    server = "sees the sum of the updates" if config.privacy.secure is not None else "receives the clients' updates"
    known = "" if settings(task).secret else ", and those who know the seed"
    return f"it covers the models of all rounds, for each client, against everyone but the server, which {server}{known}"
