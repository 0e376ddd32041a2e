"""The events of a run. One interface for all listeners: the console, the trackers, and those of your own program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedstill.run.history import Line, Summary

if TYPE_CHECKING:  # a listener can be defined without torch, which is slow to import
    from fedstill.task import Task

__all__ = ["Listener", "Listeners"]


class Listener:
    """Receives the events of a run; the command line draws them, a tracker records them."""

    def preparing(self) -> None:
        """A run is about to begin: its data is being read."""

    def started(self, task: Task, rounds_done: int) -> None:
        """A run begins, or continues after ``rounds_done`` rounds."""

    def progress(self, what: str, done: int, of: int) -> None:
        """A step of the round in progress."""

    def round(self, line: Line) -> None:
        """A round has ended; ``line`` is its line of the history."""

    def warn(self, text: str) -> None:
        """Something the user should know."""

    def finished(self, summary: Summary) -> None:
        """The run has ended."""

    def kept(self, folder: Path) -> None:
        """The run was already finished: nothing was done."""

    def closed(self) -> None:
        """The last event of a run, whether it succeeded or failed."""


class Listeners(Listener):
    """Several listeners as one, called in order."""

    def __init__(self, listeners: Sequence[Listener]):
        self.listeners = listeners

    def preparing(self) -> None:
        for listener in self.listeners:
            listener.preparing()

    def started(self, task: Task, rounds_done: int) -> None:
        for listener in self.listeners:
            listener.started(task, rounds_done)

    def progress(self, what: str, done: int, of: int) -> None:
        for listener in self.listeners:
            listener.progress(what, done, of)

    def round(self, line: Line) -> None:
        for listener in self.listeners:
            listener.round(line)

    def warn(self, text: str) -> None:
        for listener in self.listeners:
            listener.warn(text)

    def finished(self, summary: Summary) -> None:
        for listener in self.listeners:
            listener.finished(summary)

    def kept(self, folder: Path) -> None:
        for listener in self.listeners:
            listener.kept(folder)

    def closed(self) -> None:
        for listener in self.listeners:
            listener.closed()
