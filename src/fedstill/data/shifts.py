"""Labels made wrong on purpose: what a careless or malicious source looks like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples

__all__ = ["flip_labels", "shift_labels"]


def shift_labels(samples: Samples, fraction: float, classes: int, rng: np.random.Generator) -> Samples:
    """Replace the labels of a random ``fraction`` of the samples by the next class: y becomes (y + 1) mod C.

    >>> honest = Samples(torch.zeros(4, 2), torch.tensor([0, 1, 2, 2]))
    >>> shift_labels(honest, 1.0, 3, np.random.default_rng(0)).y.tolist()
    [1, 2, 0, 0]
    """
    labels, chosen = _chosen(samples, fraction, rng)
    return replace(samples, y=torch.where(chosen, (labels + 1) % classes, labels))


def flip_labels(samples: Samples, fraction: float, classes: int, rng: np.random.Generator) -> Samples:
    """Reverse the labels of a random ``fraction`` of the samples: y becomes C - 1 - y.

    >>> honest = Samples(torch.zeros(3, 2), torch.tensor([0, 1, 9]))
    >>> flip_labels(honest, 1.0, 10, np.random.default_rng(0)).y.tolist()
    [9, 8, 0]
    """
    labels, chosen = _chosen(samples, fraction, rng)
    return replace(samples, y=torch.where(chosen, classes - 1 - labels, labels))


def _chosen(samples: Samples, fraction: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    if samples.y is None:
        raise FedstillError("labels cannot be falsified: these samples have none")
    if not 0 <= fraction <= 1:
        raise FedstillError(f"a fraction of samples lies between 0 and 1, not {fraction}")
    chosen = torch.zeros(len(samples), dtype=torch.bool)
    chosen[torch.from_numpy(rng.permutation(len(samples))[: round(fraction * len(samples))])] = True
    return samples.y, chosen.to(samples.y.device)
