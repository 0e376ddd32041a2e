"""How the replies' weights become one state per prototype: the contract and the names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import AfterValidator

from fedstill.algorithm import Reply, Round, Server
from fedstill.core.message import State
from fedstill.core.registry import Registry
from fedstill.task import Task

__all__ = ["MERGES", "Merge", "MergeName", "make_merge", "merge", "merges"]

Merge = Callable[[Task, Server, Sequence[Reply], Round], dict[str, State]]

MERGES: Registry[Merge] = Registry(
    "merge", group="fedstill.merges", home="fedstill.fusion.merges", adopt=lambda name, thing: thing
)


def merge(name: str) -> Callable[[Merge], Merge]:
    """Register a way to merge the replies' weights."""
    return MERGES.register(name)


def merges() -> list[str]:
    """The names of all registered merges.

    >>> "examples" in merges()
    True
    """
    return sorted(MERGES.names())


def make_merge(name: str) -> Merge:
    """The merge called ``name``."""
    return MERGES.get(name)


def _known(name: str) -> str:
    MERGES.get(name)
    return name


MergeName = Annotated[str, AfterValidator(_known)]  # an option whose value is one of merges()
