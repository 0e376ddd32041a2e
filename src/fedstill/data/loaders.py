"""Data loaders by name, for data that a program provides.

``data.domains = ["clinic:north"]`` calls the loader ``clinic`` with ``"north"``; ``my_module:load:north`` calls the function
``load`` of ``my_module`` with it. A loader returns :class:`fedstill.data.Arrays`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedstill.core.errors import FedstillError, reason_of
from fedstill.core.registry import Registry, resolve
from fedstill.data.arrays import Arrays

__all__ = ["LOADERS", "brought", "find_loader", "loader"]

_PLACE = re.compile(r"^([A-Za-z_][\w.]*):([A-Za-z_]\w*)(?::(.*))?$")


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
    """The loader that ``source`` names and the text after its name; None if it names no loader."""
    place = _PLACE.match(source)
    if place is not None and _there(place[1], place[2]):
        return LOADERS.get(f"{place[1]}:{place[2]}"), place[3] or ""
    prefix, colon, rest = source.partition(":")
    return (LOADERS.get(prefix), rest) if colon and prefix in LOADERS else None


def _there(module: str, thing: str) -> bool:
    """Whether a module has this name, the current folder included. Names of data sets on the Hub may hold a colon too."""
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
    """What the loader that ``source`` names returns; None if it names no loader."""
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
