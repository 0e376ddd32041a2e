"""Weights from the clients' label counts (FedFTG's class-level ensemble; Zhang et al., CVPR 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedstill.core.message import State
from fedstill.core.options import Part
from fedstill.fusion.weightings.contract import Scored, WeightingContext, weighting
from fedstill.models.network import Network

__all__ = ["ByCounts", "ClassWeights", "class_weights", "fault", "weighed"]

ClassWeights = Literal["sample", "authors-code"]


def class_weights(counts: Tensor) -> Tensor:
    """How much each client counts for each class, ``n_k^y / sum_j n_j^y``, from counts (clients, classes). A class that no client
    has gets equal weights.

    >>> class_weights(torch.tensor([[3, 0, 0], [1, 2, 0]])).tolist()
    [[0.75, 0.0, 0.5], [0.25, 1.0, 0.5]]
    """
    counts = counts.double()
    total = counts.sum(0)
    return torch.where(total > 0, counts / total.clamp_min(1), 1 / len(counts)).float()


def weighed(weight: Tensor, loss: Tensor, form: ClassWeights) -> Tensor:
    """The mean of ``weight * loss`` over the samples, or the product of their means. The authors' code of FedGen and FedFTG
    computes the product: there the weight has shape (n, 1) and the loss is already reduced.

    >>> weight, loss = torch.tensor([1.0, 0.0]), torch.tensor([2.0, 4.0])
    >>> float(weighed(weight, loss, "sample")), float(weighed(weight, loss, "authors-code"))
    (1.0, 1.5)
    """
    return (weight * loss).mean() if form == "sample" else weight.mean() * loss.mean()


def fault(part: State, width: int) -> str | None:
    """What is wrong with reported label counts.

    >>> fault({"labels": torch.tensor([3, -1])}, 64)
    "its 'counts' are not numbers of samples"
    """
    labels = part.get("labels")
    if labels is None or labels.ndim != 1 or labels.is_floating_point() or bool((labels < 0).any()):
        return "its 'counts' are not numbers of samples"
    return None


@weighting(
    "counts",
    report="counts",
    options=Part,
    fault=fault,
    summary="each teacher's share of the classes it sees in the sample (after FedFTG)",
)
class ByCounts(Scored):
    """FedFTG knows the label of a sample that it generated. An unlabelled sample has none, so a teacher's score is the expected
    weight under its own prediction, ``sum_c p_k(c | x) n_k^c / sum_j n_j^c``."""

    def __init__(self, context: WeightingContext):
        self.shares = class_weights(torch.stack([reply.part("counts")["labels"] for reply in context.replies]))

    def score(self, k: int, network: Network, x: Tensor, features: Tensor) -> Tensor:
        """The expected class-level weight."""
        logits: Tensor = network.head(features)
        return logits.softmax(1) @ self.shares[k].to(features.device)
