"""Checkpoints: the server's state after a round, written atomically; the last two are kept.

A checkpoint is one safetensors file with a digest of its bytes in its name, so a damaged one is noticed before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from fedstill.algorithm import Server
from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write
from fedstill.core.message import Message

__all__ = ["any_checkpoint", "load_checkpoint", "save_checkpoint"]

KEEP = 2


def save_checkpoint(folder: Path, round: int, server: Server) -> Path:
    """Write the state after ``round``."""
    data = server.to_message().to_bytes()
    path = folder / f"round-{round:06d}-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
    atomic_write(path, data)
    for old in _files(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-[0-9]*-*.safetensors"))


def any_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint, damaged or not."""
    return bool(_files(folder))


def load_checkpoint(folder: Path, warn: Callable[[str], None] = print) -> tuple[int, Server] | None:
    """The newest sound checkpoint and its round; None if there is no checkpoint. A damaged one is skipped with a warning, and the
    one before is used."""
    files = _files(folder)
    for path in reversed(files):
        _, number, digest = path.stem.split("-", 2)
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest()[:16] == digest:
            return int(number), Server.from_message(Message.from_bytes(data))
        warn(f"checkpoint {path} is damaged and is not used")
    if files:
        raise FedstillError(f"every checkpoint in {folder} is damaged; choose another folder (out)")
    return None
