"""The form of every classifier: a representation of the input and a head on top of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedstill.data.images import resized
from fedstill.data.samples import normalise

__all__ = ["Architecture", "Network", "Step"]


class Network(nn.Module):
    """A classifier split into ``features(x)``, its penultimate representation, and ``head(z)``, its last layer.

    A subclass sets ``feature_dim``, ``classes`` and ``head`` and defines ``backbone(x)``. Between the backbone and the
    head sits the neck: nothing, or what ``build(projection=...)`` and ``build(bottleneck=...)`` put there.

    >>> import torch
    >>> from fedstill.models import build
    >>> net = build("mlp", classes=3, shape=(1, 4, 4)).eval()
    >>> x = torch.zeros(2, 1, 4, 4)
    >>> net.features(x).shape, torch.equal(net.head(net.features(x)), net(x))
    (torch.Size([2, 200]), True)
    """

    feature_dim: int
    classes: int
    head: nn.Module
    mean: float | Sequence[float] = 0.5  # how raw images become inputs
    std: float | Sequence[float] = 0.5
    input_shape: tuple[int, ...] | None = None  # of the images it was trained on, if others are to be resized to it
    precision: torch.dtype | None = None  # of products and convolutions, if lower than that of the weights

    def normalise(self, x: Tensor) -> Tensor:
        """Raw samples as this network's inputs: uint8 images are resized and scaled, floats and token ids pass."""
        if self.input_shape is not None and x.dtype == torch.uint8:
            x = resized(x, self.input_shape)
        return normalise(x, self.mean, self.std)

    def __init__(self) -> None:
        super().__init__()
        self.neck: nn.Module = nn.Identity()

    def backbone(self, x: Tensor) -> Tensor:
        """The representation (n, width) before the neck."""
        raise NotImplementedError

    def steps(self) -> list[Step]:
        """The backbone in pieces, from input to output, between which it can be cut; one piece by default."""
        names = [name for name, _ in self.named_children() if name not in ("neck", "head")]
        return [Step(self.backbone, tuple(names))]

    def features(self, x: Tensor) -> Tensor:
        """The input (n, feature_dim) of the head."""
        with self.mixed(x):
            z: Tensor = self.neck(self.backbone(x))
        return z if self.precision is None else z.float()

    def forward(self, x: Tensor) -> Tensor:
        with self.mixed(x):
            logits: Tensor = self.head(self.features(x))
        return logits if self.precision is None else logits.float()

    def mixed(self, x: Tensor) -> AbstractContextManager[object]:
        """Torch's automatic mixed precision, if this network has a lower ``precision``. Weights, gradients, features and logits
        stay float32, and so do losses.

        >>> from fedstill.models import build
        >>> net = build("mlp", classes=3, shape=(1, 4, 4))
        >>> exact, net.precision = net(torch.ones(1, 1, 4, 4)), torch.bfloat16
        >>> lower = net(torch.ones(1, 1, 4, 4))
        >>> lower.dtype, torch.equal(lower, exact), torch.allclose(lower, exact, atol=0.05)
        (torch.float32, False, True)
        """
        return nullcontext() if self.precision is None else torch.autocast(x.device.type, dtype=self.precision)

    def own_name(self, key: str) -> str:
        """The name in this network of a tensor named ``key`` in a file of pretrained weights."""
        return {"fc.weight": "head.weight", "fc.bias": "head.bias"}.get(key, key)  # torchvision's ResNet, ShuffleNet


@dataclass(frozen=True)
class Step:
    """A piece of a backbone: what it computes, and the names of the network's modules that it uses."""

    call: Callable[[Tensor], Tensor]
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Architecture:
    """A builder and what it takes; the builder is called with classes, shape, norm and the model's own options."""

    builder: Callable[..., Network]
    summary: str
    norms: tuple[str, ...] = ("batch", "group")  # () for a model that has no normalisation by design
    smallest: int = 8  # pixels of the shorter side
    foreign: bool = False  # a builder from outside fedstill, which checks its own arguments
