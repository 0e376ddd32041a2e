"""A hundred thousand registered clients beside a thousand: start, time of a round and peak memory, as ratios.

    python benchmarks/many_clients.py [--few 1000] [--many 100000] [--repeat 3]
    python benchmarks/many_clients.py --smoke       a run of seconds: its figures mean nothing

Every client has ten synthetic images of 8x8 pixels, 100 clients train in a round, and the system is MOON, whose clients have
private state. Each run is a process of its own, in turns; its peak resident memory is what the kernel counted, which includes
the pages of the mapped data that were read. The data is written before, and the page is drawn after the run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench import Row, finish

EACH = 10  # samples of a client


def in_process(*words: object) -> dict[str, float]:
    """What a new process of this script prints."""
    done = subprocess.run([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def written(clients: int) -> None:
    """Write the data of so many clients to the cache, and print its source."""
    import numpy as np  # slow: the process that only compares does without

    from fedstill.data.arrays import store

    rng, count = np.random.default_rng(0), clients * EACH
    x, y = rng.integers(0, 256, (count, 8, 8), dtype=np.uint8), rng.integers(0, 10, count)
    test = (rng.integers(0, 256, (1000, 8, 8), dtype=np.uint8), rng.integers(0, 10, 1000))
    print(json.dumps({"source": store(x, y, name=f"clients-{clients}", test=test)}))


def own_memory() -> float:
    """Megabytes that this process has now for itself: without what is mapped from files, which the system can drop. 0 if the
    system does not say."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)


def run_here(source: str, clients: int, rounds: int, folder: str) -> None:
    """One run in this process."""
    # slow: they bring torch
    from fedstill.run.configuration import parse
    from fedstill.run.listener import Listener
    from fedstill.run.loop import run

    class Clock(Listener):
        """When the rounds began and ended, the processor time used by then, and the memory."""

        def __init__(self) -> None:
            self.ends: list[tuple[float, float]] = []
            self.own = 0.0

        def started(self, task: Any, rounds_done: int) -> None:
            self.ends.append((time.perf_counter(), time.process_time()))
            self.own = max(self.own, own_memory())

        def round(self, line: Any) -> None:
            self.started(None, line["round"])

    config = parse(
        {
            "rounds": rounds,
            "data": {"domains": [source]},
            "clients": {"per_domain": clients, "per_round": min(100, clients)},
            "model": {"name": "mlp", "options": {"hidden": [32]}},
            "algorithm": {"name": "moon"},
            "local": {"batch_size": EACH},
            "engine": {"threads": 1},
        }
    )
    began, clock = (time.perf_counter(), time.process_time()), Clock()
    run(config, Path(folder), listeners=[clock])
    first, last = clock.ends[0], clock.ends[-1]
    found = {
        "start": first[0] - began[0],
        "start_cpu": first[1] - began[1],
        "round": (last[0] - first[0]) / rounds,
        "round_cpu": (last[1] - first[1]) / rounds,
        "own": clock.own,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(found))


def page_of(folder: Path) -> tuple[float, float]:
    """Seconds to draw the page of a run, and its megabytes."""
    page, clock = folder / "page.html", time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "fedstill", "report", str(folder), "--out", str(page)], check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - clock, page.stat().st_size / 1e6


def main() -> None:
    """Print the ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--few", type=int, default=1000)
    options.add_argument("--many", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    options.add_argument("--json", type=Path, help="also write the ratios to this file")
    options.add_argument("--write", type=int, help=argparse.SUPPRESS)
    options.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.write:
        return written(given.write)
    if given.run:
        source, clients, rounds, folder = given.run
        return run_here(source, int(clients), int(rounds), folder)
    if given.smoke:
        given.few, given.many, given.rounds, given.repeat = 20, 40, 1, 1
    with tempfile.TemporaryDirectory() as name:
        os.environ["FEDSTILL_CACHE"] = f"{name}/cache"
        counts = (given.few, given.many)
        sources = {count: in_process("--write", count)["source"] for count in counts}
        found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
        for turn in range(given.repeat):
            for count in counts:
                found[count].append(in_process("--run", sources[count], count, given.rounds, f"{name}/{count}-{turn}"))
        pages = {count: page_of(Path(name) / f"{count}-0") for count in counts}
    few, many = ({key: median(run[key] for run in found[count]) for key in found[count][0]} for count in counts)
    of = f"{given.few:,} clients"
    rows = [
        Row(f"a round with {given.many:,} clients", of, many["round"] / few["round"], note="wall time"),
        Row(f"a round with {given.many:,} clients", f"{of}, processor time", many["round_cpu"] / few["round_cpu"]),
        Row(f"peak memory with {given.many:,} clients", of, many["peak"] / few["peak"], note=f"{many['peak']:.0f} MB"),
    ]
    for count, own in ((given.few, few), (given.many, many)):
        print(
            f"{count:,} clients: start {own['start']:.1f} s ({own['start_cpu']:.1f} of the processor; the first time "
            f"{found[count][0]['start']:.1f}), a round {own['round']:.3f} s ({own['round_cpu']:.3f}), peak {own['peak']:.0f} MB, "
            f"{own['own']:.0f} MB of its own after the start or a round; "
            f"page of {pages[count][1]:.1f} MB in {pages[count][0]:.1f} s"
        )
    finish(rows, given.json)
    return None


if __name__ == "__main__":
    main()
