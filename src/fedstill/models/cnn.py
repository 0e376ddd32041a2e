"""Small convolutional networks for digits and 32-pixel photographs."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from fedstill.core.errors import FedstillError

from .layers import channels_last, norm_layer
from .network import Architecture, Network

__all__ = ["ARCHITECTURES", "CNN", "LeNet", "cnn", "lenet"]


class CNN(Network):
    """The two-convolution network of McMahan et al. 2017 (arXiv:1602.05629), with normalisation and a narrower layer.

    conv5 32 - pool - conv5 64 - pool - fc ``hidden`` - head. Pooling comes before the normalisation and the ReLU: with
    ReLU the order of the two does not matter, and both then cost a quarter.
    """

    def __init__(
        self,
        classes: int,
        shape: tuple[int, ...],
        norm: str,
        hidden: int,
        groups: int,
        widths: tuple[int, ...] = (32, 64),
        kernel: int = 5,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        bias = norm == "none"

        def stage(before: int, after: int) -> list[nn.Module]:
            conv = nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=bias)
            return [conv, nn.MaxPool2d(2), norm_layer(norm, after, groups), nn.ReLU(inplace=True)]

        stages = [stage(before, after) for before, after in pairwise((channels, *widths))]
        self.body = nn.Sequential(*(layer for layers in stages for layer in layers))
        # Images above 32 pixels are averaged down to 8 x 8 maps, so that the layer behind them does not grow.
        maps = [side // 2 ** len(widths) for side in (height, width)]
        height, width = (max(1, min(side, 8)) for side in maps)
        self.pool = nn.Identity() if maps == [height, width] else nn.AdaptiveAvgPool2d((height, width))
        self.fc = nn.Sequential(nn.Linear(widths[-1] * height * width, hidden), nn.ReLU(inplace=True))
        self.feature_dim, self.classes = hidden, classes
        self.head = nn.Linear(hidden, classes)

    def backbone(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.pool(self.body(channels_last(x))).flatten(1))
        return z


class LeNet(Network):
    """MOON's simple CNN (arXiv:2103.16257): conv5 6, pool, conv5 16, pool, 120, 84; no normalisation."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = shape
        relu, pool = nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.body = nn.Sequential(nn.Conv2d(channels, 6, 5), relu, pool, nn.Conv2d(6, 16, 5), relu, pool)
        maps = ((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2)
        self.fc = nn.Sequential(nn.Linear(16 * maps, 120), relu, nn.Linear(120, 84), relu)
        self.feature_dim, self.classes = 84, classes
        self.head = nn.Linear(84, classes)

    def backbone(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.body(channels_last(x)).flatten(1))
        return z


def cnn(*, classes: int, shape: tuple[int, ...], norm: str, hidden: int = 128, groups: int = 2) -> Network:
    """The default network for digits; ``norm="none", hidden=512`` is McMahan et al.'s own."""
    if hidden < 1:
        raise FedstillError(f"hidden = {hidden}: a cnn needs at least one hidden unit")
    return CNN(classes, shape, norm, hidden, groups)


def cnn_small(*, classes: int, shape: tuple[int, ...], norm: str, hidden: int = 64, groups: int = 2) -> Network:
    """Three 3x3 convolutions of 16, 32 and 64 channels: a sixth of ``cnn``'s work, for demonstrations and sweeps on a CPU."""
    return CNN(classes, shape, norm, hidden, groups, widths=(16, 32, 64), kernel=3)


def lenet(*, classes: int, shape: tuple[int, ...], norm: str) -> Network:
    """MOON's simple CNN; combine with ``projection=256`` for the network of its paper."""
    return LeNet(classes, shape)


ARCHITECTURES = {
    "cnn": Architecture(cnn, "conv5 32, conv5 64, fc 128 (after McMahan et al. 2017)", norms=("batch", "group", "none")),
    "cnn-small": Architecture(cnn_small, "conv3 16, conv3 32, conv3 64, fc 64", norms=("batch", "group", "none")),
    "lenet": Architecture(lenet, "MOON's simple CNN, conv5 6, conv5 16, 120, 84 (Li et al. 2021)", norms=(), smallest=16),
}
