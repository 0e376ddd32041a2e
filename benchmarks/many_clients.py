"""A thousand clients beside twenty on the same data: peak memory, as a ratio.

    python benchmarks/many_clients.py [--data DIR]
    python benchmarks/many_clients.py --smoke       a run of seconds: its figures mean nothing

Each run is a process of its own (Dirichlet clients, 10 a round, MOON so that clients have private state); its peak
resident memory is what the kernel counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path


@cache
def measured(clients: int, rounds: int, data: str | None) -> dict[str, float]:
    """Run in a fresh process and read its peak memory."""
    words = [sys.executable, __file__, "--run", str(clients), "--rounds", str(rounds), *(["--data", data] if data else [])]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_here(clients: int, rounds: int, data: str | None) -> None:
    """One run in this process."""
    # slow: they bring torch, which the process that only compares does without
    from fedstill.run.configuration import parse
    from fedstill.run.loop import run

    config = parse(
        {
            "rounds": rounds,
            "data": {"domains": ["mnist"], "root": data, "limit": 20_000, "test_limit": 1000}
            if data
            else {"domains": ["embedded:optdigits"]},
            "clients": {
                "per_domain": clients,
                "per_round": 10,
                "partition": {"kind": "dirichlet", "alpha": 0.1, "variant": "plain", "min_samples": 1},
            },
            "model": {"name": "cnn"},
            "algorithm": {"name": "moon"},
            "local": {"batch_size": 16},
            "engine": {"threads": 1},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mb": peak, "accuracy": result.accuracy}))


def main() -> None:
    """Print the ratio."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data")
    options.add_argument("--few", type=int, default=20)
    options.add_argument("--many", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    options.add_argument("--run", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.smoke:
        given.few, given.many, given.rounds, given.data = 20, 20, 1, None  # the same twice: one process
    if given.run:
        run_here(given.run, given.rounds, given.data)
        return
    few, many = measured(given.few, given.rounds, given.data), measured(given.many, given.rounds, given.data)
    peaks = f"{given.few} clients {few['peak_mb']:.0f} MB, {given.many} clients {many['peak_mb']:.0f} MB"
    print(f"peak memory: {peaks}, ratio {many['peak_mb'] / few['peak_mb']:.3f}")


if __name__ == "__main__":
    main()
