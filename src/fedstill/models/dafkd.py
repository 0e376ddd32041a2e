"""DaFKD's residual network, called ResNet11 in the paper.

Wang et al. 2023, "DaFKD: Domain-aware Federated Knowledge Distillation". A unit has three 3x3 convolutions, so n units
in each of three stages make 9n + 2 layers: one gives the paper's name, two (``depth=20``) the authors' code.
"""

from __future__ import annotations

from functools import partial

from fedstill.core.errors import FedstillError

from .layers import norm_layer
from .network import Architecture, Network
from .resnet import Residual, ResNet

__all__ = ["ARCHITECTURES", "TripleBlock", "resnet11"]


class TripleBlock(Residual):
    """Three 3x3 convolutions, the last with four times the width."""

    expansion = 4

    def plan(self, before: int, width: int, after: int, stride: int) -> list[tuple[int, int, int, int]]:
        return [(3, before, width, 1), (3, width, width, stride), (3, width, after, 1)]


def resnet11(*, classes: int, shape: tuple[int, ...], norm: str, depth: int = 11, groups: int = 2) -> Network:
    """DaFKD's network of ``depth`` = 9n + 2 layers, widths 16/32/64, features of width 256."""
    units, rest = divmod(depth - 2, 9)
    if units < 1 or rest:
        raise FedstillError(f"depth = {depth}: DaFKD's resnet has 9n + 2 layers, such as 11 or 20")
    layer = partial(norm_layer, norm, groups=groups)
    return ResNet(TripleBlock, [units] * 3, [16, 32, 64], classes=classes, channels=shape[0], norm=layer)


ARCHITECTURES = {"resnet11": Architecture(resnet11, "DaFKD's ResNet11, units of three 3x3 convolutions (Wang et al. 2023)")}
