"""Clients' private state, on disk beside the run: a thousand clients cost the memory of one.

A state is written under the round that made it, and read as the newest one from before the round that asks. A round that was
interrupted and is run again therefore starts from what its clients had before it, which is what makes a resume exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from fedstill.core.message import Message

__all__ = ["Memory", "MemoryStore"]

KEEP = 3  # the round in progress, the last checkpoint's and the one before it


class MemoryStore(Protocol):
    """What keeps clients' private states, on this engine or another."""

    def read(self, client: str, round: int) -> Message:
        """What the client kept from its last round before ``round``; empty where there is nothing."""
        ...

    def write(self, client: str, round: int, message: Message) -> None:
        """Keep ``message`` for the client's rounds after ``round``."""
        ...


class Memory:
    """The private states of a run's clients.

    >>> import tempfile
    >>> memory = Memory(Path(tempfile.mkdtemp()))
    >>> memory.write("a", 1, Message.of(seen=1)); memory.write("a", 2, Message.of(seen=2))
    >>> memory.read("a", 2).values, memory.read("a", 3).values, memory.read("a", 1).values
    ({'seen': 1}, {'seen': 2}, {})
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def _versions(self, client: str) -> list[tuple[int, Path]]:
        files = (self.folder / quote(client, safe="")).glob("*.safetensors")
        return sorted((int(path.stem), path) for path in files if path.stem.isdigit())

    def read(self, client: str, round: int) -> Message:
        """What the client kept from its last round before ``round``; empty where there is nothing."""
        before = [path for number, path in self._versions(client) if number < round]
        return Message.load(before[-1]) if before else Message()

    def write(self, client: str, round: int, message: Message) -> None:
        """Keep ``message`` for the client's rounds after ``round``."""
        message.save(self.folder / quote(client, safe="") / f"{round}.safetensors")
        for _, path in [v for v in self._versions(client) if v[0] <= round][:-KEEP]:
            path.unlink(missing_ok=True)
