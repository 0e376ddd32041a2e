"""The contract of an engine: one verb, ``exchange``. It sends each chosen client its message and yields one :class:`Outcome` per
client, in any order. A client's failure is an outcome too; only the loop decides whether a round can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedstill.core.message import Message

__all__ = ["EVALUATE", "JUDGE", "Engine", "Outcome"]

EVALUATE = "evaluate"  # the phase in which clients test the model they receive and do not train
JUDGE = "judge"  # the phase in which clients compare points between two models on held-out data


@dataclass(frozen=True)
class Outcome:
    """The result of one client's exchange: a function that reads its reply, or the reason why there is none."""

    client: str
    read: Callable[[], Message] | None = None
    reason: str | None = None
    nbytes: int = 0
    accuracy: float | None = None  # of the model sent to the client, on the client's test data, if it was asked to test
    tested: int = 0  # number of test samples


class Engine(Protocol):
    """What the loop needs from an engine."""

    def exchange(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> Iterator[Outcome]:
        """Send each client its message and yield the outcomes as they arrive. Clients may begin before the first outcome is asked
        for; the caller can use the time between."""
        ...

    def close(self) -> None:
        """Stop every process and remove scratch files."""
        ...
