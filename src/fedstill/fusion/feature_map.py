"""A map of features to look at: test samples and virtual features of every domain, each as two numbers.

The sites' own features never leave them. Where test data is at hand, as in every simulation, its features stand in for them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypedDict

import torch
from torch import Tensor

from fedstill.algorithm import Reply, Round
from fedstill.core.message import State
from fedstill.fusion.sources.statistics import draw_virtual
from fedstill.local.reports.statistics import features_of
from fedstill.models.network import Network
from fedstill.task import Task

__all__ = ["FeatureMap", "Points", "note_features", "principal"]

MOST = 200  # points of a domain
ALL = 1000  # of all domains together: many domains have fewer each


class Points(TypedDict):
    """A domain's features along two directions."""

    real: list[list[float]]
    virtual: list[list[float]]


class FeatureMap(TypedDict):
    """What is in ``features.json``."""

    round: int
    explained: float  # the share of the real features' variance that the two directions have
    domains: dict[str, Points]


def note_features(task: Task, models: Mapping[str, State], replies: Sequence[Reply], round: Round) -> None:
    """Make the map in the last round, where there is test data; ``models`` are the weights under which sites described their
    features. Architectures that do not share a frozen trunk have nothing to compare: the map is of the first site's."""
    if round.number != round.total or not task.tests:
        return
    clock = time.perf_counter()
    first = replies[0].prototype
    if first in models:
        alike = [reply for reply in replies if task.networks.trunk is not None or reply.prototype == first]
        round.feature_map = _mapped(task, task.networks.load(first, models[first]), alike, round)
    round.note(evaluate_seconds=round.notes.get("evaluate_seconds", 0.0) + time.perf_counter() - clock)


def _mapped(task: Task, network: Network, replies: Sequence[Reply], round: Round) -> FeatureMap | None:
    names = list(dict.fromkeys([*task.tests, *(reply.domain for reply in replies)]))
    few = max(2, min(MOST, ALL // len(names)))
    real: dict[str, Tensor] = {}
    for name, test in task.tests.items():
        some = torch.randperm(len(test), generator=round.rng("feature map", "real", name))[:few]
        real[name] = features_of(network, test.take(some)).double()
    virtual: dict[str, Tensor] = {}
    for name in names:
        mine = [reply for reply in replies if reply.domain == name]
        size = len(real.get(name, range(few)))
        if mine and size:
            virtual[name] = draw_virtual(mine, size, (-1,), round.rng("feature map", "virtual", name)).samples.x.double()
    together = torch.cat(list(real.values()))
    if not all(bool(torch.isfinite(part).all()) for part in (together, *virtual.values())):
        return None  # of a model that diverged
    centre, directions, explained = principal(together)

    def placed(features: Tensor | None) -> list[list[float]]:
        if features is None:
            return []
        return [[float(f"{value:.4g}") for value in row] for row in ((features - centre) @ directions).tolist()]

    domains: dict[str, Points] = {name: {"real": placed(real.get(name)), "virtual": placed(virtual.get(name))} for name in names}
    return {"round": round.number, "explained": float(f"{explained:.4g}"), "domains": domains}


def principal(features: Tensor) -> tuple[Tensor, Tensor, float]:
    """The mean of features (n, d), their two principal directions (d, 2), and these directions' share of the variance.

    >>> z = torch.tensor([[3.0, 0.0, 5.0], [-3.0, 0.0, 5.0], [0.0, 1.0, 5.0], [0.0, -1.0, 5.0]])
    >>> centre, directions, explained = principal(z)
    >>> centre.tolist(), directions.T.abs().round(decimals=4).tolist(), round(explained, 4)
    ([0.0, 0.0, 5.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], 1.0)
    """
    centre = features.mean(0)
    apart = features - centre
    # of the samples' products, since features may be many thousand numbers wide; nothing is drawn at random
    sizes, vectors = torch.linalg.eigh(apart @ apart.T)
    sizes = sizes.clamp_min(0)
    directions = apart.T @ vectors[:, -2:].flip(1)
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    signed = directions * torch.where(largest < 0, -1.0, 1.0)  # the same whichever way the solver turns them
    return centre, torch.nn.functional.normalize(signed, dim=0), float(sizes[-2:].sum() / sizes.sum().clamp_min(1e-12))
