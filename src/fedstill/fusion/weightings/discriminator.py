"""DaFKD's weighting: each teacher counts as much as its own domain discriminator believes in the sample (Eq. 7)."""

from __future__ import annotations

import torch
from torch import Tensor

import fedstill.local.reports.discriminator  # noqa: F401 (registers the report for systems that train no discriminator of their own)
from fedstill.core.message import State
from fedstill.core.options import Part
from fedstill.fusion.weightings.contract import Scored, WeightingContext, weighting
from fedstill.local.adversarial import Discriminator
from fedstill.models.network import Network

__all__ = ["ByDiscriminator", "fault"]


def fault(part: State, width: int) -> str | None:
    """What is wrong with a discriminator for features of this width.

    >>> fault({"head.weight": torch.zeros(1, 3), "head.bias": torch.zeros(1)}, 4)
    "its 'discriminator' is for features of width 3, not 4"
    """
    weight, bias = part.get("head.weight"), part.get("head.bias")
    if weight is None or bias is None or weight.ndim != 2 or len(weight) != 1 or bias.shape != (1,):
        return "its 'discriminator' has no linear layer 'head' with one output"
    if weight.shape[1] != width:
        return f"its 'discriminator' is for features of width {weight.shape[1]}, not {width}"
    return None


@weighting(
    "discriminator",
    report="discriminator",
    options=Part,
    fault=fault,
    summary="each teacher's own domain discriminator (DaFKD, Eq. 7)",
)
class ByDiscriminator(Scored):
    """Eq. 7: ``f(theta_k; x) / sum_j f(theta_j; x)``, on generated or any other samples."""

    def __init__(self, context: WeightingContext):
        self.replies = context.replies
        self.loaded: tuple[int, Discriminator] | None = None  # teachers stream by, so does their discriminator

    def score(self, k: int, network: Network, x: Tensor, features: Tensor) -> Tensor:
        """``f(theta_k; x)``: the probability that ``x`` is from client k's data."""
        if self.loaded is None or self.loaded[0] != k:
            state = self.replies[k].part("discriminator")
            self.loaded = k, Discriminator(network, state, sharing=len(state) == 2).eval()
        return torch.sigmoid(self.loaded[1](x, features))
