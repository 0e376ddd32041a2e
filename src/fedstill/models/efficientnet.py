"""EfficientNet-Lite: MobileNet's inverted residuals, scaled, with ReLU6 and without squeeze-and-excitation.

Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (arXiv:1905.11946); the Lite variants
are Google's for devices, 2020. The published weights come from TensorFlow: convolutions pad as it does ("same"; an odd padding
has one pixel more on the right and below), and BatchNorm has an epsilon of 0.001.
"""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from .layers import channels_last, he_initialise, over_pixels, reordered
from .network import Architecture, Network, Step

__all__ = ["ARCHITECTURES", "EfficientNetLite", "MBConv", "SameConv2d", "efficientnet_lite"]

# kernel, stride, expansion, channels, repeats
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
STEM, WIDTH = 32, 1280
batch_norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow's "same": the output has ``ceil(size / stride)`` pixels a side.

    >>> import torch
    >>> SameConv2d(1, 1, 3, stride=2)(torch.zeros(1, 1, 5, 4)).shape
    torch.Size([1, 1, 3, 2])
    """

    def forward(self, x: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        missing = [max((math.ceil(size / stride) - 1) * stride + kernel - size, 0) for size in x.shape[2:]]
        if all(m % 2 == 0 for m in missing):  # the usual padding, which the convolution does faster itself
            return F.conv2d(x, self.weight, self.bias, self.stride, [m // 2 for m in missing], self.dilation, self.groups)
        (top, left), (below, right) = ((m // 2 for m in missing), (m - m // 2 for m in missing))
        x = F.pad(x, (left, right, top, below))
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class MBConv(nn.Module):
    """Expand, convolve each channel on its own, project; the input is added if the shape allows it."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        middle = inside * expansion
        if expansion > 1:
            self.expand_conv, self.bn0 = nn.Conv2d(inside, middle, 1, bias=False), batch_norm(middle)
        self.depthwise_conv = SameConv2d(middle, middle, kernel, stride, groups=middle, bias=False)
        self.bn1 = batch_norm(middle)
        self.project_conv, self.bn2 = nn.Conv2d(middle, outside, 1, bias=False), batch_norm(outside)
        self.expands, self.adds = expansion > 1, stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.bn0(self.expand_conv(x))) if self.expands else x
        y = F.relu6(self.bn1(self.depthwise_conv(y)))
        projected: Tensor = self.bn2(self.project_conv(y))
        return x + projected if self.adds else projected


class EfficientNetLite(Network):
    """The stem, sixteen blocks, a wide 1x1 convolution, the mean over the pixels, and a linear layer."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.conv_stem, self.bn0 = SameConv2d(channels, STEM, 3, stride=2, bias=False), batch_norm(STEM)
        blocks, inside = [], STEM
        for kernel, stride, expansion, outside, repeats in STAGES:
            for i in range(repeats):
                blocks.append(MBConv(inside, outside, kernel, stride if i == 0 else 1, expansion))
                inside = outside
        self.blocks = nn.ModuleList(blocks)
        self.conv_head, self.bn1 = nn.Conv2d(inside, WIDTH, 1, bias=False), batch_norm(WIDTH)
        self.feature_dim, self.classes = WIDTH, classes
        self.head = nn.Linear(WIDTH, classes)
        he_initialise(self)

    def _stem(self, x: Tensor) -> Tensor:
        return F.relu6(self.bn0(self.conv_stem(channels_last(x))))

    def _pooled(self, x: Tensor) -> Tensor:
        return over_pixels(F.relu6(self.bn1(self.conv_head(channels_last(x)))))

    def steps(self) -> list[Step]:
        """The stem, every block, and the wide convolution with the mean."""
        blocks = [Step(reordered(block), (f"blocks.{i}",)) for i, block in enumerate(self.blocks)]
        return [Step(self._stem, ("conv_stem", "bn0")), *blocks, Step(self._pooled, ("conv_head", "bn1"))]

    def backbone(self, x: Tensor) -> Tensor:
        x = self._stem(x)
        for block in self.blocks:
            x = block(x)
        return self._pooled(x)

    def own_name(self, key: str) -> str:
        """The published file has an underscore before every part of a name."""
        plain = ".".join(part.removeprefix("_") for part in key.split("."))
        return plain.replace("fc.", "head.") if plain.startswith("fc.") else plain


def efficientnet_lite(*, classes: int, shape: tuple[int, ...], norm: str) -> Network:
    """EfficientNet-Lite0, made for images of 224 pixels; smaller ones pass too."""
    return EfficientNetLite(classes, shape[0])


ARCHITECTURES = {
    "efficientnet-lite0": Architecture(
        efficientnet_lite, "EfficientNet-Lite0, 4.7 M parameters (after Tan and Le 2019)", norms=("batch",), smallest=32
    )
}
