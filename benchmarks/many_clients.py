"""A thousand clients beside twenty on the same data: peak memory, as a ratio.

    python benchmarks/many_clients.py [--data DIR]

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
from pathlib import Path


def measured(clients: int, data: str | None) -> dict[str, float]:
    """Run in a fresh process and read its peak memory."""
    done = subprocess.run(
        [sys.executable, __file__, "--run", str(clients), *(["--data", data] if data else [])],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def run_here(clients: int, data: str | None) -> None:
    """One run in this process."""
    from fedstill.run.configuration import parse
    from fedstill.run.loop import run

    config = parse(
        {
            "rounds": 5,
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
    result = run(config, Path(tempfile.mkdtemp()) / "run")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mb": peak, "accuracy": result.accuracy}))


def main() -> None:
    """Print the ratio."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data")
    options.add_argument("--run", type=int)
    given = options.parse_args()
    if given.run:
        run_here(given.run, given.data)
        return
    few, many = measured(20, given.data), measured(1000, given.data)
    ratio = many["peak_mb"] / few["peak_mb"]
    print(f"peak memory: 20 clients {few['peak_mb']:.0f} MB, 1000 clients {many['peak_mb']:.0f} MB, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
