"""Targets for virtual features: the prediction of the site that each was drawn from, or the class that it was drawn for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from fedstill.fusion.ensemble import Table, spread
from fedstill.fusion.sources.statistics import Virtual
from fedstill.fusion.teacher import Teacher
from fedstill.models.network import Network
from fedstill.models.predict import BATCH, predict_logits

__all__ = ["own_table"]

PIECE = 16 * BATCH  # whole batches, so that predictions are those of all at once


def own_table(
    view: Callable[[Network], Network],
    teachers: Sequence[Teacher],
    virtual: Virtual,
    classes: int,
    *,
    by_label: bool = False,
) -> Table:
    """Each site's predictions on its own features; with ``by_label``, the class of a feature that was drawn for one. Teachers are
    streamed, one in memory at a time. A label is an index into the classes of its own site (``Teacher.places``)."""
    weights = F.one_hot(virtual.origin, len(teachers)).float()
    targets = torch.zeros(len(virtual.origin), classes)
    for k, teacher in enumerate(teachers):
        mine = torch.nonzero(virtual.origin == k).flatten()
        if not len(mine):
            continue
        places = teacher.places or range(classes)
        labels = virtual.labels[mine]
        said = F.one_hot(labels.clamp_min(0), len(places)).float()
        untold = torch.nonzero((labels < 0) | (not by_label)).flatten()
        if len(untold):
            network = view(teacher.load())
            for some in untold.split(PIECE):  # features may lie in a file: never all of them in memory
                said[some] = predict_logits(network, virtual.samples.take(mine[some])).softmax(1).cpu()
        targets[mine] = spread(said, places, classes, 0.0)
    return Table(targets, weights)
