"""Engines carry messages between an algorithm's server and its clients, and know nothing of algorithms.

An engine has one verb, ``exchange``: it hands each chosen client its message and yields what comes back, an :class:`Outcome`
a client, in any order. What a client failed with is an outcome too; only the loop decides whether a round can go on.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from fedstill.message import Message

__all__ = ["EVALUATE", "Engine", "Outcome", "Spool"]

EVALUATE = "evaluate"  # the phase in which clients judge what they are sent and train nothing
IN_MEMORY = 64 << 20  # replies of a round beyond this many bytes are spooled to disk


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


class Spool:
    """Where the replies of a round wait to be read: in memory while they are small, in files beyond that.

    >>> spool = Spool()
    >>> spool.keep(1, "train", "a", Message.of(samples=3))().values
    {'samples': 3}
    >>> spool.close()
    """

    def __init__(self, most: int = IN_MEMORY) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fedstill-"))
        self.most = most
        self.held = 0

    def begin(self, round: int) -> None:
        """Forget other rounds. Files are unlinked, not overwritten: tensors may still be mapped from them."""
        for old in self.folder.glob("*.safetensors"):
            if not old.name.startswith(f"{round}-"):
                old.unlink()
        self.held = 0

    def path(self, round: int, phase: str, client: str) -> Path:
        """The file of one reply."""
        return self.folder / f"{round}-reply-{quote(client, safe='')}-{phase}.safetensors"

    def keep(self, round: int, phase: str, client: str, reply: Message) -> Callable[[], Message]:
        """Keep a reply; what is returned reads it."""
        self.held += reply.nbytes
        if self.held <= self.most:
            return lambda: reply
        path = self.path(round, phase, client)
        path.write_bytes(reply.to_bytes())
        return lambda: Message.load(path)

    def reader(self, path: Path) -> Callable[[], Message]:
        """Reads the reply that another process wrote to ``path``; once, while replies are small."""
        kept: list[Message] = []

        def read() -> Message:
            if kept:
                return kept[0]
            message = Message.load(path)
            self.held += message.nbytes
            if self.held <= self.most:
                kept.append(message)
            return message

        return read

    def close(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder, ignore_errors=True)
