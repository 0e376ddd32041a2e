"""The one place where a privacy mechanism acts on what a site says of its features: counts, sums and second moments by class.

Features are clipped first, so that one sample more or less changes, in its class alone, the count by 1, the sum by at most
``clip`` and the second moments by at most ``clip``^2 (docs/privacy.md). What leaves the site is then computed from what the
mechanism returned and from nothing else. By default nothing acts here, and no noise is added; ``[privacy.reports]`` is a Gaussian
mechanism (:mod:`fedstill.local.reports.noise`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Mechanism", "Moments", "clipped", "gaussian_of", "moments_of"]


@dataclass(frozen=True)
class Moments:
    """Sums over a site's samples, by class. A mechanism that hides which classes a site holds adds those that are missing."""

    labels: Tensor  # (classes,), -1 where samples have no label
    counts: Tensor  # (classes,), of floats: a mechanism may add to them
    sums: Tensor  # (classes, d)
    seconds: Tensor  # (classes, d, d): sums of z z'; or (classes, d): sums of their diagonals, where no more is wanted


Mechanism = Callable[[Moments, float], Moments]
"""What acts on a site's moments, given the norm that features are clipped to, before anything that leaves is computed."""


def clipped(features: Tensor, norm: float | None) -> Tensor:
    """The features (n, d), those longer than ``norm`` scaled down to it.

    >>> clipped(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), 2.5).tolist()
    [[1.5, 2.0], [0.0, 1.0]]
    """
    if norm is None:
        return features
    lengths: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return features * norm / lengths.clamp_min(norm)


def moments_of(features: Tensor, labels: Tensor | None, diagonal: bool = False) -> Moments:
    """The moments of features (n, d) as they are, class by class, or of all together where there are no labels.

    >>> moments_of(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([4, 4])).seconds.tolist()
    [[[10.0, 2.0], [2.0, 4.0]]]
    """
    kinds = labels.unique() if labels is not None else torch.tensor([-1])
    parts = [features if labels is None else features[labels == kind] for kind in kinds]
    return Moments(
        kinds,
        torch.tensor([float(len(part)) for part in parts], dtype=features.dtype),
        torch.stack([part.sum(0) for part in parts]),
        torch.stack([part.square().sum(0) if diagonal else part.T @ part for part in parts]),
    )


def gaussian_of(count: Tensor, total: Tensor, second: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The mean (d,), the remaining variances (d,) and the factors (rank, d) of the Gaussian with these moments. What noise made
    negative of a covariance is left out.

    >>> mean, variance, factors = gaussian_of(torch.tensor(2.0), torch.tensor([2.0]), torch.tensor([[10.0]]), 1)
    >>> mean.tolist(), variance.tolist(), factors.abs().tolist()
    ([1.0], [0.0], [[2.0]])
    """
    mean = total / count
    if not rank:
        diagonal = second.diagonal() if second.ndim == 2 else second
        return mean, (diagonal / count - mean.square()).clamp_min(0), total.new_zeros(0, len(total))
    covariance = second / count - torch.outer(mean, mean)
    sizes, directions = torch.linalg.eigh((covariance + covariance.T) / 2)
    largest = slice(-rank, None)
    factors = (sizes[largest].clamp_min(0).sqrt() * directions[:, largest]).T.flip(0)
    return mean, (covariance.diagonal() - factors.square().sum(0)).clamp_min(0), factors
