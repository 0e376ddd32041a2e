"""The blocks that several families share: normalisation, initialisation, the choice of a stem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedstill.core.errors import FedstillError, unknown

__all__ = [
    "BatchNorm",
    "channels_last",
    "he_initialise",
    "norm_layer",
    "over_pixels",
    "reordered",
    "seeded",
    "small_stem",
    "with_norm",
]

BatchNorm = nn.modules.batchnorm._BatchNorm


def norm_layer(norm: str, channels: int, groups: int = 2) -> nn.Module:
    """BatchNorm, GroupNorm or nothing for ``channels`` feature maps.

    Two groups are FedFTG's choice; they divide every width of every model here.

    >>> norm_layer("group", 16).num_groups
    2
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        if groups < 1 or channels % groups:
            raise FedstillError(f"groups = {groups} does not divide a layer of {channels} channels")
        return nn.GroupNorm(groups, channels)
    if norm == "none":
        return nn.Identity()
    raise unknown("norm", norm, ["batch", "group", "none"])


def with_norm(network: nn.Module, norm: str, whose: str) -> nn.Module:
    """The network with its BatchNorm layers replaced by GroupNorm with the same scales and shifts, or by nothing, in place.

    >>> body = with_norm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), "group", "'mine'")
    >>> body[1].num_groups, sorted(body.state_dict())
    (2, ['0.bias', '0.weight', '1.bias', '1.weight'])
    """
    old = [
        (parent, name, layer)
        for parent in network.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, BatchNorm)
    ]
    if not old:
        raise FedstillError(f"{whose} has no BatchNorm that norm = '{norm}' could replace")
    for parent, name, layer in old:
        new = norm_layer(norm, layer.num_features)
        if norm == "group" and layer.affine:
            new.load_state_dict({key: value for key, value in layer.state_dict().items() if key in ("weight", "bias")})
        parent.add_module(name, new)
    return network


def channels_last(x: Tensor) -> Tensor:
    """Images in the memory order in which a CPU convolves fastest; every later layer keeps it.

    It saves up to a third of a training step, and weights keep their plain order. With one channel both orders are
    the same bytes, and PyTorch assumes the slower one unless the strides say otherwise: hence the detour.

    >>> channels_last(torch.zeros(2, 1, 4, 4)).stride(), channels_last(torch.zeros(2, 3, 4, 4)).stride()
    ((16, 1, 4, 1), (48, 1, 12, 3))
    """
    if x.device.type != "cpu":
        return x
    pixels = x.permute(0, 2, 3, 1)
    return pixels.flatten(1).view(pixels.shape).permute(0, 3, 1, 2)


def reordered(block: nn.Module) -> Callable[[Tensor], Tensor]:
    """``block`` as the first above kept features, which are in the plain order."""
    return lambda x: block(channels_last(x))


def over_pixels(x: Tensor) -> Tensor:
    """The mean over the pixels of channels-last images, the bits of ``x.mean((2, 3))``.

    The gradient of that is in the plain order, in which every layer below it is slower: up to 40% of a step above kept features.

    >>> x = channels_last(torch.randn(2, 3, 4, 4)).requires_grad_()
    >>> torch.equal(over_pixels(x), x.mean((2, 3)))
    True
    """
    return x.permute(0, 2, 3, 1).flatten(1, 2).mean(1)


def he_initialise(network: nn.Module) -> None:
    """Draw every convolution from N(0, 2 / (k^2 c_out)), He et al. 2015, and start its bias at zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def small_stem(stem: str, shape: tuple[int, ...]) -> bool:
    """Whether a network starts without downsampling: by request, or because images have at most 64 pixels a side.

    >>> small_stem("auto", (3, 32, 32)), small_stem("imagenet", (3, 32, 32)), small_stem("auto", (3, 224, 224))
    (True, False, False)
    """
    if stem not in ("auto", "small", "imagenet"):
        raise unknown("stem", stem, ["auto", "small", "imagenet"])
    return stem == "small" or (stem == "auto" and max(shape[1:]) <= 64)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """A context in which random numbers depend on ``seed`` alone; afterwards the global stream continues undisturbed."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        yield
