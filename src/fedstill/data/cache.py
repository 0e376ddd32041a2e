"""Decoded domains on disk: written once, then mapped into memory by every process that needs them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedstill.core.errors import FedstillError, first_line
from fedstill.core.scratch import remove_parts

__all__ = ["Kept", "cache_folder", "cached", "clear", "forget", "kept_in"]

_FORMAT = 3  # raised whenever the same source would be decoded differently

Entry = tuple[dict[str, Tensor], dict[str, Any]]


def cache_folder(folder: str | Path | None = None) -> Path:
    """The folder of decoded data: the one given, else ``$FEDSTILL_CACHE``, else ``~/.cache/fedstill``."""
    return Path(folder or os.environ.get("FEDSTILL_CACHE") or Path.home() / ".cache" / "fedstill").expanduser()


def cached(key: Mapping[str, Any], folder: Path, make: Callable[[], Entry], name: str) -> Entry:
    """The tensors and facts under ``key``: read from ``folder`` if they are there and intact, otherwise made and stored.

    The tensors are mapped from the file, so that all processes share its pages and opening takes no time. A file that
    is truncated or has a broken header is made again. ``name`` is for people: the same key under another name is the same entry.
    """
    path = _path(key, folder, name)
    found = _found(path)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with _claimed(path):
        found = _found(path)  # another process may have made it while this one waited
        return found if found is not None else _made(path, make)


@dataclass(frozen=True)
class Kept:
    """A file of the cache: what is in it, its size and when it was last used."""

    path: Path
    what: str  # "features" that a frozen network made, "data" that was decoded, or "unfinished"
    bytes: int
    used: float  # seconds since the epoch

    @property
    def name(self) -> str:
        """What it was made from."""
        return "-" if self.what == "unfinished" else self.path.stem.rsplit("-", 1)[0].removeprefix("features-")


def kept_in(folder: Path) -> list[Kept]:
    """The files of the cache, most recently used first."""
    found = []
    for path in folder.glob("*") if folder.is_dir() else []:
        if path.suffix not in (".safetensors", ".part"):
            continue
        with contextlib.suppress(OSError):  # another process may clear it at the same time
            status = path.stat()
            found.append(Kept(path, _contents(path), status.st_size, max(status.st_atime, status.st_mtime)))
    return sorted(found, key=lambda kept: -kept.used)


def _contents(path: Path) -> str:
    """What a file holds, from its header alone."""
    try:
        with safe_open(path, framework="pt") as stored:
            return "features" if set(json.loads(stored.metadata()["facts"])) == {"check"} else "data"
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return "unfinished"


def clear(folder: Path, what: str | None = None) -> list[Kept]:
    """Remove the cache's files, or those of one kind, and return them. Processes that have a file open can still read it, and
    files that a living process is writing stay."""
    gone = [kept for kept in kept_in(folder) if what in (None, kept.what)]
    if any(kept.path.suffix == ".part" for kept in gone):
        remove_parts(folder)
    for kept in gone:
        if kept.path.suffix != ".part":
            kept.path.unlink(missing_ok=True)
            kept.path.with_suffix(".lock").unlink(missing_ok=True)
    return [kept for kept in gone if not kept.path.exists()]


def forget(key: Mapping[str, Any], folder: Path, name: str) -> None:
    """Remove what is stored under ``key``."""
    _path(key, folder, name).unlink(missing_ok=True)


def _path(key: Mapping[str, Any], folder: Path, name: str) -> Path:
    mark = hashlib.sha256(json.dumps([_FORMAT, key], sort_keys=True).encode()).hexdigest()[:24]
    there = sorted(folder.glob(f"*-{mark}.safetensors"))
    return there[0] if there else folder / f"{_plain(name)}-{mark}.safetensors"


def _found(path: Path) -> Entry | None:
    if not path.exists():
        return None
    try:
        return _read(path)
    except FileNotFoundError:  # another process has just removed it
        return None
    except (SafetensorError, OSError, KeyError, ValueError):
        warnings.warn(f"{path} is damaged and is made again", stacklevel=4)
        path.unlink(missing_ok=True)
        return None


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Let one process at a time make an entry; others that need the same entry wait for it."""
    try:
        import fcntl  # a platform's own: not on Windows
    except ImportError:
        yield
        return
    lock = path.with_suffix(".lock")
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
        lock.unlink(missing_ok=True)


def _made(path: Path, make: Callable[[], Entry]) -> Entry:
    folder = path.parent
    tensors, facts = make()
    remove_parts(folder, older=3600)
    handle, aside = tempfile.mkstemp(dir=folder, prefix=".", suffix=f".{os.getpid()}.part")
    os.close(handle)
    try:
        try:
            save_file(tensors, aside, metadata={"facts": json.dumps(facts)})
        except SafetensorError as error:  # such as a full disk, which safetensors does not name
            raise FedstillError(f"cannot write {path}: {first_line(error)}") from error
        with open(aside, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(aside, 0o644)  # other users of a shared cache may read it
        os.replace(aside, path)
    finally:
        Path(aside).unlink(missing_ok=True)
    return _read(path)


def _read(path: Path) -> Entry:
    with safe_open(path, framework="pt") as stored:
        facts = json.loads(stored.metadata()["facts"])
        tensors: dict[str, Tensor] = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    return tensors, facts


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name).strip("-.")[-60:] or "domain"
