"""Files that are whole or not there, and values as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["atomic_write", "to_json"]


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write aside, flush to disk, rename: a reader sees the old file or the new one, never a part.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> atomic_write(target, "hello"); target.read_text()
    'hello'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(aside, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def to_json(value: Any) -> str:
    """Compact JSON with tensors and numpy numbers turned into plain ones."""

    def plain(item: Any) -> Any:
        if hasattr(item, "tolist"):
            return item.tolist()
        if isinstance(item, Path):
            return str(item)
        raise TypeError(f"cannot write {type(item).__name__} as JSON")

    return json.dumps(value, default=plain)
