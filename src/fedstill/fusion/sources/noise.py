"""Noise images."""

from __future__ import annotations

import torch

from fedstill.data.samples import Samples
from fedstill.fusion.sources.contract import SourceContext, check_images, source
from fedstill.task import Task

__all__ = ["noise"]


def noise(task: Task, size: int, rng: torch.Generator) -> Samples:
    """Images of uniform noise over the whole range of pixels (FedDF, Figure 5)."""
    check_images(task)
    return Samples(torch.randint(0, 256, (size, *task.shape), generator=rng, dtype=torch.uint8))


@source("noise", fresh=True)
def _drawn(context: SourceContext) -> Samples:
    """Uniform noise over the whole range of pixels."""
    return noise(context.task, context.size, context.rng)
