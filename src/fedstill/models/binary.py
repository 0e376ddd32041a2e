"""ResNet-8 with 1-bit weights, for clients that compute and send little (FedDF's Table 4).

Rastegari et al. 2016, "XNOR-Net" (arXiv:1603.05279): W is approximated by alpha sign(W) with one alpha a filter. The
first convolution and the last linear layer stay in full precision. Full-precision weights are kept for training; only
their signs and scales matter to the function, and only these need to be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import norm_layer
from .network import Architecture, Network
from .resnet import BasicBlock, ResNet

__all__ = [
    "ARCHITECTURES",
    "FULL_PRECISION",
    "BinaryConv2d",
    "binary_sign",
    "binary_weights",
    "pack_bits",
    "resnet8_binary",
    "unpack_bits",
]

FULL_PRECISION = {"resnet8-binary": "resnet8"}  # the same tensors without bits: what a server distils low-bit clients into


class _Sign(torch.autograd.Function):
    """+1 or -1, and +1 at zero, so that one bit says all; straight-through gradient where \\|x\\| <= 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return gradient * (x.abs() <= 1)


_sign: Callable[[Tensor], Tensor] = _Sign.apply


def binary_sign(x: Tensor) -> Tensor:
    """The sign of ``x`` with the straight-through estimator as its gradient (Hubara et al. 2016).

    >>> x = torch.tensor([-2.0, -0.5, 0.0, 3.0], requires_grad=True)
    >>> y = binary_sign(x)
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([-1.0, -1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0])
    """
    return _sign(x)


def _scales(weight: Tensor) -> Tensor:
    """alpha = mean \\|w\\| of each filter, the least-squares scale of its signs (Eq. 6 of XNOR-Net).

    Added up in double precision: then the mean of n equal numbers is that number, and unpacked weights, which are
    alpha times a sign, give the very alpha they were packed with.
    """
    return weight.abs().mean(dim=(1, 2, 3), dtype=torch.float64).to(weight.dtype)


class BinaryConv2d(nn.Conv2d):
    """A convolution whose weights act as alpha sign(W); with ``binary_input`` its input acts as sign(x) too."""

    def __init__(self, *args: Any, binary_input: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.binary_input = binary_input

    def forward(self, x: Tensor) -> Tensor:
        x = binary_sign(x) if self.binary_input else x
        weight = _scales(self.weight).view(-1, 1, 1, 1) * binary_sign(self.weight)
        out: Tensor = self._conv_forward(x, weight, self.bias)
        return out


def resnet8_binary(*, classes: int, shape: tuple[int, ...], norm: str, activations: bool = False, groups: int = 2) -> Network:
    """ResNet-8 with 1-bit weights; with ``activations`` the inputs of its binary convolutions have 1 bit too.

    ReLU would make every such input +1, so it gives way to hardtanh, as in binarised networks.
    """
    return ResNet(
        BasicBlock,
        [1, 1, 1],
        [16, 32, 64],
        classes=classes,
        channels=shape[0],
        norm=partial(norm_layer, norm, groups=groups),
        conv=partial(BinaryConv2d, binary_input=activations),
        activation=nn.Hardtanh if activations else partial(nn.ReLU, inplace=True),
    )


def binary_weights(network: nn.Module) -> dict[str, torch.Size]:
    """The names and shapes of the network's 1-bit weights; empty where it has none."""
    return {f"{name}.weight": module.weight.shape for name, module in network.named_modules() if isinstance(module, BinaryConv2d)}


def pack_bits(state: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """The state with each binary weight replaced by ``KEY.bits``, eight signs a byte, and ``KEY.scale``.

    >>> from fedstill.models import build
    >>> net = build("resnet8-binary", classes=10, shape=(3, 32, 32))
    >>> packed = pack_bits(net.state_dict(), net)
    >>> packed["layer1.0.conv1.weight.bits"].shape, packed["layer1.0.conv1.weight.bits"].dtype
    (torch.Size([288]), torch.uint8)
    """
    packed = dict(state)
    for key in binary_weights(network):
        weight = packed.pop(key)
        bits = F.pad((weight >= 0).flatten(), (0, -weight.numel() % 8)).view(-1, 8)
        packed[f"{key}.bits"] = (bits.to(torch.uint8) << _places(bits)).sum(1, dtype=torch.uint8)
        packed[f"{key}.scale"] = _scales(weight)
    return packed


def unpack_bits(packed: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """The state that ``pack_bits`` packed, with weights alpha sign(W): the same function, bit for bit."""
    state = dict(packed)
    for key, shape in binary_weights(network).items():
        bits, scale = state.pop(f"{key}.bits"), state.pop(f"{key}.scale")
        signs = (bits[:, None] >> _places(bits) & 1).flatten()[: shape.numel()].view(shape)
        state[key] = (2 * signs.to(scale.dtype) - 1) * scale.view(-1, 1, 1, 1)
    return {key: state[key] for key in network.state_dict() if key in state}


def _places(bits: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=bits.device)


ARCHITECTURES = {"resnet8-binary": Architecture(resnet8_binary, "ResNet-8 with 1-bit weights (XNOR-Net, Rastegari et al. 2016)")}
