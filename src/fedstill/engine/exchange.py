"""What an engine promises: one verb, ``exchange``. It hands each chosen client its message and yields what comes back, an
:class:`Outcome` a client, in any order. What a client failed with is an outcome too; only the loop decides whether a round can go
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedstill.core.message import Message

__all__ = ["EVALUATE", "JUDGE", "Engine", "Outcome"]

EVALUATE = "evaluate"  # the phase in which clients test what they are sent and train nothing
JUDGE = "judge"  # the phase in which clients compare points between two models on what they hold out


@dataclass(frozen=True)
class Outcome:
    """What came of one client's exchange: a way to read its reply, or the reason there is none."""

    client: str
    read: Callable[[], Message] | None = None
    reason: str | None = None
    nbytes: int = 0
    accuracy: float | None = None  # of the model that the client was sent, on its own test data, where it was asked for that
    tested: int = 0  # how many samples that is


class Engine(Protocol):
    """What the loop needs of an engine."""

    def exchange(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> Iterator[Outcome]:
        """Send each client its message and yield the outcomes as they come."""
        ...

    def close(self) -> None:
        """Stop every process and remove scratch files."""
        ...
