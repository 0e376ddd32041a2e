"""Weightings that ignore the samples: equal, random, or by the number of examples."""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.core.options import Part
from fedstill.data.samples import Samples
from fedstill.fusion.weightings.contract import Ready, WeightingContext, weighting

__all__ = ["Examples", "Random", "Uniform"]


@weighting("avg", summary="the same as uniform (FedD3A, Table 1)", options=Part)
@weighting("uniform", summary="equal weights (FedDF)", options=Part)
class Uniform(Ready):
    """Every teacher has the same weight."""

    def __init__(self, context: WeightingContext):
        self.teachers = len(context.teachers)

    def weights(self, samples: Samples) -> Tensor:
        """1/K everywhere."""
        return torch.full((1, 1), 1 / self.teachers).expand(samples.x.shape[0], self.teachers)


@weighting("random", summary="softmax of noise, new for each sample (FedD3A, Table 1)", options=Part)
class Random(Ready):
    """FedD3A's control: ``softmax(z)`` with standard normal ``z``."""

    def __init__(self, context: WeightingContext):
        self.teachers, self.rng = len(context.teachers), context.rng

    def weights(self, samples: Samples) -> Tensor:
        """One draw per sample."""
        return torch.randn(len(samples), self.teachers, generator=self.rng).softmax(1)


@weighting("examples", summary="in proportion to the clients' numbers of examples", options=Part)
class Examples(Ready):
    """``n_k / sum n`` for every sample."""

    def __init__(self, context: WeightingContext):
        strange = [teacher.name for teacher in context.teachers if teacher.reply is None]
        if strange:
            raise FedstillError(f"weighting 'examples' needs clients as teachers, but {strange[0]} has no examples")
        counts = torch.tensor([float(reply.samples) for reply in context.replies])
        self.shares = counts / counts.sum()

    def weights(self, samples: Samples) -> Tensor:
        """The same row for every sample."""
        return self.shares.expand(samples.x.shape[0], len(self.shares))
