"""Workers forked from a prepared process: importing torch takes more than a second, a fork takes milliseconds.

The prepared process (``python -m fedstill.engine.prepared``) is a new one. It imports what every worker needs, computes nothing,
so that no library has begun a thread pool that a fork would break, and then forks a worker for each request. It serves all runs
of its parent. When the parent ends, however it ends, the prepared process ends its workers and itself. Forking is used on Linux
only; elsewhere every worker is a new process.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any, Protocol

from fedstill.engine import processes

__all__ = ["Process", "forked", "prepare", "surroundings"]

LIBRARIES = ("OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH", "CUDA", "LD_", "PYTHON")  # variables that are read at the import
PATIENCE = 2.0  # seconds for the prepared process to end its workers


Key = tuple[tuple[str, str], ...]


class Process(Protocol):
    """What a worker needs of its process: the part of ``subprocess.Popen`` that it uses."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """The exit status; None while the process runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; returns the exit status."""
        ...

    def kill(self) -> None:
        """End the process at once."""
        ...


def surroundings(threads: int) -> dict[str, str]:
    """The environment of a worker that computes with so many threads; 0 leaves the libraries' own choice."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    return found | ({"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} if threads else {})


def prepare(threads: int) -> None:
    """Start the prepared process, if it will be used: it imports while the caller goes on."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # without it, workers are new processes
            _prepared(_key(surroundings(threads)))


def forked(environment: Mapping[str, str], log: IO[bytes]) -> Process | None:
    """A new worker process that writes its errors to ``log``; None if it cannot be forked here."""
    if sys.platform != "linux":
        return None
    key = _key(environment)
    try:
        return _prepared(key).fork(environment, log)
    except OSError:
        with _LOCK:
            if key in _PREPARED and _PREPARED[key].process.poll() is not None:  # it was killed: the next worker gets another one
                _PREPARED.pop(key).close()
        return None


def _key(environment: Mapping[str, str]) -> Key:
    """What a prepared process cannot change after its imports, and its parent, whose own forks need another one."""
    read = {name: value for name, value in environment.items() if name.startswith(LIBRARIES) and name != "PYTHONPATH"}
    return (("parent", str(os.getpid())), *sorted(read.items()))


def _prepared(key: Key) -> _Prepared:
    with _LOCK:
        if key not in _PREPARED:
            _PREPARED[key] = _Prepared({**surroundings(0), **dict(key[1:])})
        return _PREPARED[key]


class _Prepared:
    """The parent's view of the prepared process."""

    def __init__(self, environment: Mapping[str, str]):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedstill.engine.prepared", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # if the import fails, the worker that is started instead says so in its log
                env=dict(environment),
                pass_fds=[theirs.fileno()],
            )
        self.asked = False  # for a worker
        atexit.register(self.close)

    def fork(self, environment: Mapping[str, str], log: IO[bytes]) -> _Forked:
        self.asked = True
        with contextlib.ExitStack() as stack:
            (read_in, write_in), (read_out, write_out), (read_said, write_said) = (os.pipe() for _ in range(3))
            for theirs in (read_in, write_out, write_said):
                stack.callback(os.close, theirs)
            stdin, stdout = os.fdopen(write_in, "wb"), os.fdopen(read_out, "rb")
            child = _Forked(stdin, stdout, read_said)
            try:
                request = stack.enter_context(os.fdopen(os.memfd_create("request"), "w+"))  # a socket's message may be too short
                json.dump({"environment": dict(environment), "folder": os.getcwd(), "path": sys.path}, request)
                request.seek(0)  # it is written, and will be read from its start
                files = [read_in, write_out, log.fileno(), write_said, request.fileno()]
                socket.send_fds(self.control, [b"fork"], files)
            except OSError:
                stdin.close()
                stdout.close()
                raise
            return child

    def close(self) -> None:
        """End it and its workers."""
        self.control.close()
        if self.asked:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
        self.process.kill()
        self.process.wait()


_PREPARED: dict[Key, _Prepared] = {}
_LOCK = threading.Lock()  # several threads may restart their workers at once


class _Forked:
    """A worker that the prepared process forked: :class:`Process`. The prepared process tells its id, then its exit status."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], said: int):
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._said, self._text = said, b""
        self._pid: int | None = None
        self._born: int | None = None  # its id may be another process's after its end
        self._code: int | None = None
        self._lock = threading.Lock()  # one thread waits for the process and another may kill it

    def _hear(self, patience: float) -> None:
        with self._lock:
            poller = select.poll()
            poller.register(self._said, select.POLLIN)
            if self._code is not None or not poller.poll(1000 * patience):
                return
            more = os.read(self._said, 64)
            self._text += more
            told = [int(word) for word in self._text.split(b"\n")[:-1]]
            if told and self._pid is None:
                self._pid, self._born = told[0], processes.born(told[0])
            if len(told) == 2:
                self._code = told[1]
            elif not more:  # the prepared process has ended, so nobody will know the status
                self._end()
                self._code = -signal.SIGKILL

    def poll(self) -> int | None:
        self._hear(0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        last = None if timeout is None else time.monotonic() + timeout
        while self._code is None:
            if last is not None and time.monotonic() > last:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            self._hear(0.05)
        return self._code

    def kill(self) -> None:
        while self._pid is None and self._code is None:  # it is being made
            self._hear(0.05)
        with self._lock:
            if self._code is None:
                self._end()

    def _end(self) -> None:
        if self._pid is not None and processes.born(self._pid) == self._born:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def __del__(self) -> None:
        os.close(self._said)


# -- in the prepared process -------------------------------------------------------------------------------------------------


def _serve(control: socket.socket) -> bool:
    """Fork a process for each request. Returns True in every forked process, and False when the parent has ended."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the pipe is written to
    children: dict[int, int] = {}  # process id -> where its parent hears of it
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(woken, select.POLLIN)
    while True:
        ready = {place for place, _ in poller.poll()}
        if woken in ready:
            os.read(woken, 512)
            _reap(children)
        if control.fileno() in ready:
            word, files, _, _ = socket.recv_fds(control, 16, 5)
            if not word:
                for child in children:  # else they would go on to the end of their clients' turns
                    os.kill(child, signal.SIGKILL)
                return False
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number in (control.detach(), woken, wake, files[3], *children.values()):
                    os.close(number)
                with os.fdopen(files[4]) as request:
                    asked = json.load(request)
                _become(asked, files[:3])
                return True
            children[child] = files[3]
            _tell(files[3], child)
            for number in (*files[:3], files[4]):
                os.close(number)


def _reap(children: dict[int, int]) -> None:
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        heard = children.pop(child)
        _tell(heard, os.waitstatus_to_exitcode(status))
        os.close(heard)


def _tell(where: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(where, b"%d\n" % number)


def _become(asked: Mapping[str, Any], files: list[int]) -> None:
    """Take the place that the request describes."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.path[:] = asked["path"]
    importlib.invalidate_caches()


def main() -> None:
    """Import, then serve one parent until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    control = socket.socket(fileno=int(sys.argv[1]))
    from fedstill.engine.worker import main as work  # slow, and not needed by the parent: it imports torch
    from fedstill.engine.worker import ready

    ready()
    gc.freeze()  # else a worker's first collection writes to every object, and so copies every page
    if _serve(control):
        work()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # taking the modules apart one by one takes time, and would copy a worker's pages


if __name__ == "__main__":
    main()
