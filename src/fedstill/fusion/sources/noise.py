"""Images of noise."""

from __future__ import annotations

import torch

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.sources.contract import SourceContext, source
from fedstill.task import Task

__all__ = ["check_noise", "noise"]


def check_noise(task: Task) -> None:
    """Refuse a task whose inputs are not images: there is no whole range of anything else."""
    if len(task.shape) != 3:
        raise FedstillError("source.kind = 'noise' makes images; this task's inputs are not images")


def noise(task: Task, size: int, rng: torch.Generator) -> Samples:
    """Images of uniform noise over the whole range of pixels (FedDF, Figure 5)."""
    check_noise(task)
    return Samples(torch.randint(0, 256, (size, *task.shape), generator=rng, dtype=torch.uint8))


@source("noise", fresh=True)
def _drawn(context: SourceContext) -> Samples:
    """Uniform noise over the whole range of pixels."""
    return noise(context.task, context.size, context.rng)
