"""Models sampled around the clients' models: a posterior over weights makes an ensemble larger than the round (FedBE, SWAG).

Replies are read one at a time, so a sample costs the memory of a few models, no matter how many clients there are. Only
parameters are sampled. Buffers are not weights: a perturbed BatchNorm variance may be negative, and then everything is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedstill.algorithm import Reply
from fedstill.core.message import State
from fedstill.fusion.merges.average import weighted_sum

__all__ = ["Moments", "dirichlet_sample", "gaussian_sample", "moments", "swag_sample", "unit_gaussian_sample", "unit_moments"]

Moments = tuple[State, State]  # mean and variance of every parameter


def _normal(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=rng.device).to(like.device)


def moments(replies: Sequence[Reply], names: set[str], weights: Sequence[float]) -> Moments:
    """The weighted mean and variance over the clients' models of each parameter in ``names``."""
    mean: State = {}
    square: State = {}
    for reply, weight in zip(replies, weights, strict=True):
        model = reply.model
        for name in names:
            value = model[name].double()
            mean[name] = mean.get(name, 0) + weight * value
            square[name] = square.get(name, 0) + weight * value.square()
    return mean, {name: (square[name] - mean[name].square()).clamp_min(0) for name in names}


def gaussian_sample(around: Moments, base: State, scale: float, rng: torch.Generator) -> State:
    """``w = mean + sqrt(scale * variance) * e`` (FedBE); tensors that are not sampled are taken from ``base``.

    >>> narrow = ({"w": torch.tensor([3.0])}, {"w": torch.tensor([0.0])})
    >>> gaussian_sample(narrow, {"w": torch.zeros(1), "count": torch.tensor(5)}, 1.0, torch.Generator())
    {'w': tensor([3.]), 'count': tensor(5)}
    """
    mean, variance = around
    drawn = {name: mean[name] + (scale * variance[name]).sqrt() * _normal(mean[name], rng) for name in sorted(mean)}
    return {name: drawn[name].to(tensor.dtype) if name in drawn else tensor for name, tensor in base.items()}


def unit_moments(replies: Sequence[Reply], names: set[str], before: State) -> tuple[State, State, State]:
    """Mean and variance of the clients' updates ``(w_k - w_old) / ||w_k - w_old||``, tensor by tensor, and the mean of the
    norms. The variance is at least 1e-5."""
    mean: State = {}
    square: State = {}
    norm: State = {}
    share = 1 / len(replies)
    for reply in replies:
        model = reply.model
        for name in names:
            step = model[name].double() - before[name].to(model[name].device, torch.float64)
            length = step.norm()
            unit = step / length.clamp_min(1e-12)
            mean[name] = mean.get(name, 0) + share * unit
            square[name] = square.get(name, 0) + share * unit.square()
            norm[name] = norm.get(name, 0) + share * length
    return mean, {name: (square[name] - mean[name].square()).clamp_min(1e-5) for name in names}, norm


def unit_gaussian_sample(
    found: tuple[State, State, State], before: State, base: State, spread: float, rng: torch.Generator
) -> State:
    """``w = w_old + mean||.|| * (m + spread * sqrt(v) * e)``, as FedBE's authors sample."""
    mean, variance, norm = found
    drawn = {
        name: before[name].to(mean[name].device, torch.float64)
        + norm[name] * (mean[name] + spread * variance[name].sqrt() * _normal(mean[name], rng))
        for name in sorted(mean)
    }
    return {name: drawn[name].to(tensor.dtype) if name in drawn else tensor for name, tensor in base.items()}


def dirichlet_sample(replies: Sequence[Reply], names: set[str], base: State, alpha: float, rng: torch.Generator) -> State:
    """``w = sum_k p_k w_k`` with ``p ~ Dir(alpha)`` over the clients (FedBE)."""
    draw = torch._standard_gamma(torch.full((len(replies),), alpha, dtype=torch.float64), generator=rng)
    shares = (draw / draw.sum()).tolist()
    mixed = weighted_sum(({name: reply.model[name] for name in sorted(names)} for reply in replies), shares)
    return {name: mixed.get(name, tensor) for name, tensor in base.items()}


def swag_sample(replies: Sequence[Reply], around: Moments, base: State, scale: float, rng: torch.Generator) -> State:
    """``w = mean + sqrt(scale) * (sqrt(variance) * e1 + D^T e2 / sqrt(m - 1))``: SWAG over the clients' models.

    A row of ``D`` is a client's deviation from the mean of the clients *up to it*, so the order of the replies matters; it is
    their order in the round. The SWAG paper has ``scale = 0.5``.
    """
    mean, variance = around
    factors = torch.randn(len(replies), generator=rng, dtype=torch.float64).tolist()
    low_rank: State = {}
    running: State = {}
    for k, (reply, factor) in enumerate(zip(replies, factors, strict=True)):
        model = reply.model
        for name in mean:
            value = model[name].double()
            running[name] = value if k == 0 else (running[name] * k + value) / (k + 1)
            low_rank[name] = low_rank.get(name, 0) + factor * (value - running[name])
    rows = max(1, len(replies) - 1) ** 0.5
    drawn = {
        name: mean[name]
        + scale**0.5 * (variance[name].clamp_min(1e-30).sqrt() * _normal(mean[name], rng) + low_rank[name] / rows)
        for name in sorted(mean)
    }
    return {name: drawn[name].to(tensor.dtype) if name in drawn else tensor for name, tensor in base.items()}
