"""Clipped updates and a norm that follows them: the parts of client-level differential privacy.

McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent Language Models, ICLR 2018 (clipping, and sums
divided by the expected number of clients). Andrew, Thakkar, McMahan and Ramaswamy, Differentially Private Learning with Adaptive
Clipping, NeurIPS 2021 (Algorithm 1 and Theorem 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.core.message import State

__all__ = ["clipped_to", "next_clip", "norm_of", "sum_noise", "update_of"]


def update_of(after: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> State:
    """A client's update: what it sent less what it was sent, in float64."""
    return {name: tensor.detach().double().cpu() - before[name].detach().double().cpu() for name, tensor in after.items()}


def norm_of(update: Mapping[str, Tensor]) -> float:
    """The Euclidean norm over all tensors together, the same in whatever order they come.

    >>> import torch
    >>> norm_of({"a": torch.tensor([3.0]), "b": torch.tensor([[0.0, 4.0]])})
    5.0
    """
    return math.sqrt(sum(float(tensor.double().square().sum()) for _, tensor in sorted(update.items())))


def clipped_to(update: Mapping[str, Tensor], clip: float) -> State:
    """``update * min(1, clip / norm)`` (McMahan et al., FlatClip).

    >>> import torch
    >>> clipped_to({"a": torch.tensor([3.0, 4.0])}, 2.5)["a"].tolist()
    [1.5, 2.0]
    """
    factor = min(1.0, clip / max(norm_of(update), 1e-300))
    return {name: tensor * factor for name, tensor in update.items()}


def sum_noise(noise: float, count_noise: float) -> float:
    """The noise multiplier of the sums, z_Delta, with which sums and noised counts together cost what ``noise`` (z) costs alone
    (Andrew et al., Theorem 1): ``z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)``. A count of b - 1/2 changes by 1/2, hence the 2.

    >>> round(sum_noise(1.0, 1.0), 4)
    1.1547
    """
    if 2 * count_noise <= noise:
        raise FedstillError(
            f"privacy.client.adaptive.count_noise = {count_noise:g} would spend the whole budget: it must be above half of the "
            f"noise, {noise / 2:g}"
        )
    return float((noise**-2 - (2 * count_noise) ** -2) ** -0.5)


def next_clip(clip: float, below: float, quantile: float, rate: float) -> float:
    """The norm of the next round, for the (noised) part of the updates below this one: ``C exp(-eta_C (b - gamma))`` (Andrew et
    al., Algorithm 1). The exponent is limited, so that noise on few clients cannot make the norm zero or infinite.

    >>> next_clip(2.0, 0.5, 0.5, 0.2), round(next_clip(1.0, 1.0, 0.5, 0.2), 4)
    (2.0, 0.9048)
    """
    return clip * math.exp(-max(-2.0, min(2.0, rate * (below - quantile))))
