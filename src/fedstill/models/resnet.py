"""Residual networks: the CIFAR family of 6n+2 layers, and ResNet-18/34/50.

He et al. 2016, "Deep Residual Learning for Image Recognition" (arXiv:1512.03385). Backbones have torchvision's
names (conv1, bn1, layer1.0.conv1, ...), so that its ImageNet weights can be loaded; its ``fc`` is our ``head``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from fedstill.core.errors import FedstillError

from .layers import channels_last, he_initialise, norm_layer, reordered, small_stem
from .network import Architecture, Network, Step

__all__ = ["ARCHITECTURES", "BasicBlock", "Bottleneck", "ResNet", "Residual", "cifar_resnet", "resnet"]

Conv = Callable[..., nn.Module]
Norm = Callable[[int], nn.Module]


class Residual(nn.Module):
    """A stack of convolutions plus its input, or a 1x1 projection of the input if the shape changes (option B)."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int, norm: Norm, conv: Conv, activation: Conv) -> None:
        super().__init__()
        after = width * self.expansion
        self.steps = 0
        for kernel, inputs, outputs, step in self.plan(before, width, after, stride):
            self.steps += 1
            layer = conv(inputs, outputs, kernel, stride=step, padding=kernel // 2, bias=False)
            setattr(self, f"conv{self.steps}", layer)
            setattr(self, f"bn{self.steps}", norm(outputs))
        self.relu = activation()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(conv(before, after, 1, stride=stride, bias=False), norm(after))

    def plan(self, before: int, width: int, after: int, stride: int) -> list[tuple[int, int, int, int]]:
        """Kernel, inputs, outputs and stride of each convolution."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for step in range(1, self.steps + 1):
            out = getattr(self, f"bn{step}")(getattr(self, f"conv{step}")(out))
            if step < self.steps:
                out = self.relu(out)
        joined: Tensor = self.relu(out + self.downsample(x))
        return joined


class BasicBlock(Residual):
    """Two 3x3 convolutions."""

    def plan(self, before: int, width: int, after: int, stride: int) -> list[tuple[int, int, int, int]]:
        return [(3, before, width, stride), (3, width, after, 1)]


class Bottleneck(Residual):
    """1x1, 3x3, 1x1 with four times the width at the end; the stride is in the 3x3, as in torchvision."""

    expansion = 4

    def plan(self, before: int, width: int, after: int, stride: int) -> list[tuple[int, int, int, int]]:
        return [(1, before, width, 1), (3, width, width, stride), (1, width, after, 1)]


class ResNet(Network):
    """A stem, stages ``layer1``, ``layer2``, ... that halve the resolution from the second on, and a global average.

    ``conv`` and ``activation`` make the layers after the stem, so that a quantised network can bring its own.
    """

    def __init__(
        self,
        block: type[Residual],
        blocks: Sequence[int],
        widths: Sequence[int],
        *,
        classes: int,
        channels: int,
        norm: Norm,
        small: bool = True,
        conv: Conv = nn.Conv2d,
        activation: Conv = partial(nn.ReLU, inplace=True),
    ) -> None:
        super().__init__()
        before = widths[0]
        if small:
            self.conv1 = nn.Conv2d(channels, before, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, before, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(before)
        self.relu = activation()
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = [f"layer{index + 1}" for index in range(len(blocks))]
        for index, (stage, count, width) in enumerate(zip(self.stages, blocks, widths, strict=True)):
            layers = []
            for position in range(count):
                stride = 2 if index > 0 and position == 0 else 1
                layers.append(block(before, width, stride, norm, conv, activation))
                before = width * block.expansion
            setattr(self, stage, nn.Sequential(*layers))
        self.feature_dim, self.classes = before, classes
        self.head = nn.Linear(before, classes)
        he_initialise(self)

    def _stem(self, x: Tensor) -> Tensor:
        stem: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(channels_last(x)))))
        return stem

    def steps(self) -> list[Step]:
        """The stem, every residual block, the last with the mean over the pixels."""
        names = [f"{stage}.{i}" for stage in self.stages for i in range(len(self.get_submodule(stage)))]  # type: ignore[arg-type]
        blocks = [Step(reordered(self.get_submodule(name)), (name,)) for name in names]
        last = Step(lambda x: blocks[-1].call(x).mean((2, 3)), blocks[-1].modules)
        return [Step(self._stem, ("conv1", "bn1")), *blocks[:-1], last]

    def backbone(self, x: Tensor) -> Tensor:
        x = self._stem(x)
        for stage in self.stages:
            x = getattr(self, stage)(x)
        return x.mean((2, 3))


def cifar_resnet(*, classes: int, shape: tuple[int, ...], norm: str, depth: int, width: int = 1, groups: int = 2) -> Network:
    """The CIFAR ResNet of ``depth`` = 6n+2 layers, widths 16/32/64 times ``width`` (FedDF takes 4 for ImageNet32)."""
    if width < 1:
        raise FedstillError(f"width = {width}: the multiplier of a resnet's widths is at least 1")
    n = (depth - 2) // 6
    widths = [16 * width, 32 * width, 64 * width]
    layer = partial(norm_layer, norm, groups=groups)
    return ResNet(BasicBlock, [n, n, n], widths, classes=classes, channels=shape[0], norm=layer)


def resnet(
    *,
    classes: int,
    shape: tuple[int, ...],
    norm: str,
    block: type[Residual],
    blocks: Sequence[int],
    stem: str = "auto",
    groups: int = 2,
) -> Network:
    """ResNet-18/34/50; ``stem`` is "small" (3x3) or "imagenet" (7x7 and pooling), "auto" for small up to 64 pixels."""
    layer = partial(norm_layer, norm, groups=groups)
    small = small_stem(stem, shape)
    return ResNet(block, blocks, [64, 128, 256, 512], classes=classes, channels=shape[0], norm=layer, small=small)


_HE = "(He et al. 2016)"
ARCHITECTURES = {
    f"resnet{depth}": Architecture(partial(cifar_resnet, depth=depth), f"CIFAR ResNet of {depth} layers, 16-32-64 {_HE}")
    for depth in (8, 14, 20, 32, 44, 56, 110)
} | {
    f"resnet{depth}": Architecture(partial(resnet, block=block, blocks=blocks), f"ResNet-{depth}, 64-128-256-512 {_HE}")
    for depth, block, blocks in (
        (18, BasicBlock, (2, 2, 2, 2)),
        (34, BasicBlock, (3, 4, 6, 3)),
        (50, Bottleneck, (3, 4, 6, 3)),
    )
}
