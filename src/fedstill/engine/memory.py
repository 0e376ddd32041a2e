"""Clients' private state, on disk beside the run: a thousand clients cost the memory of one.

A state is written under the round that made it, and read as the newest one from before the round that asks. A round that was
interrupted and is run again therefore starts from what its clients had before it, which is what makes a resume exact. The name of
a file has a digest of its bytes, so a damaged one is noticed before it is used.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write
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
        return _versions(self.folder / quote(client, safe=""))

    def read(self, client: str, round: int) -> Message:
        """What the client kept from its last round before ``round``; empty where there is nothing."""
        before = [path for number, path in self._versions(client) if number < round]
        return Message.load(_sound(before[-1])) if before else Message()

    def write(self, client: str, round: int, message: Message) -> None:
        """Keep ``message`` for the client's rounds after ``round``."""
        data = message.to_bytes()
        for number, path in self._versions(client):
            if number == round:  # an earlier phase's, or one that an interrupted round left
                path.unlink(missing_ok=True)
        name = f"{round}-{_digest(data)}.safetensors"
        atomic_write(self.folder / quote(client, safe="") / name, data)
        for _, path in [v for v in self._versions(client) if v[0] <= round][:-KEEP]:
            path.unlink(missing_ok=True)

    def check(self, round: int) -> None:
        """Refuse to begin ``round`` where a client's state from before it is damaged: it would go on as another client."""
        for client in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            before = [path for number, path in _versions(client) if number < round]
            if before:
                _sound(before[-1])


def _versions(folder: Path) -> list[tuple[int, Path]]:
    """The states of one client, the oldest first; those of older versions have no digest in their names."""
    found = [(path.stem.partition("-")[0], path) for path in folder.glob("*.safetensors")]
    return sorted((int(number), path) for number, path in found if number.isdigit())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _sound(path: Path) -> Path:
    """The file, whose bytes are those that were written."""
    _, _, mark = path.stem.partition("-")
    if mark and _digest(path.read_bytes()) != mark:
        raise FedstillError(f"{path} is damaged: what a client kept from round to round cannot be read")
    return path
