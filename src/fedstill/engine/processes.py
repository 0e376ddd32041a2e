"""End processes together with all their descendants, even if their parent is killed.

Only the standard library is imported: this file is run by its path as the keeper, a small process that outlives its parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Keeper", "born", "descendants", "kill"]


class Keeper:
    """Ends the watched processes when its parent dies, even by SIGKILL: the pipe between them then closes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", __file__], stdin=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )

    def watch(self, pid: int) -> None:
        """From now on, this process, its group and its descendants end with the parent."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the keeper was killed; the federation works without it
            self.process.stdin.write(f"{pid}\n")

    def dismiss(self) -> None:
        """End the keeper: the parent has cleaned up itself."""
        self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def keep(lines: Iterable[str]) -> None:
    """The keeper's main loop: read process ids until the pipe closes, then end those processes."""
    watched = {int(line): born(int(line)) for line in lines}
    alive = {pid: since for pid, since in watched.items() if since is not None and born(pid) == since}
    family = descendants(alive)
    for pid in alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    kill(family)


def kill(family: dict[int, int]) -> None:
    """End these processes, but not new ones that reuse their ids."""
    for pid, since in family.items():
        if born(pid) == since:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def born(pid: int) -> int | None:
    """When a process was started, in ticks since the machine's start; None if it has ended or there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def descendants(parents: Iterable[int]) -> dict[int, int]:
    """Every descendant of these processes, and when it was started; empty if there is no /proc.

    >>> child = subprocess.Popen(["sleep", "60"])
    >>> found = child.pid in descendants([os.getpid()]) or not Path("/proc/self/stat").exists()
    >>> child.kill(); _ = child.wait()
    >>> found
    True
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            children.setdefault(int(entry.read_text().rpartition(")")[2].split()[1]), []).append(int(entry.parent.name))
    found: dict[int, int] = {}
    queue = list(parents)
    while queue:
        for pid in children.get(queue.pop(), []):
            since = born(pid)
            if since is not None:
                found[pid] = since
                queue.append(pid)
    return found


if __name__ == "__main__":
    keep(sys.stdin)
