"""Networks written elsewhere: a user's own callable, and torchvision's."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.errors import FedstillError, first_line

from .network import Architecture, Network

__all__ = ["Wrapped", "adopted", "from_callable", "from_torchvision", "last_linear"]


class Wrapped(Network):
    """Any module whose output is that of a linear layer, split in front of that layer.

    The layer becomes ``head`` and an identity takes its place in ``body``; all other tensors keep their names, after
    ``body.``. The layer is found by running the network once on zeros, so the order of definition does not matter.
    """

    def __init__(self, body: nn.Module, classes: int, shape: tuple[int, ...], name: str) -> None:
        super().__init__()
        self.split, head = last_linear(body, shape, name)
        if head.out_features != classes:
            raise FedstillError(f"model '{name}' has {head.out_features} outputs, and {classes} classes are needed")
        parent, _, last = self.split.rpartition(".")
        setattr(body.get_submodule(parent), last, nn.Identity())
        self.body = body
        self.feature_dim, self.classes = head.in_features, classes
        self.head = head

    def backbone(self, x: Tensor) -> Tensor:
        return self.body(x)

    def own_name(self, key: str) -> str:
        if key.startswith(self.split + "."):
            return "head." + key.removeprefix(self.split + ".")
        return key if key.startswith(("body.", "head.", "neck.")) else "body." + key


def last_linear(body: nn.Module, shape: tuple[int, ...], name: str) -> tuple[str, nn.Linear]:
    """The name of the linear layer whose output is the network's, and the layer."""
    outputs: list[tuple[str, nn.Linear, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda module, _, out, path=path: outputs.append((path, module, out)))
        for path, module in body.named_modules()
        if isinstance(module, nn.Linear) and path
    ]
    training = body.training
    try:
        with torch.no_grad():
            result = body.eval()(torch.zeros(2, *shape))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise FedstillError(f"model '{name}' does not take inputs of shape {tuple(shape)}: {first_line(error)}") from error
    finally:
        body.train(training)
        for hook in hooks:
            hook.remove()
    for path, module, out in reversed(outputs):
        if out is result and out.ndim == 2:
            return path, module
    raise FedstillError(f"model '{name}' does not end in a linear layer; make it a fedstill.models.Network instead")


def adopted(name: str, make: Any) -> Architecture:
    """A user's own callable as an architecture (``module.path:callable``, or an entry point of ``fedstill.models``)."""
    if not callable(make):
        raise FedstillError(f"model '{name}': not callable")
    summary = (make.__doc__ or "").strip().split("\n")[0] or "a network of one's own"
    return Architecture(partial(from_callable, make, name), summary, norms=(), smallest=1, foreign=True)


def from_callable(
    make: Callable[..., Any], name: str, *, classes: int, shape: tuple[int, ...], norm: str, **options: Any
) -> Network:
    """The network that ``make`` returns.

    It is called with ``classes``, with ``shape`` and ``norm`` if it takes them, and with the options. It returns a
    ``Network``, or any module that ends in a linear layer.
    """
    taken = inspect.signature(make).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    if anything or "shape" in taken:
        options["shape"] = shape
    if anything or "norm" in taken:
        options["norm"] = norm
    elif norm != "batch":
        raise FedstillError(f"model '{name}' takes no norm, and norm = '{norm}' was asked for")
    try:
        body = make(classes=classes, **options)
    except TypeError as error:
        raise FedstillError(f"model '{name}': {first_line(error)}") from error
    if not isinstance(body, nn.Module):
        raise FedstillError(f"model '{name}' returned {type(body).__name__}, not a torch.nn.Module")
    return body if isinstance(body, Network) else Wrapped(body, classes, shape, name)


def from_torchvision(name: str, *, classes: int, shape: tuple[int, ...], norm: str, **options: Any) -> Network:
    """The torchvision classifier ``torchvision:NAME``, with random weights, split before its last linear layer."""
    if norm != "batch":
        raise FedstillError(f"model '{name}' has its own normalisation, and norm = '{norm}' was asked for")
    try:
        models = importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:
        raise FedstillError(f"model '{name}' needs torchvision: pip install 'fedstill[torchvision]' ({error})") from error
    try:
        body = models.get_model(name.removeprefix("torchvision:"), num_classes=classes, **options)
    except (ValueError, TypeError) as error:
        raise FedstillError(f"model '{name}': {first_line(error)}") from error
    return Wrapped(body, classes, shape, name)
