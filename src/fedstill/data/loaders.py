"""Data that a program brings: loaders by name, and arrays as a data set.

``data.domains = ["clinic:north"]`` calls the loader ``clinic`` with ``"north"``; ``my_module:load:north`` calls the function
``load`` of ``my_module`` with it. A loader returns :class:`Arrays`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from fedstill.core.errors import FedstillError, reason_of
from fedstill.core.registry import Registry, resolve
from fedstill.data.raw import Kind, Raw, RawSplit

__all__ = ["LOADERS", "Arrays", "brought", "find_loader", "loader"]

_PLACE = re.compile(r"^([A-Za-z_][\w.]*):([A-Za-z_]\w*)(?::(.*))?$")


@dataclass(frozen=True)
class Arrays:
    """Samples as arrays or tensors: uint8 images ``(n, channels, height, width)``, vectors ``(n, width)`` of numbers, or texts.

    ``y`` are labels 0, 1, ... along ``classes``; ``test`` is a pair like ``(x, y)``, held out of ``x`` where it is left out.

    >>> Arrays(np.zeros((4, 2)), [0, 1, 0, 1], classes=("no", "yes")).raw.kind
    'vector'
    """

    x: Any
    y: Any = None
    classes: Sequence[str] = ()
    test: tuple[Any, Any] | None = None

    @cached_property
    def raw(self) -> Raw:
        """The same as every other source gives it."""
        kind = _kind(self.x)
        named = tuple(map(str, self.classes))
        if self.y is not None and not named:
            named = tuple(str(i) for i in range(int(_array(self.y).max()) + 1))
        train = _split(self.x, self.y, kind, len(named))
        return Raw(kind, named, train, _split(*self.test, kind, len(named)) if self.test is not None else None)

    @property
    def digest(self) -> str:
        """A fingerprint of the samples, by which decoded data is cached."""
        mark = hashlib.sha256(repr(tuple(self.classes)).encode())
        for part in (self.x, self.y, *(self.test or ())):
            if part is not None:
                array = _array(part)
                mark.update(f"{array.dtype}{array.shape}".encode())
                mark.update("\0".join(array.tolist()).encode() if array.dtype.kind == "U" else np.ascontiguousarray(array).data)
        return mark.hexdigest()


Load = Callable[[str], Arrays]
AnyLoad = TypeVar("AnyLoad", bound=Load)


def _adopted(name: str, thing: Any) -> Load:
    if not callable(thing):
        raise FedstillError(f"data loader '{name}': not callable")
    load: Load = thing
    return load


LOADERS: Registry[Load] = Registry("data loader", group="fedstill.loaders", adopt=_adopted)


def loader(name: str) -> Callable[[AnyLoad], AnyLoad]:
    """Add the decorated function to the common set of loaders."""
    return LOADERS.register(name)


def find_loader(source: str) -> tuple[Load, str] | None:
    """The loader that ``source`` names and the text after its name; None where it names none."""
    place = _PLACE.match(source)
    if place is not None and _there(place[1], place[2]):
        return LOADERS.get(f"{place[1]}:{place[2]}"), place[3] or ""
    prefix, colon, rest = source.partition(":")
    return (LOADERS.get(prefix), rest) if colon and prefix in LOADERS else None


def _there(module: str, thing: str) -> bool:
    """Whether a module here, the current folder included, has this name; a data set on the Hub has a colon in its name too."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
    if found:
        resolve(f"{module}:__name__", "data loader")  # imports it, or says in one line why it cannot be
    return found and hasattr(sys.modules[module], thing)


def brought(source: str) -> Arrays | None:
    """What the loader that ``source`` names brings; None where it names none."""
    found = find_loader(source)
    if found is None:
        return None
    load, rest = found
    try:
        arrays = load(rest)
    except FedstillError:
        raise
    except Exception as error:  # a foreign function may raise anything
        raise FedstillError(f"'{source}': its loader failed with {reason_of(error)}") from error
    if not isinstance(arrays, Arrays):
        raise FedstillError(f"'{source}': its loader returned {type(arrays).__name__}, not fedstill.data.Arrays")
    return arrays


def _array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _kind(x: Any) -> Kind:
    array = _array(x)
    if array.dtype.kind == "U":
        return "text"
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[1] in (1, 3):
        return "image"
    if array.dtype.kind in "fiub" and array.ndim == 2:
        return "vector"
    wanted = "uint8 images (n, 1 or 3, height, width), vectors (n, width) or texts"
    raise FedstillError(f"samples are {wanted}, not {array.dtype} of shape {array.shape}")


def _split(x: Any, y: Any, kind: Kind, classes: int) -> RawSplit:
    array = _array(x)
    labels = None if y is None else _array(y).astype(np.int64)
    if labels is not None and (labels.shape != (len(array),) or labels.min(initial=0) < 0 or labels.max(initial=0) >= classes):
        raise FedstillError(f"labels are {len(array)} whole numbers from 0 to {classes - 1}")
    if kind == "image":
        return RawSplit(len(array), lambda: map(_picture, array), labels)
    if kind == "vector":
        return RawSplit(len(array), lambda: iter(array.astype(np.float32)), labels)
    return RawSplit(len(array), lambda: (str(text) for text in array), labels)


def _picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
