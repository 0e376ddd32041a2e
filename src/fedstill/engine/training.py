"""An exchange in worker processes: clients train from the moment that it is made, and their outcomes are read later."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fedstill.engine.exchange import Outcome
from fedstill.engine.jobs import WorkerJobs
from fedstill.engine.workers import Worker

__all__ = ["Training"]


class Training:
    """The clients of one exchange at work. ``timeout`` counts from the start of the first of them."""

    def __init__(self, lender: WorkerJobs, jobs: Sequence[dict[str, Any]], timeout: float | None):
        self.timeout = timeout
        self._lender = lender
        self._jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        for job in jobs:
            self._jobs.put(job)
        self._waiting = [str(job["client"]) for job in jobs]
        self._results: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._begun = threading.Event()
        self._since = 0.0
        self._at_work: list[Worker] = []
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(lender.processes)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        worker = self._lender.lend()
        if not self._begun.is_set():
            self._since = time.monotonic()
            self._begun.set()
        self._at_work.append(worker)
        try:
            worker.work(self._jobs, self._results)
        finally:
            self._at_work.remove(worker)
            self._lender.give_back(worker)

    def outcomes(self) -> Iterator[Outcome]:
        """The outcomes as they arrive; after the timeout, one for each client that is missing."""
        try:
            self._begun.wait()
            while self._waiting:
                left = None if self.timeout is None else max(0.0, self._since + self.timeout - time.monotonic())
                try:
                    outcome = self._results.get(timeout=left)
                except queue.Empty:
                    break
                self._waiting.remove(outcome.client)
                yield outcome
        finally:
            self.close()
        for client in self._waiting:
            yield Outcome(client, reason=f"no reply within {self.timeout:g} s")

    def close(self) -> None:
        """End the exchange. If some clients have not answered, no further ones begin, and those at work are killed."""
        unread = bool(self._waiting)
        if unread:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._jobs.get_nowait()
        for thread in self._threads:
            while unread and thread.is_alive():
                for worker in list(self._at_work):
                    worker.kill()  # repeatedly: it may just have been restarted
                thread.join(0.1)
            thread.join()
