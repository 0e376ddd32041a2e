"""Every system, one a file. ``create`` makes the one that a configuration names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedstill.algorithm import Algorithm, Options
from fedstill.core.errors import FedstillError, unknown
from fedstill.core.options import validated
from fedstill.task import Task

__all__ = ["algorithms", "create", "find", "options_of"]


@cache
def algorithms() -> dict[str, type[Algorithm]]:
    """Every system by its name.

    >>> "fedavg" in algorithms()
    True
    """
    found: dict[str, type[Algorithm]] = {}
    for module in pkgutil.iter_modules(__path__):
        for item in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(item, type) and issubclass(item, Algorithm) and "name" in vars(item):
                found[item.name] = item
    return dict(sorted(found.items()))


def find(name: str) -> type[Algorithm]:
    """The system called ``name``; ``module.path:Class`` finds a user's own."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            kind = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise FedstillError(f"algorithm.name = '{name}': {error}") from None
        if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
            raise FedstillError(f"algorithm.name = '{name}' is not a subclass of fedstill.Algorithm")
        return kind
    if name not in algorithms():
        raise unknown("algorithm", name, algorithms())
    return algorithms()[name]


def options_of(table: Mapping[str, Any]) -> Options:
    """The validated options in an ``[algorithm]`` table."""
    given = {key: value for key, value in table.items() if key != "name"}
    return validated(find(table["name"]).Options, given, "algorithm")


def create(task: Task) -> Algorithm:
    """The algorithm that the task's configuration names; what it needs of the task is checked here."""
    kind = find(task.config.algorithm["name"])
    data = task.config.data
    if "pool" in kind.needs and not (data.server or data.target or data.holdout):
        raise FedstillError(f"{kind.name} distils on unlabelled data: set data.server, data.target or data.holdout")
    if "target" in kind.needs and not data.target:
        raise FedstillError(f"{kind.name} adapts to an unlabelled target domain: set data.target")
    if "generator" in kind.needs and len(task.shape) != 3:
        raise FedstillError(f"{kind.name} generates images; this task's inputs have shape {task.shape}")
    return kind(task, options_of(task.config.algorithm))
