"""Networks written elsewhere: a user's own module or callable, and torchvision's."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedstill.core.errors import FedstillError, first_line

from .layers import with_norm
from .network import Architecture, Network

__all__ = ["Whole", "Wrapped", "adopted", "from_callable", "from_torchvision"]


class Wrapped(Network):
    """Any module whose output is that of a linear layer, split in front of that layer.

    The layer becomes ``head`` and an identity takes its place in ``body``; all other tensors keep their names, after
    ``body.``. The layer is found by running the network once on zeros, so the order of definition does not matter.
    """

    def __init__(self, body: nn.Module, classes: int, shape: tuple[int, ...], name: str) -> None:
        super().__init__()
        last = _tried(body, _zeros(body, shape), f"model '{name}'").last
        if last is None or not last.path:
            raise FedstillError(f"model '{name}' does not end in a linear layer; make it a fedstill.models.Network instead")
        self.split, head = last.path, last.layer
        if head.out_features != classes:
            raise FedstillError(f"model '{name}' has {head.out_features} outputs, but {classes} classes are needed")
        parent, _, place = self.split.rpartition(".")
        setattr(body.get_submodule(parent), place, nn.Identity())
        self.body = body
        self.feature_dim, self.classes = head.in_features, classes
        self.head = head

    def backbone(self, x: Tensor) -> Tensor:
        z: Tensor = self.body(x)
        return z

    def own_name(self, key: str) -> str:
        if key.startswith(self.split + "."):
            return "head." + key.removeprefix(self.split + ".")
        return key if key.startswith(("body.", "head.", "neck.")) else "body." + key


class Whole(Network):
    """Any module from inputs to logits, used as it is; its tensors keep their names, after ``body.``.

    Its features are the inputs of its last linear layer; a module that does not end in one can still teach and learn. With
    ``shape`` it is run once on zeros, which tells the number of its classes. ``whose`` is its name in errors.

    >>> net = Whole(nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), "mine", (1, 2, 2))
    >>> x = torch.rand(2, 1, 2, 2)
    >>> net.classes, net.features(x).shape, torch.equal(net.head(net.features(x)), net(x))
    (3, torch.Size([2, 5]), True)
    """

    has_modes = True  # training and evaluation

    def __init__(self, body: nn.Module, whose: str, shape: tuple[int, ...] | None = None, classes: int | None = None) -> None:
        super().__init__()
        self.body, self.whose = body, whose
        self.training = body.training  # predictions restore the mode that they found
        if shape is not None:
            self.classes = _outputs(_tried(body, _zeros(body, shape), whose, self.has_modes).said, whose)
            if classes is not None and classes != self.classes:
                raise FedstillError(f"{whose} has {self.classes} outputs, but {classes} classes are named")

    def forward(self, x: Tensor) -> Tensor:
        with self.mixed(x):
            logits: Tensor = self.body(x)
        return logits if self.precision is None else logits.float()

    def features(self, x: Tensor) -> Tensor:
        """The inputs of the last linear layer."""
        if "head" not in self.__dict__:
            self._find_head(x[:2])
        seen: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            with self.mixed(x):
                self.body(x)
        finally:
            hook.remove()
        return seen[-1] if self.precision is None else seen[-1].float()

    def _find_head(self, x: Tensor) -> None:
        last = _tried(self.body, x, self.whose, self.has_modes).last
        if last is None:
            raise FedstillError(f"{self.whose} has no features to look at: it does not end in a linear layer")
        # not registered as a submodule: it is already one of the body's, and the names of tensors must not change
        self.__dict__["head"], self.feature_dim = last.layer, last.layer.in_features


class _Last(NamedTuple):
    """The linear layer whose output is the network's, and its name."""

    path: str
    layer: nn.Linear


class _Trial(NamedTuple):
    """A module's output, and its last layer if that is linear."""

    said: Any
    last: _Last | None


def _tried(body: nn.Module, inputs: Tensor, whose: str, has_modes: bool = True) -> _Trial:
    """Run the module once, in eval mode if it has one; it is left in the mode it was in."""
    outputs: list[tuple[_Last, Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, _, out, path=path: outputs.append((_Last(path, layer), out)))
        for path, layer in body.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    was_training = has_modes and body.training
    try:
        if was_training:
            body.eval()
        with torch.no_grad():
            said = body(inputs)
    except Exception as error:  # a foreign forward may raise anything
        raise FedstillError(f"{whose} does not take inputs of shape {tuple(inputs.shape[1:])}: {first_line(error)}") from error
    finally:
        if was_training:
            body.train()
        for hook in hooks:
            hook.remove()
    return _Trial(said, next((last for last, out in reversed(outputs) if out is said and out.ndim == 2), None))


def _zeros(body: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Two inputs where the module is."""
    parameter = next(body.parameters(), None)
    return torch.zeros(2, *shape, device=parameter.device if parameter is not None else "cpu")


def _outputs(said: Any, whose: str) -> int:
    """The number of classes in a module's output for two inputs."""
    if not isinstance(said, Tensor) or said.ndim != 2 or len(said) != 2:
        got = f"shape {tuple(said.shape)}" if isinstance(said, Tensor) else type(said).__name__
        raise FedstillError(f"{whose} returns {got} for two inputs; logits of shape (2, classes) are needed")
    return said.shape[1]


def adopted(name: str, make: Any) -> Architecture:
    """A user's own callable as an architecture (``module.path:callable``, or an entry point of ``fedstill.models``)."""
    if not callable(make):
        raise FedstillError(f"model '{name}': not callable")
    summary = (make.__doc__ or "").strip().split("\n")[0] or "a network of your own"
    return Architecture(partial(from_callable, make, name), summary, norms=(), smallest=1, foreign=True)


def from_callable(
    make: Callable[..., Any], name: str, *, classes: int, shape: tuple[int, ...], norm: str, **options: Any
) -> Network:
    """The network that ``make`` returns.

    It is called with ``classes``, with ``shape`` and ``norm`` if it takes them, and with the options. It returns a
    ``Network``, or any module that ends in a linear layer. If it does not take ``norm`` and another than ``batch`` is wanted,
    its BatchNorm layers are replaced.
    """
    taken = inspect.signature(make).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    if anything or "shape" in taken:
        options["shape"] = shape
    if anything or "norm" in taken:
        options["norm"] = norm
    try:
        body = make(classes=classes, **options)
    except TypeError as error:
        raise FedstillError(f"model '{name}': {first_line(error)}") from error
    if not isinstance(body, nn.Module):
        raise FedstillError(f"model '{name}' returned {type(body).__name__}, not a torch.nn.Module")
    if norm != "batch" and "norm" not in options:
        body = with_norm(body, norm, f"model '{name}'")
    return body if isinstance(body, Network) else Wrapped(body, classes, shape, name)


def from_torchvision(name: str, *, classes: int, shape: tuple[int, ...], norm: str, **options: Any) -> Network:
    """The torchvision classifier ``torchvision:NAME``, with random weights, split before its last linear layer."""
    try:
        models = importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:
        raise FedstillError(
            f"model '{name}' needs torchvision: pip install 'fedstill[torchvision]' ({first_line(error)})"
        ) from error
    try:
        body = models.get_model(name.removeprefix("torchvision:"), num_classes=classes, **options)
    except (ValueError, TypeError) as error:
        raise FedstillError(f"model '{name}': {first_line(error)}") from error
    if norm != "batch":
        body = with_norm(body, norm, f"model '{name}'")
    return Wrapped(body, classes, shape, name)
