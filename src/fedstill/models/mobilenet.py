"""MobileNetV3-small, Howard et al. 2019, "Searching for MobileNetV3" (arXiv:1905.02244)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from .layers import channels_last, he_initialise, norm_layer, small_stem
from .network import Architecture, Network

__all__ = ["ARCHITECTURES", "InvertedResidual", "MobileNetV3Small", "SqueezeExcitation", "mobilenetv3_small"]

Norm = Callable[[int], nn.Module]

# Table 2 of the paper: kernel, expansion, output channels, squeeze-and-excitation, hard-swish, stride.
_ROWS = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from the channels' means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        # A quarter of the channels, rounded to a multiple of 8 without losing more than a tenth.
        squeezed = max(8, (channels // 4 + 4) // 8 * 8)
        if squeezed < 0.9 * (channels // 4):
            squeezed += 8
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(squeezed, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.gate(x)
        return x * gate


class InvertedResidual(nn.Module):
    """Expand, filter each channel, gate, project; plus the input where the shape is kept."""

    def __init__(
        self, before: int, kernel: int, expanded: int, after: int, gated: bool, swish: bool, stride: int, norm: Norm
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if swish else nn.ReLU
        layers: list[nn.Module] = []
        if expanded != before:
            layers += [nn.Conv2d(before, expanded, 1, bias=False), norm(expanded), activation(inplace=True)]
        depthwise = nn.Conv2d(expanded, expanded, kernel, stride, kernel // 2, groups=expanded, bias=False)
        layers += [depthwise, norm(expanded), activation(inplace=True)]
        if gated:
            layers.append(SqueezeExcitation(expanded))
        self.body = nn.Sequential(*layers, nn.Conv2d(expanded, after, 1, bias=False), norm(after))
        self.shortcut = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return x + out if self.shortcut else out


class MobileNetV3Small(Network):
    """The rows of Table 2, a last convolution of 576, and a hidden layer of 1024 with dropout.

    BatchNorm keeps PyTorch's momentum of 0.1 where the paper has 0.01: its statistics would need hundreds of steps,
    more than a client makes in a round.
    """

    def __init__(self, classes: int, channels: int, norm: Norm, small: bool, dropout: float) -> None:
        super().__init__()
        stem = nn.Conv2d(channels, 16, 3, 1 if small else 2, padding=1, bias=False)
        layers: list[nn.Module] = [stem, norm(16), nn.Hardswish(inplace=True)]
        before = 16
        for index, (kernel, expanded, after, gated, swish, stride) in enumerate(_ROWS):
            stride = 1 if small and index == 0 else stride
            layers.append(InvertedResidual(before, kernel, expanded, after, gated, swish, stride, norm))
            before = after
        layers += [nn.Conv2d(before, 576, 1, bias=False), norm(576), nn.Hardswish(inplace=True)]
        self.body = nn.Sequential(*layers)
        self.fc = nn.Sequential(nn.Linear(576, 1024), nn.Hardswish(inplace=True), nn.Dropout(dropout))
        self.feature_dim, self.classes = 1024, classes
        self.head = nn.Linear(1024, classes)
        he_initialise(self)

    def backbone(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.body(channels_last(x)).mean((2, 3)))
        return z


def mobilenetv3_small(
    *, classes: int, shape: tuple[int, ...], norm: str, stem: str = "auto", dropout: float = 0.2, groups: int = 2
) -> Network:
    """MobileNetV3-small; ``stem`` is "small" (first two strides 1), "imagenet", or "auto": small up to 64 pixels."""
    layer = partial(norm_layer, norm, groups=groups)
    return MobileNetV3Small(classes, shape[0], layer, small_stem(stem, shape), dropout)


ARCHITECTURES = {"mobilenetv3-small": Architecture(mobilenetv3_small, "MobileNetV3-small (Howard et al. 2019)")}
