"""Files that are either complete or absent, and values as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["atomic_write", "naming", "part_of", "to_json"]


def part_of(path: Path) -> Path:
    """The temporary file that is renamed to ``path`` once complete; its name holds the id of the process."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError that lacks it, as one about a full disk does.

    >>> with naming(Path("model.safetensors")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'model.safetensors'
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def atomic_write(path: Path, data: bytes | str | Iterable[str]) -> None:
    """Write to a temporary file, flush it to disk, rename it: a reader sees the old file or the new one, never a part. What is
    long can be given in pieces.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> atomic_write(target, "hello"); target.read_text()
    'hello'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = part_of(path)
    try:
        with naming(path), open(aside, "wb") as file:
            for piece in [data] if isinstance(data, bytes | str) else data:
                file.write(piece.encode() if isinstance(piece, str) else piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def to_json(value: Any) -> str:
    """Compact JSON; tensors and numpy numbers become plain numbers."""

    def plain(item: Any) -> Any:
        if hasattr(item, "tolist"):
            return item.tolist()
        if isinstance(item, Path):
            return str(item)
        raise TypeError(f"cannot write {type(item).__name__} as JSON")

    return json.dumps(value, default=plain)
