"""The server's work in the worker processes of the embedded engine: :class:`fedstill.core.jobs.Jobs`."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.core.files import naming
from fedstill.core.message import Message, Value
from fedstill.core.scratch import Scratch
from fedstill.engine.workers import Worker

__all__ = ["WorkerJobs", "mapped"]

SHARED = 8  # tensors whose files are kept for later jobs: the pool, test sets, the last rounds' samples


class WorkerJobs:
    """Hands jobs to whichever worker is idle. Messages, shared tensors and answers are files of a scratch folder."""

    def __init__(self, workers: Sequence[Worker]):
        self.processes = len(workers)
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(self.processes)
        self._scratch = Scratch("jobs")
        self._numbers = count()
        self._shared: OrderedDict[tuple[Any, ...], tuple[Tensor, Path]] = OrderedDict()
        self._open = 0  # calls whose answers nobody has read: files that they may still map stay
        self._changed = threading.Condition()
        self._without = 0  # jobs that no worker has taken yet

    def submit(
        self, function: str, message: Message, shared: Mapping[str, Tensor], calls: Sequence[Mapping[str, Value]] = ({},)
    ) -> list[Callable[[], Message]]:
        """See :class:`fedstill.core.jobs.Jobs`."""
        sent = self._new("safetensors")
        with naming(sent):
            message.write(sent)
        files = {name: self._file(tensor) for name, tensor in shared.items()}
        jobs = [
            {
                "function": function,
                "message": str(sent),
                "values": dict(values),
                "shared": files,
                "reply": str(self._new("reply")),
            }
            for values in calls
        ]
        self._open += len(jobs)
        with self._changed:
            self._without += len(jobs)
        left = [len(jobs)]
        futures = [self._threads.submit(self._run, job) for job in jobs]
        for future in futures:
            future.add_done_callback(lambda ended: self._taken() if ended.cancelled() else None)
        return [self._waiter(future, sent, left) for future in futures]

    def lend(self) -> Worker:
        """An idle worker, for clients to train in: jobs that were submitted before go first. Whoever takes it gives it back."""
        with self._changed:
            self._changed.wait_for(lambda: not self._without)
        return self._idle.get()

    def lend_now(self) -> Worker | None:
        """As :meth:`lend`, but None if that would have to wait."""
        with self._changed, contextlib.suppress(queue.Empty):
            return self._idle.get_nowait() if not self._without else None
        return None

    def give_back(self, worker: Worker) -> None:
        """It can have jobs again."""
        self._idle.put(worker)

    def _waiter(self, future: Future[Path], sent: Path, left: list[int]) -> Callable[[], Message]:
        def waited() -> Message:
            try:
                path = future.result()
            finally:
                left[0] -= 1
                self._open -= 1
                if not left[0]:
                    sent.unlink(missing_ok=True)
            found = Message.load(path)
            path.unlink()  # mapped tensors stay readable
            return found

        return waited

    def _run(self, job: dict[str, Any]) -> Path:
        worker = self._idle.get()
        self._taken()
        try:
            answer = worker.ask(job)
            if answer.get("ended"):  # the process died; another one gets a try
                answer = worker.ask(job)
            if "error" in answer:
                raise FedstillError(f"a worker process failed in the server's work: {answer['error']} (see errors.log)")
        finally:
            self._idle.put(worker)
        return Path(job["reply"])

    def _taken(self) -> None:
        with self._changed:
            self._without -= 1
            self._changed.notify_all()

    def _file(self, tensor: Tensor) -> dict[str, Any]:
        """Where other processes find a tensor; the tensor is kept too, so that no other can get its address."""
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        if key not in self._shared:
            path = self._new("tensor")
            with naming(path):
                tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tofile(path)
            self._shared[key] = (tensor, path)
        self._shared.move_to_end(key)
        while len(self._shared) > SHARED and not self._open:
            _, (_, old) = self._shared.popitem(last=False)
            old.unlink(missing_ok=True)
        return {"file": str(self._shared[key][1]), "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}

    def _new(self, ending: str) -> Path:
        return self._scratch.folder / f"{next(self._numbers)}.{ending}"

    def cancel(self) -> None:
        """Begin no further job: who waits for a worker until they are done gets one."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Wait for running jobs and remove the files."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._shared.clear()
        self._scratch.close()


def mapped(about: Mapping[str, Any]) -> Tensor:
    """A shared tensor, mapped from its file; private, so that a change in place reaches nobody else."""
    dtype, shape = getattr(torch, about["dtype"]), torch.Size(about["shape"])
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)
    return torch.from_file(about["file"], shared=False, size=shape.numel(), dtype=dtype).view(shape)
