"""How well drawn features cover a site's own: Naeem, Oh, Uh, Choi and Yoo, Reliable Fidelity and Diversity Metrics for Generative
Models, ICML 2020.

A classifier that tells the two apart would not do: Gaussians have the means of the features they describe, so a linear classifier
sees no difference; and if all drawn features are similar, the nearest neighbour of any feature may be a drawn one.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["MOST", "NEIGHBOURS", "coverage", "covered"]

NEIGHBOURS = 5  # as the paper advises: features drawn from the site itself would cover 1 - 2^-5 of its own, 97 %
MOST = 500  # of a site's features that are compared: the share is then exact within two points


def coverage(own: Tensor, drawn: Tensor, neighbours: int = NEIGHBOURS) -> float:
    """The share of ``own`` features that have a drawn one no farther away than the ``neighbours``-th nearest of their own kind.

    >>> own = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> coverage(own, torch.tensor([[0.5], [1.5]]), neighbours=1), coverage(own, own)
    (0.5, 1.0)
    """
    if len(own) < 2 or not len(drawn):
        return 0.0
    apart = torch.cdist(own, own)
    apart.fill_diagonal_(torch.inf)
    radius = apart.kthvalue(min(neighbours, len(own) - 1), dim=1).values
    return float((torch.cdist(own, drawn).amin(1) <= radius).double().mean())


def covered(own: Tensor, drawn: Tensor, rng: torch.Generator) -> float:
    """:func:`coverage` of a random part of ``own``, chosen by ``rng``, by as many of ``drawn``, which are in random order."""
    few = torch.randperm(len(own), generator=rng)[:MOST]
    return coverage(own[few].float(), drawn[: len(few)].float())
