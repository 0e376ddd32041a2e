"""Divergences between the predictions of teachers and student."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["divergence", "sharpened"]


def divergence(
    logits: Tensor,
    targets: Tensor,
    *,
    direction: Literal["forward", "reverse"] = "forward",
    temperature: float = 1.0,
    square: bool = False,
    reduction: Literal["batchmean", "mean"] = "batchmean",
    weight: Tensor | None = None,
) -> Tensor:
    """KL between target probabilities and a student's logits.

    ``forward`` is KL(target || student), FedDF's AVGLOGITS; ``reverse`` is KL(student || target), FedD3A's Eq. 8 as written.
    ``weight`` scales each sample's term. The sum is divided by the number of samples (``batchmean``), or by samples times
    classes (``mean``).

    >>> p, q = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.5, 0.5]])
    >>> round(float(divergence(q.log(), p)), 4), round(float(divergence(q.log(), p, direction="reverse")), 4)
    (0.1308, 0.1438)
    """
    student = F.log_softmax(logits / temperature, dim=1)
    if direction == "forward":
        each = (torch.xlogy(targets, targets) - targets * student).sum(1)
    else:
        each = (student.exp() * (student - targets.clamp_min(1e-12).log())).sum(1)
    if weight is not None:
        each = each * weight
    loss = each.mean() if reduction == "batchmean" else each.mean() / logits.shape[1]
    return loss * temperature**2 if square else loss


def sharpened(targets: Tensor, temperature: float) -> Tensor:
    """``p^(1/T) / sum p^(1/T)``: below 1 the temperature sharpens (FedBE).

    >>> [f"{p:.4f}" for p in sharpened(torch.tensor([[0.8, 0.2]]), 0.5)[0]]
    ['0.9412', '0.0588']
    """
    powered = targets.clamp_min(1e-12).pow(1 / temperature)
    return powered / powered.sum(1, keepdim=True)
