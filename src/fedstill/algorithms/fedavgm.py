"""FedAvgM: FedAvg with momentum on the server.

Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.
With the round's pseudo-gradient ``d = w - average``::

    heavy-ball (the FedDF paper and its code):  v <- beta v + d,             w <- w - v
    ema (MOON's and FedBE's code):              v <- beta v + (1 - beta) d,  w <- w - v
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field

from fedstill.algorithm import Reply, Round, Server, algorithm
from fedstill.algorithms.fedavg import FedAvg, FedAvgOptions
from fedstill.core.message import State
from fedstill.fusion.merges import with_statistics

__all__ = ["FedAvgM", "momentum_step"]


class FedAvgMOptions(FedAvgOptions):
    """The server's momentum."""

    beta: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Momentum of the server; FedDF searches 0.1 to 0.4."""

    form: Literal["heavy-ball", "ema"] = "heavy-ball"
    """``heavy-ball``: v = beta v + d (FedDF's paper and code). ``ema``: v = beta v + (1 - beta) d (MOON's and FedBE's code)."""


def momentum_step(before: State, average: State, velocity: State, beta: float, form: str, names: set[str]) -> tuple[State, State]:
    """The next weights and velocity. Only the parameters in ``names`` have momentum; buffers are those of the average.

    >>> one, zero = {"w": torch.tensor([1.0])}, {"w": torch.tensor([0.0])}
    >>> w, v = momentum_step(one, zero, {"w": torch.tensor([1.0])}, 0.5, "heavy-ball", {"w"})
    >>> v["w"].item(), w["w"].item()
    (1.5, -0.5)
    """
    gain = 1.0 if form == "heavy-ball" else 1 - beta
    after, kept = dict(average), {}
    for name in names:
        old = velocity.get(name, torch.zeros_like(before[name])).to(before[name].device)
        kept[name] = beta * old + gain * (before[name] - average[name].to(before[name].device))
        after[name] = before[name] - kept[name]
    return after, kept


@algorithm
class FedAvgM(FedAvg[FedAvgMOptions]):
    """FedAvg with server momentum."""

    name = "fedavgm"
    title = "FedAvgM"
    paper = "Hsu et al., 2019"
    parts = {"merge": "momentum"}
    Options = FedAvgMOptions

    def averaged(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Average, then step with momentum; the velocity is part of the server's state."""
        merged = super().averaged(server, replies, round)
        trained = {reply.prototype for reply in replies}
        parts = dict(server.parts)
        for name in trained & set(merged.models):
            weights = {key for key, _ in self.task.networks.get(name).named_parameters()}
            stepped, parts[f"velocity-{name}"] = momentum_step(
                server.models[name],
                merged.models[name],
                server.parts.get(f"velocity-{name}", {}),
                self.options.beta,
                self.options.form,
                weights,
            )
            merged.models[name] = with_statistics(self.task, name, stepped)  # of the final weights, not of the average
        return Server(merged.models, parts, server.values)
