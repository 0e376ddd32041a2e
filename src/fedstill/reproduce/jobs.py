"""Run a study's cells, one after the other or several at a time; one that fails does not stop the others."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from fedstill.core.errors import first_line
from fedstill.core.files import atomic_write
from fedstill.core.registry import import_plugged, plugged_modules
from fedstill.reproduce.plan import Job
from fedstill.run.listener import Listener

__all__ = ["Pool", "finished", "pool", "run_jobs"]

Pool = Callable[[], ProcessPoolExecutor]
Told = Callable[[str], None]


def finished(job: Job) -> bool:
    """Whether the job's run has ended already, under this configuration."""
    if not (job.folder / "summary.json").exists():
        return False
    # slow: they import torch
    from fedstill.run.configuration import resolve
    from fedstill.run.folder import finished_run

    return finished_run(job.folder, resolve(job.tree, job.assignments))


def run_job(job: Job, listener: Listener | None = None) -> str | None:
    """Complete one run; the reason, if it fails. The traceback is kept in ``error.txt`` in its folder."""
    # slow: they import torch
    from fedstill.run.compare import complete
    from fedstill.run.configuration import resolve

    try:
        complete(resolve(job.tree, job.assignments), job.folder, listener or Listener())
    except Exception as error:  # a cell may fail in any way, and the study goes on
        atomic_write(job.folder / "error.txt", traceback.format_exc())
        return first_line(error)
    (job.folder / "error.txt").unlink(missing_ok=True)
    return None


def _prepare(threads: int, modules: list[str]) -> None:
    """In a new process: its number of threads, and the modules that register parts."""
    import torch  # slow: a process that only lists studies does without

    torch.set_num_threads(threads)
    import_plugged(modules)


def _executor(jobs: int) -> ProcessPoolExecutor:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_prepare, initargs=(threads, plugged_modules()))


@contextlib.contextmanager
def pool(jobs: int) -> Iterator[Pool | None]:
    """Processes for several studies, started when the first run needs them; None if there is one job at a time."""
    if jobs <= 1:
        yield None
        return
    made: list[ProcessPoolExecutor] = []

    def get() -> ProcessPoolExecutor:
        if not made:
            made.append(_executor(jobs))
        return made[0]

    try:
        yield get
    finally:
        for one in made:
            one.shutdown(cancel_futures=True)


def run_jobs(
    jobs: Sequence[Job], processes: Pool | None, listener: Callable[[str], Listener], told: Told = lambda text: None
) -> dict[Path, str]:
    """Complete the jobs; the folders of those that failed, with the reason."""
    if processes is None:
        reasons = {job.folder: run_job(job, listener(job.name)) for job in jobs}
    else:
        reasons = _in_processes(jobs, processes(), told)
    return {folder: reason for folder, reason in reasons.items() if reason is not None}


def _in_processes(jobs: Sequence[Job], executor: ProcessPoolExecutor, told: Told) -> dict[Path, str | None]:
    futures: dict[Future[str | None], Job] = {executor.submit(run_job, job): job for job in jobs}
    reasons: dict[Path, str | None] = {}
    killed: list[Job] = []
    try:
        for future in as_completed(futures):
            job = futures[future]
            try:
                reasons[job.folder] = future.result()
                told(f"{job.name}: {reasons[job.folder] or 'done'} ({len(reasons)} of {len(jobs)})")
            except BrokenProcessPool:  # a process was killed, and all that were waiting fail with it
                killed.append(job)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    for job in killed:  # each alone, so that only the one whose process dies again has failed
        with _executor(1) as alone:
            try:
                reasons[job.folder] = alone.submit(run_job, job).result()
            except BrokenProcessPool:
                reasons[job.folder] = "its process was killed"
    return reasons
