"""Clients' private state, on disk beside the run: a thousand clients cost the memory of one.

A state is stored under the round that wrote it, and a round reads the newest state from before it. An interrupted round that is
run again therefore starts from the states before it, so a resume is exact. A file's name contains a digest of its bytes, so a
damaged file is noticed before it is used.
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

# the round in progress, the round before it, which may not have its checkpoint yet, and the rounds of the two checkpoints
KEEP = 4


class MemoryStore(Protocol):
    """A store of clients' private states, on any engine."""

    def read(self, client: str, round: int) -> Message:
        """The client's state from its last round before ``round``; empty if there is none."""
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
        """The client's state from its last round before ``round``; empty if there is none."""
        before = [path for number, path in self._versions(client) if number < round]
        return Message.load(_sound(before[-1])) if before else Message()

    def write(self, client: str, round: int, message: Message) -> None:
        """Keep ``message`` for the client's rounds after ``round``."""
        data = message.to_bytes()
        for number, path in self._versions(client):
            if number == round:  # from an earlier phase or an interrupted round
                path.unlink(missing_ok=True)
        name = f"{round}-{_digest(data)}.safetensors"
        atomic_write(self.folder / quote(client, safe="") / name, data)
        for _, path in [v for v in self._versions(client) if v[0] <= round][:-KEEP]:
            path.unlink(missing_ok=True)

    def check(self, round: int) -> None:
        """Refuse to begin ``round`` if a client's state from before it is damaged: the client would continue as another one."""
        for client in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            before = [path for number, path in _versions(client) if number < round]
            if before:
                _sound(before[-1])


def _versions(folder: Path) -> list[tuple[int, Path]]:
    """The states of one client, oldest first; files of older versions have no digest in their names."""
    found = [(path.stem.partition("-")[0], path) for path in folder.glob("*.safetensors")]
    return sorted((int(number), path) for number, path in found if number.isdigit())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _sound(path: Path) -> Path:
    """The file, after a check that its bytes are those that were written."""
    _, _, mark = path.stem.partition("-")
    if mark and _digest(path.read_bytes()) != mark:
        raise FedstillError(f"{path} is damaged: the client's private state cannot be read")
    return path
