"""Shuffled index batches, for whole epochs or a number of steps, none too small for batch statistics."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedstill.models.layers import BatchNorm
from fedstill.training.options import Local

__all__ = ["batches", "smallest_batch", "steps_an_epoch"]


def batches(
    n: int, size: int, rng: torch.Generator, *, epochs: int = 1, steps: int | None = None, drop_last: bool = False, least: int = 1
) -> Iterator[Tensor]:
    """Shuffled index batches: whole epochs, or exactly ``steps`` batches over as many epochs as that takes.

    A last batch of fewer than ``least`` samples is left out and does not count as a step.

    >>> [len(b) for b in batches(5, 2, torch.Generator().manual_seed(0))]
    [2, 2, 1]
    >>> len(list(batches(5, 2, torch.Generator().manual_seed(0), steps=7)))
    7
    >>> [len(b) for b in batches(5, 2, torch.Generator().manual_seed(0), steps=5, least=2)]
    [2, 2, 2, 2, 2]
    """
    if min(n, size) < least:
        return
    done = 0
    epoch = 0
    while steps is not None or epoch < epochs:
        order = torch.randperm(n, generator=rng)
        for index in order.split(size):
            if len(index) < (min(size, n) if drop_last else least):
                break
            yield index
            done += 1
            if steps is not None and done == steps:
                return
        epoch += 1


def smallest_batch(network: nn.Module) -> int:
    """The fewest samples of a batch: two if the network needs batch statistics, which one sample cannot give."""
    return 2 if any(isinstance(module, BatchNorm) for module in network.modules()) else 1


def steps_an_epoch(samples: int, local: Local, network: nn.Module) -> int:
    """The number of batches of one pass, without a last one that is too small or dropped.

    >>> [steps_an_epoch(33, Local(batch_size=32), network) for network in (nn.Linear(1, 1), nn.BatchNorm1d(1))]
    [2, 1]
    """
    full, rest = divmod(samples, local.batch_size)
    return max(1, full + (rest >= smallest_batch(network) and not local.drop_last))
