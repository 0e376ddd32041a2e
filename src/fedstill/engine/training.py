"""An exchange in worker processes: clients train from the moment that it is made, and their outcomes are read later."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence

from fedstill.engine.exchange import Outcome
from fedstill.engine.jobs import WorkerJobs
from fedstill.engine.waiting import Job, Paces, Waiting
from fedstill.engine.workers import Worker

__all__ = ["Training"]


class Training:
    """The clients of one exchange at work. ``timeout`` counts from the start of the first of them."""

    def __init__(self, lender: WorkerJobs, jobs: Sequence[Job], timeout: float | None, paces: Paces):
        self.timeout = timeout
        self._lender = lender
        self._paces = paces
        self._jobs = Waiting(jobs, lender.processes)
        self._waiting = [str(job["client"]) for job in jobs]
        self._results: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._begun = threading.Event()
        self._since = 0.0
        self._at_work: list[Worker] = []
        # idle workers begin before the caller goes on: its work would keep the threads from sending them their first jobs
        first = [self._first() for _ in range(lender.processes)]
        self._threads = [threading.Thread(target=self._work, args=given, daemon=True) for given in first]
        for thread in self._threads:
            thread.start()

    def _first(self) -> tuple[Worker | None, Job | None]:
        worker = self._lender.lend_now()
        if worker is None:
            return None, None
        self._begin()
        job = self._jobs.take()
        if job is not None:
            worker.send(job)
        return worker, job

    def _begin(self) -> None:
        if not self._begun.is_set():
            self._since = time.monotonic()
            self._begun.set()

    def _work(self, worker: Worker | None, job: Job | None) -> None:
        if worker is None:
            worker = self._lender.lend()
            self._begin()
        self._at_work.append(worker)
        try:
            if job is None and (job := self._jobs.take()) is not None:
                worker.send(job)
            worker.work(job, self._jobs, self._results, self._paces)
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
            self._jobs.close()
        for thread in self._threads:
            while unread and thread.is_alive():
                for worker in list(self._at_work):
                    worker.kill()  # repeatedly: it may just have been restarted
                thread.join(0.1)
            thread.join()
