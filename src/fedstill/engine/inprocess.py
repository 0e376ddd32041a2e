"""The embedded engine: clients train in this process, or in worker processes on this machine.

Workers are plain subprocesses that speak JSON lines over their pipes and exchange tensors through safetensors files, so nothing
is pickled and a script needs no ``__main__`` guard. Each worker builds the task from the same configuration, maps the cached
data (pages shared between processes) and keeps one network per architecture whose weights are replaced in place.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedstill.algorithm import Algorithm
from fedstill.engine import Outcome, Spool
from fedstill.engine.memory import Memory, Remembers
from fedstill.fusion.norm import buffer_names
from fedstill.fusion.screen import not_finite
from fedstill.local.poison import false_update
from fedstill.message import Message
from fedstill.models.binary import binary_weights, pack_bits
from fedstill.models.network import Network
from fedstill.streams import seeded

__all__ = ["InProcess", "reason_of", "received", "train_client"]


def train_client(algorithm: Algorithm, client: str, round: int, phase: str, message: Message, memory: Remembers) -> Message:
    """One client's turn, the same on every engine: remember, train, keep what it wants to keep."""
    task = algorithm.task
    later = phase != algorithm.phases(round)[0]  # later phases of a round go on from what earlier ones kept
    before = memory.read(client, round + 1 if later else round)
    person = task.client(client, round, before)
    local_buffers = keeps_buffers(algorithm, phase)
    message = received(algorithm, message, before, phase)
    with seeded(task.seed, "train", client, round, phase, device=task.device):
        reply = algorithm.train(message, person, phase)
    if local_buffers:
        names = buffer_names(person.network)
        person.memory = person.memory.with_parts(buffers={n: t for n, t in reply.group("model").items() if n in names})
        reply = Message({n: t for n, t in reply.tensors.items() if n.removeprefix("model/") not in names}, reply.values)
    if person.memory is not before and not_finite(person.memory) is None:  # or it would diverge for ever
        memory.write(client, round, person.memory)
    reply = misbehave(algorithm, client, round, message, reply)
    return low_bit(reply, person.network) if "model" in algorithm.required(phase) else reply


def low_bit(reply: Message, network: Network) -> Message:
    """The reply with eight signs a byte in place of each 1-bit weight (``resnet8-binary``); any other as it is."""
    model = reply.group("model")
    if not model or not binary_weights(network):
        return reply
    rest = {name: tensor for name, tensor in reply.tensors.items() if not name.startswith("model/")}
    return Message({**{f"model/{name}": tensor for name, tensor in pack_bits(model, network).items()}, **rest}, reply.values)


def keeps_buffers(algorithm: Algorithm, phase: str) -> bool:
    """Whether BatchNorm statistics stay with the clients."""
    return algorithm.task.config.model.buffers == "local" and "model" in algorithm.required(phase)


def received(algorithm: Algorithm, message: Message, kept: Message, phase: str) -> Message:
    """``message`` as the client uses it: with its own BatchNorm statistics where those stay with the clients."""
    return message.with_parts(model=kept.group("buffers")) if keeps_buffers(algorithm, phase) else message


def misbehave(algorithm: Algorithm, client: str, round: int, message: Message, reply: Message) -> Message:
    """What a client poisoned on purpose sends instead of its update (``data.poison``)."""
    poison = algorithm.task.config.data.poison
    if poison is None or client not in algorithm.task.poisoned or poison.kind not in ("sign-flip", "gaussian"):
        return reply
    return false_update(reply, message, poison.kind, poison.scale, algorithm.task.client(client, round).rng("poison"))


