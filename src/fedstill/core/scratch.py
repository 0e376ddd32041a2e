"""Temporary folders of a process. Folders of processes that were killed are removed by the next process.

The owner holds a lock on a file in its folder. The system releases the lock when the owner ends, however it ends.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from types import TracebackType

__all__ = ["Scratch", "alive", "remove_parts"]

PREFIX = "fedstill-"
OWNER = ".owner"
_PART = re.compile(r"^\..*\.(\d+)\.part$")


class Scratch:
    """A temporary folder, removed when it is closed or after its owner has ended.

    >>> with Scratch("doctest") as folder:
    ...     (folder / "a").write_text("a")
    1
    >>> folder.exists()
    False
    """

    def __init__(self, what: str, place: Path | None = None):
        place = place if place is not None else Path(tempfile.gettempdir())
        remove_orphans(place)
        self.folder, held = _made(what, place)
        self._end = weakref.finalize(self, _remove, self.folder, held)

    def close(self) -> None:
        """Remove the folder."""
        self._end()

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _made(what: str, place: Path) -> tuple[Path, int | None]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{what}-", dir=place))
        held = _claim(folder / OWNER, create=True)
        if (folder / OWNER).exists():  # else another process took it for an orphan before it was claimed
            return folder, held


def _remove(folder: Path, held: int | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if held is not None:
        os.close(held)


def remove_orphans(place: Path) -> None:
    """Remove the folders in ``place`` whose owners have ended. Folders of other users, or of unknown owners, stay."""
    for folder in place.glob(f"{PREFIX}*-*"):
        try:
            held = _claim(folder / OWNER)
        except OSError:  # it has no owner's file, or belongs to somebody else
            continue
        if held is not None:
            _remove(folder, held)


def _claim(path: Path, create: bool = False) -> int | None:
    """The lock on a file, or None if a living process holds it or the platform has no locks."""
    try:
        import fcntl  # a platform's own: not on Windows
    except ImportError:
        if create:
            path.touch()
        return None
    held = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held


def alive(process: int) -> bool:
    """Whether a process with this id exists.

    >>> alive(os.getpid())
    True
    """
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def remove_parts(folder: Path, older: float = 0.0) -> None:
    """Remove files in or below ``folder`` whose writing process ended before it finished. With ``older``, for folders that other
    machines write to as well, only files that have not changed for that many seconds."""
    for path in folder.rglob(".*.part"):
        found = _PART.match(path.name)
        try:
            if found is not None and not alive(int(found[1])) and time.time() - path.stat().st_mtime >= older:
                path.unlink()
        except FileNotFoundError:  # another one was faster
            continue
