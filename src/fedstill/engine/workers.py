"""The parent's view of worker processes.

Workers are processes that exchange JSON lines over their pipes and tensors through safetensors files, so nothing is pickled and a
script needs no ``__main__`` guard. They are forked from a prepared process where that is safe (:mod:`fedstill.engine.prepared`).
Each worker builds the task from the same configuration, maps the cached data (pages shared between processes) and keeps one
network per architecture whose weights are replaced in place.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.config.tables import Config
from fedstill.core.registry import plugged_modules
from fedstill.engine.exchange import Outcome
from fedstill.engine.prepared import Process, forked, surroundings
from fedstill.engine.spool import Spool
from fedstill.engine.waiting import Job, Paces, Waiting

__all__ = ["Worker", "WorkerSettings"]


@dataclass(frozen=True)
class WorkerSettings:
    """The settings that all workers of an engine share."""

    config: Config
    memory: Path  # the clients' private states
    log: Path  # full tracebacks of clients' failures
    threads: int


class Worker:
    """One subprocess, restarted if it dies."""

    def __init__(self, settings: WorkerSettings, spool: Spool):
        self.settings, self.spool = settings, spool
        self.process: Process | None = None

    def start(self) -> Process:
        """The process, started if none is alive; it gets ready in the background."""
        if self.process is not None and self.process.poll() is None:
            return self.process
        self._forget()
        environment = surroundings(self.settings.threads)
        with open(self.settings.log, "ab") as log:
            process = forked(environment, log) or subprocess.Popen(
                [sys.executable, "-m", "fedstill.engine.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        hello = {
            "config": self.settings.config.model_dump(mode="json", exclude_none=True),
            "folder": str(self.settings.memory),
            "threads": self.settings.threads,
            "plugins": plugged_modules(),
        }
        assert process.stdin is not None
        self.process = process
        process.stdin.write(json.dumps(hello).encode() + b"\n")
        process.stdin.flush()
        return process

    def work(self, job: Job | None, waiting: Waiting, results: queue.SimpleQueue[Outcome], paces: Paces) -> None:
        """Go on from a job that was sent, and take others until none is left; each gives exactly one result.

        The next job is sent before the last result is handed over, and most of them while the last one is still at work, so that
        the process never waits for the loop.
        """
        while job is not None:
            following = waiting.ahead(job)
            if following is not None:
                self._write(following)
            answer = self._receive()
            if following is not None and answer.get("ended"):  # the process has not begun what it had got ahead
                waiting.give_back(following)
                following = None
            if following is None and (following := waiting.take()) is not None:
                self.send(following)
            if "seconds" in answer:
                paces.note(job["kind"], job["samples"], answer["seconds"])
            results.put(self._outcome(job, answer))
            job = following

    def send(self, job: Job) -> None:
        """Give the process a job, and start one if none is alive."""
        with contextlib.suppress(OSError):  # a process that cannot start or has died sends no answer, which is reported
            self.start()
            self._write(job)

    def _write(self, job: Job) -> None:
        if self.process is None:
            return
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # as above
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()

    def ask(self, job: Job) -> dict[str, Any]:
        """The answer to one job."""
        self.send(job)
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        process = self.process
        if process is None:
            return {"error": "its worker process did not start", "ended": True}
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = process.wait()
        self._forget()
        return {"error": f"its worker process ended with status {code}", "ended": True}

    def _forget(self) -> None:
        """Close the pipes of a process that has ended."""
        if self.process is not None:
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):  # buffered data can no longer be written
                    pipe.close()
        self.process = None

    def _outcome(self, job: Job, answer: dict[str, Any]) -> Outcome:
        if "error" in answer:
            return Outcome(job["client"], reason=answer["error"])
        return Outcome(job["client"], self.spool.reader(Path(job["reply"])), nbytes=answer["nbytes"])

    def kill(self) -> None:
        """End the process at once; the thread that reads from it sees the end of its output."""
        process = self.process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """Let the process end by itself; kill it if this takes too long."""
        process = self.process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget()
