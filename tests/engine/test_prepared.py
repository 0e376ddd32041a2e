"""Workers are forked from a prepared process; where there is none, they are new processes. Nobody can tell them apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedstill.config.tables import Config
from fedstill.engine import prepared, workers
from fedstill.engine.spool import Spool
from fedstill.engine.workers import Worker, WorkerSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


def until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def the_prepared(threads: int = 1) -> prepared._Prepared:
    return prepared._prepared(prepared._key(prepared.surroundings(threads)))


@pytest.fixture
def worker(tmp_path: Path, tiny: Callable[..., Config]) -> Worker:
    return Worker(WorkerSettings(tiny(), tmp_path / "clients", tmp_path / "errors.log", 1), Spool())


def pid(process: prepared.Process) -> int:
    assert isinstance(process, prepared._Forked)
    until(lambda: process.poll() is not None or process._pid is not None)
    assert process._pid is not None
    return process._pid


def test_workers_are_children_of_one_prepared_process_and_say_how_they_ended(worker: Worker) -> None:
    first = worker.start()
    number = pid(first)
    assert parent_of(number) == the_prepared().process.pid
    worker.kill()
    assert first.wait(30) == -signal.SIGKILL
    second = worker.start()  # restarted by a fork of the same process
    assert parent_of(pid(second)) == the_prepared().process.pid
    assert second.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.01)
    worker.stop()  # closes its input, at which it ends by itself
    assert second.poll() == 0


def test_a_worker_has_the_surroundings_of_its_parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", "elsewhere")
    monkeypatch.chdir(tmp_path)
    prepared.prepare(1)
    with open(tmp_path / "log", "wb") as log:
        process = prepared.forked(prepared.surroundings(1), log)
    assert process is not None
    assert process.stdin is not None
    assert process.stdout is not None
    number = pid(process)
    until(lambda: Path(os.readlink(f"/proc/{number}/cwd")) == tmp_path)
    opened = {int(name) for name in os.listdir(f"/proc/{number}/fd")}
    targets = [os.readlink(f"/proc/{number}/fd/{one}") for one in opened]
    assert sum(target.startswith("socket") for target in targets) == 0, "it holds the line of the prepared process"
    assert str(tmp_path / "log") in targets
    process.stdin.write(b"not JSON\n")
    process.stdin.close()
    assert process.wait(30) == 1
    assert "JSONDecodeError" in (tmp_path / "log").read_text()
    process.stdout.close()


PRINTING = """
import atexit
print("printed")
atexit.register(print, "at the end")
"""


def test_what_a_worker_prints_is_in_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worker: Worker) -> None:
    (tmp_path / "printing.py").write_text(PRINTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setattr(workers, "plugged_modules", lambda: ["printing"])
    worker.start()
    worker.stop()
    assert worker.settings.log.read_text().split("\n") == ["printed", "at the end", ""]


def test_without_a_prepared_process_a_worker_is_a_new_one(worker: Worker) -> None:
    first = worker.start()
    number, parent = pid(first), the_prepared().process
    parent.kill()  # as if the system had
    parent.wait()
    until(lambda: parent_of(number) != parent.pid)  # the worker goes on
    worker.kill()
    assert first.wait(30) == -signal.SIGKILL
    fresh = worker.start()
    assert isinstance(fresh, subprocess.Popen), "the request failed"
    assert isinstance(Worker(worker.settings, worker.spool).start(), prepared._Forked), "the next one finds another"
    worker.kill()
    worker.stop()


BUSY = """
import os, time
with open("begun", "w") as file:
    file.write(f"{os.getpid()} {os.getppid()}")
os.rename("begun", "worker")
time.sleep(600)
"""
PARENT = """
import json, os, sys, time
from fedstill.engine import prepared
with open("log", "wb") as log:
    process = prepared.forked(prepared.surroundings(1), log)
process.stdin.write(json.dumps({"threads": 1, "plugins": ["busy"]}).encode() + b"\\n")
process.stdin.flush()
while not os.path.exists("worker"):
    time.sleep(0.05)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["returns", "killed"])
def test_nothing_is_left_of_a_parent_that_ends_while_a_client_trains(end: str, tmp_path: Path) -> None:
    """A worker reads that its parent has gone after the client's turn only, which may be hours later."""
    (tmp_path / "busy.py").write_text(BUSY)
    (tmp_path / "parent.py").write_text(PARENT)
    subprocess.run([sys.executable, "parent.py", end], cwd=tmp_path, timeout=120)
    left = (tmp_path / "worker").read_text().split()
    until(lambda: not any(alive(int(number)) for number in left))


def test_an_environment_may_be_as_large_as_a_new_process_takes(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> None:
    for number in range(4):
        monkeypatch.setenv(f"LONG_{number}", "x" * 120_000)
    process = worker.start()
    assert parent_of(pid(process)) == the_prepared().process.pid
    worker.stop()
    assert process.poll() == 0


def test_a_lost_prepared_process_is_replaced_and_others_stay(tmp_path: Path) -> None:
    kept, lost = the_prepared(2), the_prepared(3)
    lost.process.kill()
    lost.process.wait()
    with open(tmp_path / "log", "wb") as log:
        assert prepared.forked(prepared.surroundings(3), log) is None
    assert the_prepared(2) is kept
    assert the_prepared(3) is not lost
    for one in (2, 3):
        the_prepared(one).close()
        del prepared._PREPARED[prepared._key(prepared.surroundings(one))]


def test_other_libraries_settings_need_another_prepared_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared._key(prepared.surroundings(1)) != prepared._key(prepared.surroundings(2))
    before = prepared._key(prepared.surroundings(1))
    monkeypatch.setenv("FEDSTILL_CACHE", "elsewhere")
    assert prepared._key(prepared.surroundings(1)) == before
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert prepared._key(prepared.surroundings(1)) != before
