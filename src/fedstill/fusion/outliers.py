"""False sources: left out by their distance from the others, or given less weight if they are seldom the median.

A vote weights sources by their agreement. A mirrored model is confident and wrong on everything, and the vote alone does not
withstand it (docs/results/poisoning.md). The distances of its weights and of its logits from the median give it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedstill.algorithm import Reply, Round
from fedstill.core.options import Part
from fedstill.fusion.ensemble import SpooledLogits
from fedstill.fusion.weightings.robust import Median
from fedstill.task import Task

__all__ = ["Outliers", "drop_far", "median_scores", "near", "sketch"]

WIDTH = 4096  # numbers in a model's sketch; distances are then accurate to a few per cent
FEWEST = 4  # with fewer models, nothing shows which one is the outlier


class Outliers(Part):
    """How false sources are recognised."""

    by: Literal["distance", "scores", "both"] = "both"
    """``distance``: leave out sources whose weights lie further from the median source than ``factor`` times the median distance.
    ``scores``: multiply contributions by FedRAD's scores, the share of samples and classes in which a source's logit is the
    median. ``both``: one after the other."""

    factor: Annotated[float, Field(gt=1)] = 2.0
    """The largest distance that is accepted, in median distances."""


def sketch(parameters: Sequence[Tensor], width: int = WIDTH) -> Tensor:
    """A model's parameters compressed to ``width`` numbers (a count sketch): random signs, then sums of every ``width``-th
    number. Distances stay about the same, so that all models can be compared with one in memory at a time.

    >>> one, other = torch.randn(9000, generator=torch.Generator().manual_seed(0)), torch.zeros(9000)
    >>> abs(float((sketch([one]) - sketch([other])).norm() / one.norm()) - 1) < 0.05
    True
    """
    flat = torch.cat([parameter.detach().flatten().float().cpu() for parameter in parameters])
    signs = torch.randint(0, 2, flat.shape, generator=torch.Generator().manual_seed(0), dtype=torch.int8) * 2 - 1
    return F.pad(flat * signs, (0, -len(flat) % width)).view(-1, width).sum(0)


def near(points: Tensor, factor: float) -> Tensor:
    """Which of ``points`` (n, d) lie within ``factor`` times the median distance from their median; all if there are few.

    >>> near(torch.tensor([[1.0], [1.2], [0.9], [1.1], [-3.0]]), 2.0).tolist()
    [True, True, True, True, False]
    """
    if len(points) < FEWEST:
        return torch.ones(len(points), dtype=torch.bool)
    distance: Tensor = (points - points.median(0).values).norm(dim=1)
    return distance <= factor * distance.median()


def drop_far(task: Task, replies: Sequence[Reply], options: Outliers, round: Round) -> Sequence[Reply]:
    """The replies whose weights lie near the others of their architecture; a note lists the clients left out."""
    kept: set[str] = set()
    for prototype in dict.fromkeys(reply.prototype for reply in replies):
        names = [name for name, _ in task.networks.get(prototype).named_parameters()]  # statistics differ between honest domains
        group = [reply for reply in replies if reply.prototype == prototype]
        points = torch.stack([sketch([model[name] for name in names]) for model in (reply.model for reply in group)])
        kept |= {reply.client for reply, ok in zip(group, near(points, options.factor).tolist(), strict=True) if ok}
    left = [reply.client for reply in replies if reply.client not in kept]
    if left:
        round.note(outliers=left)
    return [reply for reply in replies if reply.client in kept]


def median_scores(spooled: SpooledLogits) -> Tensor:
    """FedRAD's scores: the share of samples and classes in which each source's logit is the median."""
    total, samples = torch.zeros(spooled.spool.shape[0], dtype=torch.float64), 0
    for logits in spooled.slices(4096):
        total += Median().vote(logits).weights.sum(0).to("cpu", torch.float64)
        samples += logits.shape[1]
    return total / max(1, samples)
