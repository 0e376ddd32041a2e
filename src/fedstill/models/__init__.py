"""Classifiers by name, all split into ``features`` and ``head``, and generators.

Besides the built-in names there are ``torchvision:NAME``, ``hf:NAME_OR_FOLDER`` for the text encoders of Hugging Face,
``text:minilm`` for the one that comes inside a package, and ``module.path:callable`` for a user's own network.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError, first_line, unknown
from fedstill.core.registry import Registry

from . import binary, cnn, dafkd, efficientnet, heads, mlp, mobilenet, resnet, shufflenet, text, vgg
from .generator import Generator, build_generator, describe_generator, generator_kinds
from .layers import seeded
from .network import Architecture, Network
from .pretrained import find_weights
from .weights import load_weights
from .wrapped import adopted, from_torchvision

__all__ = [
    "MODELS",
    "Generator",
    "Network",
    "build",
    "build_generator",
    "describe",
    "describe_generator",
    "generator_kinds",
    "load_weights",
    "names",
]

MODELS: Registry[Architecture] = Registry("model", group="fedstill.models", adopt=adopted)
for _family in (mlp, cnn, resnet, dafkd, vgg, shufflenet, mobilenet, efficientnet, binary, text):
    for _name, _architecture in _family.ARCHITECTURES.items():
        MODELS.add(_name, _architecture, _architecture.builder)


def names() -> list[str]:
    """Every model that has a name: the built-in ones, then those of installed packages.

    >>> names()[:3]
    ['mlp', 'cnn', 'cnn-small']
    """
    return MODELS.names()


def describe(name: str) -> str:
    """One line on a built-in model, with its paper and the norms it takes.

    >>> describe("lenet")
    "MOON's simple CNN, conv5 6, conv5 16, 120, 84 (Li et al. 2021); no norm"
    """
    architecture = MODELS.get(name)
    norms = "norm " + ", ".join(architecture.norms) if architecture.norms else "no norm"
    return f"{architecture.summary}; {norms}"


def build(
    name: str,
    *,
    classes: int,
    shape: Sequence[int],
    norm: str = "batch",
    seed: int | None = None,
    projection: int | None = None,
    bottleneck: int | None = None,
    head: Sequence[int] = (),
    weights: str | Path | None = None,
    **options: Any,
) -> Network:
    """A network for inputs of ``shape``: (channels, height, width) of images, (length,) of token ids.

    ``norm`` is "batch", "group" (with the option ``groups``, 2 by default) or "none", as far as the model takes it;
    a model that has no normalisation by design accepts the default. With ``seed`` the initial weights depend on the
    seed alone, and the global random state is left as it was. ``projection`` and ``bottleneck`` are widths of the
    parts in :mod:`fedstill.models.heads`, ``head`` those of hidden layers in the head; ``weights`` is a file of pretrained
    weights, or the name of packaged ones (:mod:`fedstill.models.pretrained`), which bring their normalisation of inputs.

    >>> net = build("resnet8", classes=10, shape=(3, 32, 32), seed=0)
    >>> sum(p.numel() for p in net.parameters()), net.feature_dim
    (78042, 64)
    """
    shape = tuple(shape)
    if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
        raise FedstillError(f"shape = {list(shape)}: sizes are positive integers")
    if classes < 1:
        raise FedstillError(f"classes = {classes}: a classifier needs at least one")
    if (projection is not None) + (bottleneck is not None) + bool(head) > 1:
        raise FedstillError("a model has a projection, a bottleneck or a head with hidden layers: one of them")
    head = [head] if isinstance(head, int) else list(head)
    if not all(isinstance(width, int) and width > 0 for width in head):
        raise FedstillError(f"head = {head}: widths of hidden layers are whole numbers above 0")
    for option, value in (("projection", projection), ("bottleneck", bottleneck)):
        if value is not None and value < 1:
            raise FedstillError(f"{option} = {value}: a width is at least 1")
    with seeded(seed):
        if name.startswith("torchvision:"):
            network = from_torchvision(name, classes=classes, shape=shape, norm=norm, **options)
        elif name.startswith(("hf:", "text:")):
            network = _call(functools.partial(text.from_transformers, name), name, classes, shape, norm, options)
        else:
            network = _builtin(name, classes, shape, norm, options)
        if projection is not None:
            network = heads.projection(network, projection)
        if bottleneck is not None:
            network = heads.bottleneck(network, bottleneck)
        if head:
            network = heads.hidden_head(network, head)
    if weights is not None:
        packaged = find_weights(name, str(weights))
        if packaged is not None:
            weights, known = packaged
            network.mean, network.std = known.mean, known.std
        load_weights(network, weights)
    return network


def _builtin(name: str, classes: int, shape: tuple[int, ...], norm: str, options: dict[str, Any]) -> Network:
    architecture = MODELS.get(name)
    if architecture.foreign:
        return architecture.builder(classes=classes, shape=shape, norm=norm, **options)
    if norm != "batch" and norm not in architecture.norms:
        takes = ", ".join(architecture.norms) or "no normalisation"
        raise FedstillError(f"model '{name}' cannot have norm = '{norm}'; it takes {takes}")
    if architecture.smallest > 1:
        if len(shape) != 3:
            raise FedstillError(f"model '{name}' takes images (channels, height, width), not shape {shape}")
        if min(shape[1:]) < architecture.smallest:
            raise FedstillError(f"model '{name}' takes images of at least {architecture.smallest} pixels, not {shape[1:]}")
    return _call(architecture.builder, name, classes, shape, norm, options)


def _call(
    builder: Callable[..., Network],
    name: str,
    classes: int,
    shape: tuple[int, ...],
    norm: str,
    options: dict[str, Any],
) -> Network:
    fixed = builder.keywords if isinstance(builder, functools.partial) else {}
    valid = [key for key in inspect.signature(builder).parameters if key not in {"classes", "shape", "norm", *fixed}]
    for option in options:
        if option not in valid:
            raise unknown(f"option of model '{name}'", option, [*valid, "projection", "bottleneck", "head", "weights"])
    try:
        return builder(classes=classes, shape=shape, norm=norm, **options)
    except TypeError as error:  # an option of the wrong type
        raise FedstillError(f"model '{name}': {first_line(error)}") from error
