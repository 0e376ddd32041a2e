"""Fully connected networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn

from fedstill.core.errors import FedstillError

from .network import Architecture, Network

__all__ = ["ARCHITECTURES", "MLP", "mlp"]


class MLP(Network):
    """Linear layers with ReLU between them on the flattened input.

    With two hidden layers of 200 it is the 2NN of McMahan et al. 2017 (arXiv:1602.05629), and with
    ``shape=(2,)`` the 3-layer MLP on the plane of FedDF's Figure 1 (arXiv:2006.07242).
    """

    def __init__(self, classes: int, shape: tuple[int, ...], hidden: Sequence[int] = (200, 200)) -> None:
        super().__init__()
        widths = [math.prod(shape), *hidden]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.feature_dim, self.classes = widths[-1], classes
        self.head = nn.Linear(self.feature_dim, classes)

    def backbone(self, x: Tensor) -> Tensor:
        z: Tensor = self.body(x.flatten(1))
        return z


def mlp(*, classes: int, shape: tuple[int, ...], norm: str, hidden: Sequence[int] = (200, 200)) -> Network:
    """A perceptron with one linear layer per entry of ``hidden`` and one more as the head."""
    if not hidden or min(hidden) < 1:
        raise FedstillError(f"hidden = {list(hidden)}: an mlp needs at least one hidden layer, each of at least one unit")
    return MLP(classes, shape, hidden)


ARCHITECTURES = {
    "mlp": Architecture(mlp, "3-layer perceptron, 200-200 (2NN, McMahan et al. 2017; FedDF's toy)", norms=(), smallest=1)
}
