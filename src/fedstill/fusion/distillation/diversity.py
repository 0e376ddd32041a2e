"""The diversity term, which keeps a generator from making the same sample for all noise."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["diversity_loss"]


def diversity_loss(noise: Tensor, made: Tensor) -> Tensor:
    """``exp( -mean_ij ||e_i - e_j||^2 |g_i - g_j| )`` for noise (n, d) and the samples made from it: small if different noise
    gives different samples (FedGen and FedFTG). Distances are means over the dimensions.

    >>> e = torch.tensor([[0.0], [1.0]])
    >>> float(diversity_loss(e, torch.zeros(2, 3))), round(float(diversity_loss(e, torch.tensor([[0.0], [2.0]]))), 4)
    (1.0, 0.3679)
    """
    flat = made.flatten(1)
    apart = torch.cdist(flat, flat, p=1) / flat.shape[1]
    seeds = torch.cdist(noise, noise).square() / noise.shape[1]
    return torch.exp(-(seeds * apart).mean())