def reason_of(error: BaseException) -> str:
    """An exception in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


class InProcess:
    """Runs clients here (``workers=0``) or in ``workers`` subprocesses."""

    def __init__(self, algorithm: Algorithm, folder: Path, *, workers: int = 0, threads: int = 0, timeout: float | None = None):
        self.algorithm = algorithm
        self.memory = Memory(folder / "clients")
        self.timeout = timeout
        self.threads = threads
        self.spool = Spool()
        self.log = folder / "errors.log"  # what clients failed with, in full
        self.workers = [Worker(self, number) for number in range(workers)]
        for worker in self.workers:  # they import and load while the loop gets ready
            with contextlib.suppress(OSError):  # it is tried again for the first job, which then has the reason
                worker.start()

    def exchange(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> Iterator[Outcome]:
        """See :class:`fedstill.engine.Engine`."""
        self.spool.begin(round)
        if self.workers:
            yield from self._exchange_workers(round, phase, messages)
        else:
            yield from self._exchange_here(round, phase, messages)

    def _exchange_here(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> Iterator[Outcome]:
        for client, message in messages:
            try:
                reply = train_client(self.algorithm, client, round, phase, message, self.memory)
            except Exception as error:  # a client's failure costs its reply, not the run; the reason is in the history
                self._tell(client, traceback.format_exc())
                yield Outcome(client, reason=reason_of(error))
                continue
            yield Outcome(client, self.spool.keep(round, phase, client, reply), nbytes=reply.nbytes)

    def _exchange_workers(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> Iterator[Outcome]:
        sent: dict[Any, Path] = {}
        jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        for number, (client, message) in enumerate(messages):
            # most algorithms send everyone the same tensors: one file serves them all
            key = (tuple((n, t.data_ptr(), t.shape) for n, t in message.tensors.items()), tuple(message.values.items()))
            if key not in sent:
                sent[key] = self.spool.folder / f"{round}-message-{phase}-{number}.safetensors"
                sent[key].write_bytes(message.to_bytes())
            reply = self.spool.path(round, phase, client)
            jobs.put({"client": client, "round": round, "phase": phase, "message": str(sent[key]), "reply": str(reply)})
        results: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        threads = [threading.Thread(target=worker.work, args=(jobs, results), daemon=True) for worker in self.workers]
        for thread in threads:
            thread.start()
        waiting = [client for client, _ in messages]
        try:
            while waiting:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    outcome = results.get(timeout=left)
                except queue.Empty:
                    break
                waiting.remove(outcome.client)
                yield outcome
        finally:
            if waiting:  # out of time, or the caller gave up: what is still running is of no use
                with contextlib.suppress(queue.Empty):
                    while True:
                        jobs.get_nowait()
            for worker, thread in zip(self.workers, threads, strict=True):
                while waiting and thread.is_alive():
                    worker.kill()  # again and again: it may just have been started anew
                    thread.join(0.1)
                thread.join()
        for client in waiting:
            yield Outcome(client, reason=f"no reply within {self.timeout:g} s")

    def _tell(self, client: str, text: str) -> None:
        with open(self.log, "a") as file:
            file.write(f"client {client}\n{text}\n")

    def close(self) -> None:
        """Stop the workers and remove the scratch files."""
        for worker in self.workers:
            worker.stop()
        self.spool.close()
        if self.log.exists() and self.log.stat().st_size == 0:
            self.log.unlink()


class Worker:
    """One subprocess; started again if it dies."""

    def __init__(self, engine: InProcess, number: int):
        self.engine = engine
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """The process, which gets ready on its own; started where there is none, or none that lives."""
        if self.process is not None and self.process.poll() is None:
            return self.process
        self._forget()
        task = self.engine.algorithm.task
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
        if self.engine.threads:
            environment.update(OMP_NUM_THREADS=str(self.engine.threads), MKL_NUM_THREADS=str(self.engine.threads))
        with open(self.engine.log, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedstill.engine.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        hello = {
            "config": task.config.model_dump(mode="json", exclude_none=True),
            "folder": str(self.engine.memory.folder),
            "threads": self.engine.threads,
        }
        assert process.stdin is not None
        self.process = process
        process.stdin.write(json.dumps(hello).encode() + b"\n")
        process.stdin.flush()
        return process

    def work(self, jobs: queue.SimpleQueue[dict[str, Any]], results: queue.SimpleQueue[Outcome]) -> None:
        """Take jobs until there are none; every job taken gives exactly one result.

        The next job is on its way before the last one's result is handed over, so that the process never waits for the loop.
        """
        job = self._send(jobs)
        while job is not None:
            answer = self._receive()
            following = self._send(jobs)
            results.put(self._outcome(job, answer))
            job = following

    def _send(self, jobs: queue.SimpleQueue[dict[str, Any]]) -> dict[str, Any] | None:
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            return None
        with contextlib.suppress(OSError):  # a process that cannot start or has died answers nothing, and that is what counts
            stdin = self.start().stdin
            assert stdin is not None
            stdin.write(json.dumps(job).encode() + b"\n")
            stdin.flush()
        return job

    def _receive(self) -> dict[str, Any]:
        process = self.process
        if process is None:
            return {"error": "its worker process did not start"}
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:
            return json.loads(line)
        code = process.wait()
        self._forget()
        return {"error": f"its worker process ended with status {code}"}

    def _forget(self) -> None:
        """Close the pipes of a process that has ended."""
        if self.process is not None:
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):  # what could not be written any more
                    pipe.close()
        self.process = None

    def _outcome(self, job: dict[str, Any], answer: dict[str, Any]) -> Outcome:
        if "error" in answer:
            return Outcome(job["client"], reason=answer["error"])
        return Outcome(job["client"], self.engine.spool.reader(Path(job["reply"])), nbytes=answer["nbytes"])

    def kill(self) -> None:
        """End the process at once; the thread that reads from it sees the end."""
        process = self.process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """Let the process end by itself, or end it where it takes too long."""
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
