"""The embedded engine beside Flower's simulation (Ray), the same configuration on the same cores: wall time, as a ratio.

    python benchmarks/flower.py --data DIR [--rounds 10] [--workers 2]

20 clients of 500 digits, the small CNN, 8 clients a round, one epoch. Start-up, all that comes before the first round, is told
apart. For Flower it includes Ray and its client processes, which say who they are before a round begins; the embedded engine's
workers start within its first round. So compare the totals, and the later rounds, which have no start-up on either side. The
figures mean something on an otherwise idle machine only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedstill.run.config import Config, parse
from fedstill.run.loop import Listener, run


def configuration(data: str | None, engine: str, rounds: int, workers: int) -> Config:
    """20 clients of 500 MNIST digits (of 60 where only the embedded ones are at hand), 8 a round."""
    return parse(
        {
            "rounds": rounds,
            "data": {
                "domains": ["mnist" if data else "embedded:mnist"],
                **({"root": data} if data else {}),
                "limit": 10_000,
                "test_limit": 500,
            },
            "clients": {"per_domain": 20, "per_round": 8},
            "model": {"name": "cnn-small"},
            "local": {"epochs": 1, "batch_size": 32, "optimizer": {"lr": 0.05}},
            "engine": {"name": engine, "workers": workers, "threads": 1},
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

    def round(self, line: dict[str, Any]) -> None:
        """A round has ended."""
        self.rounds.append(time.perf_counter())


def measure(config: Config) -> dict[str, float]:
    """One run, in this process."""
    clock = Clock()
    result = run(config, Path(tempfile.mkdtemp()) / "run", listeners=[clock])
    later = clock.rounds[-1] - clock.rounds[0]
    return {
        "startup": clock.began - clock.first,
        "rounds": clock.rounds[-1] - clock.began,
        "total": clock.rounds[-1] - clock.first,
        "a_later_round": later / max(1, len(clock.rounds) - 1),
        "accuracy": result.accuracy,
    }


def main() -> None:
    """Measure both and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a folder that holds mnist; the embedded digits where not given")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", choices=["inprocess", "flower-simulation"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine:
        print(json.dumps(measure(configuration(given.data, given.engine, given.rounds, given.workers))))
        return
    found = {}
    for engine in ("inprocess", "flower-simulation"):
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--engine", engine], stdout=subprocess.PIPE, check=True)
        found[engine] = json.loads(done.stdout.splitlines()[-1])
        print(engine, found[engine], flush=True)
    ours, flower = found["inprocess"], found["flower-simulation"]
    print(f"{'':>14}  {'embedded':>9}  {'Flower':>9}  {'ratio':>6}")
    for row in ("startup", "rounds", "total", "a_later_round"):
        print(f"{row.replace('_', ' '):>14}  {ours[row]:>7.2f} s  {flower[row]:>7.2f} s  {ours[row] / flower[row]:>6.3f}")


if __name__ == "__main__":
    main()
