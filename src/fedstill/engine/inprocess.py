"""The embedded engine: clients train in this process, or in worker processes on this machine."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from fedstill.algorithm import Algorithm
from fedstill.core.errors import reason_of
from fedstill.core.files import naming
from fedstill.core.message import Message
from fedstill.engine.exchange import Outcome
from fedstill.engine.jobs import WorkerJobs
from fedstill.engine.memory import Memory
from fedstill.engine.spool import Spool
from fedstill.engine.training import Training
from fedstill.engine.turn import client_turn
from fedstill.engine.waiting import Job, Paces
from fedstill.engine.workers import Worker, WorkerSettings

__all__ = ["InProcess"]


class InProcess:
    """Runs clients here (``workers=0``) or in ``workers`` subprocesses."""

    def __init__(self, algorithm: Algorithm, folder: Path, *, workers: int = 0, threads: int = 0, timeout: float | None = None):
        self.algorithm = algorithm
        self.memory = Memory(folder / "clients")
        self.timeout = timeout
        self.spool = Spool()
        self.log = folder / "errors.log"  # full tracebacks of clients' failures
        settings = WorkerSettings(algorithm.task.config, self.memory.folder, self.log, threads)
        self.workers = [Worker(settings, self.spool) for _ in range(workers)]
        for worker in self.workers:  # they import and load while the loop gets ready
            with contextlib.suppress(OSError):  # the first job tries again and reports the reason
                worker.start()
        self.jobs = WorkerJobs(self.workers) if self.workers else None
        self._training: Training | None = None
        self._paces = Paces()
        self._numbers = count()
        algorithm.task.jobs = self.jobs

    def exchange(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> Iterator[Outcome]:
        """See :class:`fedstill.engine.exchange.Engine`. Clients in worker processes train from this call on."""
        if self.jobs is None:
            self.spool.begin(round)
            return self._exchange_here(round, phase, messages)
        self._training = Training(self.jobs, self._written(round, phase, messages), self.timeout, self._paces)
        self.spool.begin(round)
        return self._training.outcomes()

    def _exchange_here(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> Iterator[Outcome]:
        for client, message in messages:
            try:
                reply = client_turn(self.algorithm, client, round, phase, message, self.memory)
            except Exception as error:  # a client's failure costs its reply, not the run; the reason is in the history
                self._tell(client, traceback.format_exc())
                yield Outcome(client, reason=reason_of(error))
                continue
            yield Outcome(client, self.spool.keep(round, phase, client, reply), nbytes=reply.nbytes)

    def _written(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> list[Job]:
        """The messages as files, and what to tell a worker about each."""
        sent: dict[Any, Path] = {}
        jobs: list[Job] = []
        for client, message in messages:
            # most algorithms send every client the same tensors: one file serves them all
            key = (tuple((n, t.data_ptr(), t.shape) for n, t in message.tensors.items()), tuple(message.values.items()))
            if key not in sent:
                # no name is used twice: workers keep the last one
                sent[key] = self.spool.folder / f"{round}-message-{next(self._numbers)}.safetensors"
                with naming(sent[key]):
                    message.write(sent[key])
            info = self.algorithm.task.clients[client]
            kind = f"{phase} {info.prototype}"
            jobs.append(
                {
                    "client": client,
                    "round": round,
                    "phase": phase,
                    "message": str(sent[key]),
                    "reply": str(self.spool.path(round, phase, client)),
                    "kind": kind,
                    "samples": info.samples,
                    "cost": self._paces.cost(kind, info.samples),
                }
            )
        return jobs

    def _tell(self, client: str, text: str) -> None:
        with open(self.log, "a") as file:
            file.write(f"client {client}\n{text}\n")

    def close(self) -> None:
        """Stop the workers and remove the scratch files."""
        if self.jobs is not None:
            self.jobs.cancel()
        if self._training is not None:
            self._training.close()
        self.algorithm.task.jobs = None
        if self.jobs is not None:
            self.jobs.close()
        for worker in self.workers:
            worker.stop()
        self.spool.close()
        if self.log.exists() and self.log.stat().st_size == 0:
            self.log.unlink()
