"""VGG networks without normalisation, for systems that match or average plain layers.

Simonyan and Zisserman 2015 (arXiv:1409.1556); VGG-9 as in FedMA, Wang et al. 2020 (arXiv:2002.06440).
"""

from __future__ import annotations

from torch import Tensor, nn

from fedstill.core.errors import FedstillError

from .layers import channels_last, he_initialise
from .network import Architecture, Network

__all__ = ["ARCHITECTURES", "VGG", "vgg9", "vgg16"]


class VGG(Network):
    """3x3 convolutions in stages that each halve the resolution at the end, then two hidden layers of 512.

    Maps larger than ``side`` behind the stages are averaged down to it. ``dropout`` is (maps, hidden layers); the
    first acts once, on the maps behind the second stage.
    """

    def __init__(
        self,
        stages: tuple[tuple[int, ...], ...],
        classes: int,
        shape: tuple[int, ...],
        side: int,
        dropout: tuple[float, float],
        ceil: bool,
    ) -> None:
        super().__init__()
        before, *sides = shape
        layers: list[nn.Module] = []
        for index, stage in enumerate(stages):
            for width in stage:
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(inplace=True)]
                before = width
            layers.append(nn.MaxPool2d(2, ceil_mode=ceil))
            sides = [(size + ceil) // 2 for size in sides]
            if index == 1:
                layers.append(nn.Dropout2d(dropout[0]))
        height, width = (min(size, side) for size in sides)
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((height, width)))
        self.fc = nn.Sequential(
            nn.Dropout(dropout[1]),
            nn.Linear(before * height * width, 512),
            nn.ReLU(inplace=True),
            nn.Linear(512, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout[1]),
        )
        self.feature_dim, self.classes = 512, classes
        self.head = nn.Linear(512, classes)
        he_initialise(self)

    def backbone(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.body(channels_last(x)).flatten(1))
        return z


def _rates(dropout: object) -> tuple[float, float]:
    if isinstance(dropout, int | float):
        dropout = (dropout, dropout)
    if not isinstance(dropout, list | tuple) or len(dropout) != 2 or not all(0 <= rate < 1 for rate in dropout):
        raise FedstillError(f"dropout = {dropout}: give one rate, or two (maps, hidden layers), each in [0, 1)")
    return dropout[0], dropout[1]


def vgg9(*, classes: int, shape: tuple[int, ...], norm: str, dropout: float | tuple[float, float] = (0.05, 0.1)) -> Network:
    """FedMA's VGG-9: convolutions 32-64, 128-128, 256-256, hidden layers 512-512."""
    stages = ((32, 64), (128, 128), (256, 256))
    return VGG(stages, classes, shape, side=4, dropout=_rates(dropout), ceil=False)


def vgg16(*, classes: int, shape: tuple[int, ...], norm: str, dropout: float | tuple[float, float] = (0.0, 0.5)) -> Network:
    """The convolutions of VGG-16 (configuration D) with hidden layers 512-512, as usual on CIFAR."""
    stages = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)
    return VGG(stages, classes, shape, side=1, dropout=_rates(dropout), ceil=True)


ARCHITECTURES = {
    "vgg9": Architecture(vgg9, "FedMA's VGG-9, 32-64-128-128-256-256, fc 512-512 (Wang et al. 2020)", norms=()),
    "vgg16": Architecture(vgg16, "VGG-16, fc 512-512 (Simonyan and Zisserman 2015)", norms=()),
}
