"""A sign of life: a message after a while without output."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedstill.core.console import elapsed

__all__ = ["QUIET", "Pulse", "alive"]

QUIET = 30.0  # seconds


class Pulse:
    """Calls ``beat`` from its own thread whenever ``quiet`` seconds have passed since the last :meth:`touch` or call.

    >>> heard = threading.Event()
    >>> pulse = Pulse(heard.set, quiet=0.01)
    >>> pulse.start(); heard.wait(5); pulse.stop()
    True
    """

    def __init__(self, beat: Callable[[], None], quiet: float | None = None):
        self.beat, self.quiet = beat, QUIET if quiet is None else quiet
        self.last = time.monotonic()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch, unless it is watching already."""
        self.touch()
        if self._thread is None:
            self._over.clear()
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def touch(self) -> None:
        """There was output just now."""
        self.last = time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(max(0.005, min(1.0, self.last + self.quiet - time.monotonic()))):
            if time.monotonic() - self.last >= self.quiet:
                self.touch()
                self.beat()

    def stop(self) -> None:
        """End the watch."""
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None


@contextmanager
def alive(say: Callable[[str], None], what: Callable[[], str]) -> Iterator[Pulse]:
    """Report from time to time what is being done, and for how long. Callers that print output themselves touch the pulse."""
    clock = time.monotonic()
    pulse = Pulse(lambda: say(f"{what()}, {elapsed(time.monotonic() - clock)} so far"))
    pulse.start()
    try:
        yield pulse
    finally:
        pulse.stop()
