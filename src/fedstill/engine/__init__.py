"""Engines carry messages between an algorithm's server and its clients, and know nothing of algorithms.

An engine has one verb, ``exchange``: it hands each chosen client its message and yields what comes back, an :class:`Outcome`
a client, in any order. What a client failed with is an outcome too; only the loop decides whether a round can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedstill.message import Message

__all__ = ["Engine", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What came of one client's exchange: a way to read its reply, or the reason there is none."""

    client: str
    read: Callable[[], Message] | None = None
    reason: str | None = None
    nbytes: int = 0


class Engine(Protocol):
    """What the loop needs of an engine."""

    def exchange(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> Iterator[Outcome]:
        """Send each client its message and yield the outcomes as they come."""
        ...

    def close(self) -> None:
        """Stop every process and remove scratch files."""
        ...
