"""The embedded engine beside Flower's simulation (Ray), the same configuration on the same cores: wall time, as a ratio.

    python benchmarks/flower.py --data DIR [--rounds 10] [--workers 2] [--model lenet]
    python benchmarks/flower.py --smoke     a run of seconds: its figures mean nothing

20 clients of 500 digits, a small CNN, 8 clients a round, one epoch. Flower is measured twice: with our client inside it, and
as a Flower app is ordinarily written: the library's own FedAvg, data through ``flwr-datasets`` and a ``DataLoader``, the model
made anew for every message, Flower's default resources; that one has no checkpoints and no screening.

Start-up, all that comes before the first round, is told apart. For Flower it includes Ray and its client processes, which say
who they are before a round begins; the embedded engine's workers get ready within its first round. So compare the totals, and the
later rounds, which have no start-up on either side. The figures mean something on an otherwise idle machine only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench import Row, finish
from datasets import Dataset, load_dataset
from flwr_datasets.partitioner import IidPartitioner
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fedstill.config.tables import Config
from fedstill.models import build
from fedstill.run.configuration import parse
from fedstill.run.history import Line
from fedstill.run.listener import Listener
from fedstill.run.loop import run
from fedstill.task import Task


def configuration(data: str | None, engine: str, rounds: int, workers: int, model: str, limit: int = 10_000) -> Config:
    """20 clients of 500 MNIST digits (of 60 where only the embedded ones are at hand), 8 a round."""
    return parse(
        {
            "rounds": rounds,
            "data": {
                "domains": ["mnist" if data else "embedded:mnist"],
                **({"root": data} if data else {}),
                "limit": limit,
                "test_limit": 500,
            },
            "clients": {"per_domain": 20, "per_round": 8},
            "model": {"name": model},
            "local": {"epochs": 1, "batch_size": 32, "optimizer": {"lr": 0.05}},
            "engine": {"name": engine, "workers": workers, "threads": 1},
            "evaluation": {"every": rounds},
        }
    )


class Clock(Listener):
    """When the first round began, and when each ended."""

    def __init__(self) -> None:
        self.first = time.perf_counter()
        self.began = 0.0
        self.rounds: list[float] = []

    def started(self, task: Any, rounds_done: int) -> None:
        """The first round begins."""
        self.began = time.perf_counter()

    def round(self, line: Line) -> None:
        """A round has ended."""
        self.rounds.append(time.perf_counter())

    def times(self) -> dict[str, float]:
        """Seconds of start-up, of the rounds, of both, and of a round that is not the first."""
        return {
            "startup": self.began - self.first,
            "rounds": self.rounds[-1] - self.began,
            "total": self.rounds[-1] - self.first,
            "a_later_round": (self.rounds[-1] - self.rounds[0]) / max(1, len(self.rounds) - 1),
        }


def measure(config: Config) -> dict[str, float]:
    """One run, in this process."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, Path(folder), listeners=[clock])
    return {**clock.times(), "accuracy": result.accuracy}


def plain_flower(config: Config, data: str | None) -> dict[str, float]:
    """The same training as an ordinary Flower app; only the network and its initial weights are ours."""
    # slow: they bring Ray, which the embedded engine is measured without
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    import fedstill.engine.flower.records  # noqa: F401  (first: it turns telemetry off)

    task = Task(config)
    shape, classes, name = task.shape, len(task.classes), config.model.name
    initial = task.networks.initial(task.networks.student)
    clock = Clock()
    digits = (
        Dataset.from_dict(images_of(task))
        if data is None
        else load_dataset(f"{data}/mnist", split=f"train[:{config.data.limit}]")
    )
    parts = IidPartitioner(num_partitions=20)
    parts.dataset = digits.with_format("torch")
    client = ClientApp()

    def ended(number: int, arrays: ArrayRecord) -> None:
        if number:
            clock.rounds.append(time.perf_counter())

    @client.train()
    def train(message: Message, context: Context) -> Message:
        network = build(name, classes=classes, shape=shape)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        samples = parts.load_partition(int(context.node_config["partition-id"])).with_format("torch")
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        network.train()
        for batch in DataLoader(samples, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            x = (batch["image"].float().reshape(-1, *shape) / 255 - 0.5) / 0.5
            F.cross_entropy(network(x), batch["label"]).backward()
            optimizer.step()
        content = RecordDict(
            {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": len(samples)})}
        )
        return Message(content=content, reply_to=message)

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        clock.began = time.perf_counter()
        strategy = FedAvg(fraction_train=0.4, fraction_evaluate=0.0, min_available_nodes=20)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(initial), num_rounds=config.rounds, evaluate_fn=ended)

    run_simulation(server, client, 20)
    return clock.times()


def images_of(task: Task) -> dict[str, list[Any]]:
    """The embedded digits as columns."""
    domain = task.domains[task.client_domains[0]].train
    assert domain.y is not None
    return {"image": domain.x.tolist(), "label": domain.y.tolist()}


def in_new_process(engine: str) -> dict[str, float]:
    """The times of an engine that shares its process with no other."""
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--engine", engine], stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


ENGINES = {"inprocess": "embedded", "flower-simulation": "Flower, our client", "plain-flower": "a plain Flower app"}


def main() -> None:
    """Measure both and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a folder that holds mnist; the embedded digits where not given")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3, help="turns of each; their median counts")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="lenet", help="the network; by default that of Flower's quick start")
    parser.add_argument("--json", type=Path, help="also write the ratios to this file")
    parser.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    parser.add_argument("--engine", choices=list(ENGINES), help=argparse.SUPPRESS)
    given = parser.parse_args()
    limit, engines = 10_000, list(ENGINES)
    if given.smoke:  # each start of Ray is ten seconds; our client inside Flower is what the tests of that engine run
        given.data, given.rounds, given.workers, limit, engines = None, 2, 0, 200, ["inprocess", "plain-flower"]

    def here(engine: str) -> dict[str, float]:
        plain = engine == "plain-flower"
        config = configuration(given.data, "inprocess" if plain else engine, given.rounds, given.workers, given.model, limit)
        return plain_flower(config, given.data) if plain else measure(config)

    if given.engine:
        print(json.dumps(here(given.engine)))
        return
    turns: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
    for _ in range(1 if given.smoke else given.repeat):
        for engine in engines:
            # a process each, unless the figures mean nothing
            turns[engine].append(here(engine) if given.smoke else in_new_process(engine))
            print(engine, turns[engine][-1], flush=True)
    found = {engine: {row: median(turn[row] for turn in own) for row in own[0]} for engine, own in turns.items()}
    ours = found["inprocess"]
    heads = "  ".join(f"{ENGINES[e]:>18}  {'ratio':>6}" for e in engines[1:])
    print(f"{'':>14}  {ENGINES['inprocess']:>9}  {heads}")
    for row in ("startup", "rounds", "total", "a_later_round"):
        others = "  ".join(f"{found[e][row]:>16.2f} s  {ours[row] / found[e][row]:>6.3f}" for e in engines[1:])
        print(f"{row.replace('_', ' '):>14}  {ours[row]:>7.2f} s  {others}")
    kinds = {"total": (f"{given.rounds} rounds, embedded", 0.2), "a_later_round": ("a later round, embedded", 1 / 6)}
    rows = [
        Row(what, f"{ENGINES[e]}, simulated", ours[row] / found[e][row], goal if e == "plain-flower" else None)
        for row, (what, goal) in kinds.items()
        for e in engines[1:]
    ]
    finish(rows, given.json)


if __name__ == "__main__":
    main()
