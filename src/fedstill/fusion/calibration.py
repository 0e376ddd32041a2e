"""Classifier calibration: after averaging, the head is retrained on features drawn from the clients' statistics.

Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data (CCVR, NeurIPS 2021). The
clients describe their features under the merged model, class by class (Eq. 3); the server draws virtual features with their
classes as labels (Eq. 6) and trains only the head on them (Eq. 7). The paper combines the clients' Gaussians of a class into one
(Eq. 4 and 5); here features are drawn from each client's own Gaussians, in proportion to its samples, which preserves their
differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from fedstill.algorithm import Reply, Round
from fedstill.core.errors import FedstillError
from fedstill.core.message import State
from fedstill.core.options import Part, Positive
from fedstill.data.samples import Samples
from fedstill.fusion.feature_map import note_features
from fedstill.fusion.sources.statistics import draw_virtual
from fedstill.local.reports.statistics import Statistics, statistics_bytes, statistics_shape
from fedstill.models.heads import HeadOnly
from fedstill.models.predict import apply
from fedstill.models.trunk import Top
from fedstill.task import Task
from fedstill.training.fit import fit
from fedstill.training.options import Local, Optimizer

__all__ = ["Calibration", "calibrated"]


class Calibration(Part):
    """How the head of an averaged model is retrained."""

    when: Literal["last", "every"] = "last"
    """When: after the last round, as in the paper, or after every round, so that training continues from the result."""

    statistics: Statistics = Statistics()
    """How clients describe their features."""

    size: Positive = 10_000
    """Number of features to draw."""

    epochs: Positive = 5
    """Passes over them."""

    batch_size: Positive = 128
    """Samples in a batch."""

    optimizer: Optimizer = Optimizer(name="adam", lr=1e-3)
    """The head's optimiser."""


def calibrated(
    task: Task, models: Mapping[str, State], replies: Sequence[Reply], options: Calibration, round: Round
) -> dict[str, State]:
    """The models with heads trained on virtual features, each on those of its prototype's clients; nothing else changes."""
    note_features(task, models, replies, round)
    found = dict(models)
    local = Local(epochs=options.epochs, batch_size=options.batch_size, optimizer=options.optimizer)
    for name in models:
        mine = [reply for reply in replies if reply.prototype == name]
        if not mine:
            continue
        network = task.networks.load(name, models[name], role="student")
        virtual = draw_virtual(mine, options.size, statistics_shape(task, name), round.rng("calibrate", name))
        told = torch.nonzero(virtual.labels >= 0).flatten()  # rare classes described together have no label
        if not len(told):
            raise FedstillError("no client described any class separately, so no head can be calibrated: lower min_samples")
        z = virtual.samples.take(told) if len(told) < options.size else virtual.samples
        features = apply(network.features, network, z) if isinstance(network, Top) else z.x
        fit(HeadOnly(network), Samples(features, virtual.labels[told]), local, rng=round.rng("calibrate", name, "fit"))
        found[name] = task.networks.snapshot(name, role="student")
    round.note(calibrated=sum(statistics_bytes(reply.part("statistics")) for reply in replies))
    return found
