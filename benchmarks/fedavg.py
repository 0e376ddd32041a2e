"""FedAvg beside a bare PyTorch loop that takes the same SGD steps: the engine's overhead, as a ratio.

    python benchmarks/fedavg.py --data DIR [--repeat 5] [--only mnist-cnn] [--cores 2]
    python benchmarks/fedavg.py --smoke     a run of seconds: its figures mean nothing

Both are warmed up (the first optimiser of a process imports half of torch), take turns, and the median counts. The floor that
the machine sets for so many workers is measured too: as many bare loops side by side, one thread and a share of the rounds each.
Where the package ``pfl`` is installed, pfl-research takes its turns as well (pfl_research.py).
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench import Row, finish
from pfl_research import PflResearch
from torch.nn import functional as F

from fedstill.algorithms import create
from fedstill.config.tables import Config
from fedstill.engine.inprocess import InProcess
from fedstill.fusion.merges import weighted_sum
from fedstill.run.configuration import parse
from fedstill.run.loop import drive, sample_clients, threads
from fedstill.task import Task

SETTINGS = {
    "mnist-cnn": {"domain": "mnist", "model": "cnn-small", "size": 28},
    "cifar10-resnet8": {"domain": "cifar10", "model": "resnet8", "size": 32, "limit": 8000},
}


def configuration(data: str | None, domain: str, model: str, size: int, rounds: int, limit: int = 10_000) -> Config:
    """20 clients, 8 a round, batch 32, one epoch."""
    return parse(
        {
            "rounds": rounds,
            "data": {
                "domains": [domain if data else "embedded:mnist"],
                **({"root": data} if data else {}),
                "limit": limit,
                "test_limit": 100,
                "image_size": size,
            },
            "clients": {"per_domain": 20, "per_round": 8},
            "model": {"name": model},
            "local": {"epochs": 1, "batch_size": 32, "optimizer": {"lr": 0.05}},
            "evaluation": {"every": 1000},
        }
    )


def bare(task: Task, rounds: int) -> float:
    """The same steps with nothing around them: normalised tensors in memory, one network, weights copied in and averaged."""
    network = task.networks.get(task.networks.student)
    data = {i: task.data_of(i) for i in task.clients}
    whole = {i: (network.normalise(d.x), d.y) for i, d in data.items()}
    state = task.networks.initial(task.networks.student)
    rng = torch.Generator().manual_seed(0)
    clock = time.perf_counter()
    for number in range(1, rounds + 1):
        replies, counts = [], []
        for client in sample_clients(list(task.clients), 8, 0, number):
            x, y = whole[client]
            network.load_state_dict(state)
            network.train()
            optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
            for index in torch.randperm(len(x), generator=rng).split(32):
                optimizer.zero_grad()
                F.cross_entropy(network(x[index]), y[index]).backward()
                optimizer.step()
            replies.append({k: t.clone() for k, t in network.state_dict().items()})
            counts.append(len(x))
        state = weighted_sum(replies, [c / sum(counts) for c in counts])
    return time.perf_counter() - clock


_task: Task  # of a process of the floor


def _prepare(tree: dict[str, Any]) -> None:
    global _task
    torch.set_num_threads(1)
    _task = Task(parse(tree))
    bare(_task, 1)


def _share(rounds: int) -> float:
    return bare(_task, rounds)


class Floor:
    """Bare loops side by side in processes of one thread: what no engine with as many workers can beat by much."""

    def __init__(self, config: Config, count: int) -> None:
        tree = config.model_dump(mode="json", exclude_none=True)
        spawn = multiprocessing.get_context("spawn")
        self.loops = [ProcessPoolExecutor(1, spawn, initializer=_prepare, initargs=(tree,)) for _ in range(count)]
        self.run(count)

    def run(self, rounds: int) -> float:
        """Seconds until all are done with their share of ``rounds``."""
        clock = time.perf_counter()
        for future in [loop.submit(_share, rounds // len(self.loops)) for loop in self.loops]:
            future.result()
        return time.perf_counter() - clock

    def close(self) -> None:
        """Stop them."""
        for loop in self.loops:
            loop.shutdown()


class Ours:
    """Our engine, kept alive so that starting workers is not part of the time."""

    def __init__(self, config: Config, folder: Path, workers: int, count: int):
        self.algorithm = create(Task(config))
        self.count = count
        self.folder = folder
        with threads(count):
            self.engine = InProcess(self.algorithm, self.folder, workers=workers, threads=count)
        self.number = 0

    def run(self) -> tuple[float, dict[str, float]]:
        """Seconds of a whole run with its history and checkpoints, and where they went."""
        self.number += 1
        with threads(self.count):
            clock = time.perf_counter()
            result = drive(self.algorithm, self.engine, self.folder / str(self.number))
            total = time.perf_counter() - clock
        parts = {p: sum(line["seconds"][p] for line in result.history) for p in ("train", "fuse", "evaluate")}
        return total, {**parts, "rest": total - sum(parts.values())}


def measure(name: str, config: Config, cores: int, repeat: int, pfl: str | None = None) -> list[Row]:
    """Time one setting and print its ratios."""
    task = Task(config)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kinds = {
            f"one process, {cores} threads": Ours(config, folder / "one", 0, cores),
            f"{cores} workers, 1 thread each": Ours(config, folder / "several", cores, 1),
        }
        for ours in kinds.values():
            stack.callback(ours.engine.close)
            ours.run()
        floor = Floor(config, cores)
        stack.callback(floor.close)
        theirs: dict[str, PflResearch] = {}
        if pfl or find_spec("pfl") is not None:
            several = "1 process" if cores == 1 else f"{cores} processes"
            theirs = {
                f"one process, {cores} threads": PflResearch(config, 1, cores, pfl),
                f"{several}, 1 thread each": PflResearch(config, cores, 1, pfl),
            }
            for rival in theirs.values():
                stack.callback(rival.close)
        others: dict[str, list[float]] = {kind: [] for kind in theirs}
        times: dict[str, list[float]] = {"bare": [], "floor": [], **{kind: [] for kind in kinds}}
        spent: dict[str, dict[str, float]] = {}
        with threads(cores):
            bare(task, 1)
        for _ in range(repeat):
            with threads(cores):
                times["bare"].append(bare(task, config.rounds))
            times["floor"].append(floor.run(config.rounds))
            for kind, ours in kinds.items():
                seconds, spent[kind] = ours.run()
                times[kind].append(seconds)
            for kind, rival in theirs.items():
                others[kind].append(rival.run(config.rounds))
    base = median(times["bare"])
    print(f"{name}: bare loop with {cores} threads {base:.2f} s (of {', '.join(f'{t:.2f}' for t in times['bare'])})")
    print(f"  {cores} bare loops side by side, a share of the rounds each: {median(times['floor']) / base:.2f} of it")
    for kind in kinds:
        parts = ", ".join(f"{part} {value:.2f}" for part, value in spent[kind].items())
        print(f"  {kind}: {median(times[kind]) / base:.2f} of it ({median(times[kind]):.2f} s; last run: {parts})", flush=True)
    for kind, found in others.items():
        print(f"  pfl-research, {kind}: {median(found) / base:.2f} of it ({median(found):.2f} s)", flush=True)
    if not others:
        print("  pfl-research is left out: pfl is not installed")
    several = f"{cores} workers, 1 thread each"
    rows = [Row(f"FedAvg, {kind} ({name})", "bare loop", median(times[kind]) / base) for kind in kinds]
    return [
        *rows,
        Row(f"FedAvg, {several} ({name})", f"{cores} bare loops", median(times[several]) / median(times["floor"]), 1.05),
        *(Row(f"pfl-research, {kind} ({name})", "bare loop", median(found) / base) for kind, found in others.items()),
        *(
            Row(f"FedAvg, {kind} ({name})", f"pfl-research, {other}", median(times[kind]) / median(others[other]), goal)
            for kind, other, goal in zip(kinds, others, (1.05, 1.0), strict=False)
        ),
    ]


def main() -> None:
    """Print the ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", help="the folder of data sets; embedded digits without it")
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--only", choices=list(SETTINGS))
    options.add_argument("--pfl", help="a Python that has pfl-research, torch and fedstill, if this one has not")
    options.add_argument("--json", type=Path, help="also write the ratios to this file")
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = options.parse_args()
    if given.smoke:
        small = configuration(None, "mnist", "cnn-small", 16, rounds=1, limit=100)
        finish(measure("smoke", small, cores=1, repeat=1), given.json)
        return
    rows: list[Row] = []
    for name, setting in SETTINGS.items():
        if given.only not in (None, name) or (not given.data and name != "mnist-cnn"):
            continue
        config = configuration(given.data, rounds=given.rounds, **setting)  # type: ignore[arg-type]
        rows += measure(name, config, given.cores, given.repeat, given.pfl)
    finish(rows, given.json)


if __name__ == "__main__":
    main()
