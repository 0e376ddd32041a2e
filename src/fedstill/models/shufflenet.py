"""ShuffleNetV2 x1.0: Ma et al. 2018, "Practical Guidelines for Efficient CNN Architecture Design", arXiv:1807.11164.

Tensors have torchvision's names, so that its ImageNet weights can be loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from .layers import channels_last, he_initialise, norm_layer, small_stem
from .network import Architecture, Network

__all__ = ["ARCHITECTURES", "ShuffleNetV2", "ShuffleUnit", "shufflenetv2"]

Norm = Callable[[int], nn.Module]


class ShuffleUnit(nn.Module):
    """Half of the channels pass through, or are convolved if the stride is 2; then both halves are interleaved."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        half = after // 2
        self.stride = stride
        self.branch1: nn.Module = nn.Identity()
        if stride == 2:
            self.branch1 = nn.Sequential(
                *_depthwise(before, stride, norm),
                nn.Conv2d(before, half, 1, bias=False),
                norm(half),
                nn.ReLU(inplace=True),
            )
        self.branch2 = nn.Sequential(
            nn.Conv2d(before if stride == 2 else half, half, 1, bias=False),
            norm(half),
            nn.ReLU(inplace=True),
            *_depthwise(half, stride, norm),
            nn.Conv2d(half, half, 1, bias=False),
            norm(half),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = (x, x) if self.stride == 2 else x.chunk(2, dim=1)
        halves = torch.stack([self.branch1(left), self.branch2(right)], dim=2)  # channel i of both side by side
        return halves.flatten(1, 2)


def _depthwise(channels: int, stride: int, norm: Norm) -> list[nn.Module]:
    return [nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False), norm(channels)]


class ShuffleNetV2(Network):
    """Stem of 24, stages of 116, 232 and 464 channels, a last convolution of 1024 and a global average."""

    def __init__(self, classes: int, channels: int, norm: Norm, small: bool) -> None:
        super().__init__()
        stride = 1 if small else 2
        self.conv1 = nn.Sequential(nn.Conv2d(channels, 24, 3, stride, padding=1, bias=False), norm(24), nn.ReLU(inplace=True))
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)

        def stage(before: int, width: int, count: int) -> nn.Sequential:
            rest = (ShuffleUnit(width, width, 1, norm) for _ in range(count - 1))
            return nn.Sequential(ShuffleUnit(before, width, 2, norm), *rest)

        self.stage2, self.stage3, self.stage4 = stage(24, 116, 4), stage(116, 232, 8), stage(232, 464, 4)
        self.conv5 = nn.Sequential(nn.Conv2d(464, 1024, 1, bias=False), norm(1024), nn.ReLU(inplace=True))
        self.feature_dim, self.classes = 1024, classes
        self.head = nn.Linear(1024, classes)
        he_initialise(self)

    def backbone(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(channels_last(x)))
        x = self.conv5(self.stage4(self.stage3(self.stage2(x))))
        return x.mean((2, 3))


def shufflenetv2(*, classes: int, shape: tuple[int, ...], norm: str, stem: str = "auto", groups: int = 2) -> Network:
    """ShuffleNetV2 x1.0; ``stem`` is "small" (no downsampling), "imagenet", or "auto": small up to 64 pixels."""
    return ShuffleNetV2(classes, shape[0], partial(norm_layer, norm, groups=groups), small_stem(stem, shape))


ARCHITECTURES = {"shufflenetv2": Architecture(shufflenetv2, "ShuffleNetV2 x1.0 (Ma et al. 2018)")}
