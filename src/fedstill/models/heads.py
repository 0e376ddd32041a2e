"""Parts between a backbone and its classes: MOON's projection head and SHOT's bottleneck."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from .network import Network

__all__ = ["HeadOnly", "bottleneck", "hidden_head", "projection"]


class HeadOnly(Network):
    """The last layer of a network on its own, sharing its weights: its inputs are the network's features."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.head, self.feature_dim, self.classes = network.head, network.feature_dim, network.classes

    def backbone(self, x: Tensor) -> Tensor:
        return x


def projection(network: Network, width: int) -> Network:
    """Put MOON's projection head (Li et al. 2021, arXiv:2103.16257) below the classifier: linear, ReLU, linear.

    ``features`` then returns the projection, and the classifier reads it, as in the authors' network.
    """
    inside = network.feature_dim
    network.neck = nn.Sequential(nn.Linear(inside, inside), nn.ReLU(), nn.Linear(inside, width))
    network.feature_dim = width
    network.head = nn.Linear(width, network.classes)
    return network


def bottleneck(network: Network, width: int) -> Network:
    """Give the network SHOT's end (Liang et al. 2020, arXiv:2002.08546).

    Linear and BatchNorm to ``width``, then a weight-normalised linear classifier; linear layers are Xavier-normal.
    """
    reduce, head = nn.Linear(network.feature_dim, width), nn.Linear(width, network.classes)
    for layer in (reduce, head):
        nn.init.xavier_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    network.neck = nn.Sequential(reduce, nn.BatchNorm1d(width))
    network.feature_dim = width
    network.head = weight_norm(head)
    return network


def hidden_head(network: Network, widths: Sequence[int]) -> Network:
    """Give the network a head with hidden layers; its features stay those of the backbone.

    >>> from fedstill.models import build
    >>> net = build("resnet8", classes=3, shape=(3, 32, 32), head=[16], seed=0)
    >>> net.feature_dim, [tuple(p.shape) for p in net.head.parameters()]
    (64, [(16, 64), (16,), (3, 16), (3,)])
    """
    layers: list[nn.Module] = []
    inside = network.feature_dim
    for width in widths:
        layers += [nn.Linear(inside, width), nn.ReLU()]
        inside = width
    network.head = nn.Sequential(*layers, nn.Linear(inside, network.classes))
    return network
