"""A network cut in two: a frozen trunk, and the top that is trained, sent and averaged.

The trunk is not part of the top's state: it has no gradient, is never sent, and its BatchNorm never moves. The top takes the
trunk's outputs as inputs, so they can be computed once and kept; given raw samples, it computes them itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.digests import digest
from fedstill.core.errors import FedstillError

from .network import Network

__all__ = ["Top", "cut_of", "is_cut", "same_trunk", "whole_state"]

CHUNK = 4  # samples that pass the trunk at once: with more, most of the time goes into getting memory from the system
_LAST = re.compile(r"^last:([1-9]\d*)$")


def is_cut(train: str) -> bool:
    """Whether ``model.train`` freezes anything; an invalid value is refused.

    >>> is_cut("all"), is_cut("head"), is_cut("last:2")
    (False, True, True)
    """
    if train not in ("all", "head") and not _LAST.match(train):
        raise FedstillError(f"model.train = '{train}': it is 'all', 'head' or 'last:N', the last N pieces of the backbone")
    return train != "all"


def cut_of(network: Network, train: str) -> int:
    """How many pieces of the backbone are frozen."""
    pieces = len(network.steps())
    wanted = _LAST.match(train)
    if wanted is None:
        return pieces
    last = int(wanted[1])
    if last >= pieces:
        can = f"has {pieces} pieces: train at most last:{pieces - 1}" if pieces > 1 else "cannot be cut: train 'all' or 'head'"
        raise FedstillError(f"model.train = '{train}': the backbone {can}")
    return pieces - last


class Top(Network):
    """The trained part of ``whole``. Its modules keep their names; the first ``cut`` pieces of the backbone are the trunk.

    >>> from fedstill.models import build
    >>> whole = build("resnet8", classes=3, shape=(3, 32, 32), seed=0)
    >>> top = Top(whole, cut_of(whole, "head"))
    >>> sorted(top.state_dict()), top.normalise(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    (['head.bias', 'head.weight'], torch.Size([2, 64]))
    """

    def __init__(self, whole: Network, cut: int) -> None:
        super().__init__()
        whole.eval()
        for parameter in whole.parameters():
            parameter.requires_grad_(False)
        object.__setattr__(self, "whole", whole)  # not a submodule: what is frozen is not in the state
        self.cut = cut
        for step in whole.steps()[cut:]:
            for name in step.modules:
                _graft(self, name, whole.get_submodule(name))
        self.neck, self.head = whole.neck, whole.head
        self.feature_dim, self.classes = whole.feature_dim, whole.classes
        self.input_shape, self.mean, self.std = whole.input_shape, whole.mean, whole.std
        for parameter in self.parameters():
            parameter.requires_grad_(True)

    whole: Network

    @property
    def trunk_state(self) -> dict[str, Tensor]:
        """The frozen tensors, by their names in the whole network."""
        own = self.state_dict().keys()
        return {name: tensor for name, tensor in self.whole.state_dict().items() if name not in own}

    @cached_property
    def digest(self) -> str:
        """A digest of the trunk: its weights, where it is cut, and how it normalises its inputs. It never changes.

        >>> from fedstill.models import build
        >>> networks = [build("mlp", classes=3, shape=(1, 2, 2), seed=s, head=h) for s, h in [(0, []), (0, [4]), (1, [])]]
        >>> tops = [Top(network, cut_of(network, "head")) for network in networks]
        >>> tops[0].digest == tops[1].digest != tops[2].digest
        True
        """
        return digest(self.trunk_state, json.dumps([self.cut, self.whole.mean, self.whole.std]))

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the trunk's output for one sample of ``shape``."""
        images = len(shape) == 3
        return tuple(self.trunk(torch.zeros(1, *shape, dtype=torch.uint8 if images else torch.int64)).shape[1:])

    def trunk(self, x: Tensor) -> Tensor:
        """The trunk's outputs for raw samples, one chunk at a time."""
        return torch.cat(list(self._chunks(x)))

    def _chunks(self, x: Tensor) -> Iterator[Tensor]:
        device = next(self.whole.parameters()).device
        with torch.no_grad():
            for part in x.split(CHUNK):
                z = self.whole.normalise(part.to(device))
                for step in self.whole.steps()[: self.cut]:
                    z = step.call(z)
                yield z

    def normalise(self, x: Tensor) -> Tensor:
        """Pass raw samples through the trunk; the trunk's outputs, which are floats, are left unchanged."""
        return x if x.is_floating_point() else self.trunk(x)

    def backbone(self, x: Tensor) -> Tensor:
        for step in self.whole.steps()[self.cut :]:
            x = step.call(x)
        return x

    def own_name(self, key: str) -> str:
        return self.whole.own_name(key)

    def to(self, *place: Any, **options: Any) -> Top:
        """Move the top, and the trunk with it."""
        self.whole.to(*place, **options)
        return super().to(*place, **options)


def whole_state(network: Network) -> dict[str, Tensor]:
    """All of a network's tensors, the frozen ones among them where it is a top."""
    return (network.whole if isinstance(network, Top) else network).state_dict()


def _graft(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put ``module`` below ``root`` under a dotted name."""
    *path, last = name.split(".")
    for part in path:
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)


def same_trunk(one: Top, other: Top) -> bool:
    """Whether two tops stand on equal trunks: the same cut, weights and normalisation of the inputs."""
    if (one.cut, one.whole.mean, one.whole.std) != (other.cut, other.whole.mean, other.whole.std):
        return False
    mine, theirs = one.trunk_state, other.trunk_state
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
