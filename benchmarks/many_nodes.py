"""A Flower deployment with many SuperNodes on this machine: whether all of its rounds end, and what it takes.

    python benchmarks/many_nodes.py [--nodes 50] [--rounds 5] [--at-once 6] [--json FILE]
    python benchmarks/many_nodes.py --smoke     two nodes, one round: its figures mean nothing

Every node is a SuperNode, its executor and a new client process for each message, as on machines of their own; FedDF with a
small network on embedded digits. It holds if every round has every node's reply; otherwise the status is 1. Memory is the
processes' own share of what they map (PSS), added up every few seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import Row, finish

from fedstill.engine.processes import descendants
from fedstill.run.history import read_history

EVERY = 5.0  # seconds between two looks at the processes


def memory(pid: int) -> int:
    """The proportional share of memory of a process in bytes; 0 if it has ended."""
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


def command(nodes: int, rounds: int, at_once: int, out: Path) -> list[str]:
    """The deployment, as a user starts it."""
    chosen = {
        "rounds": rounds,
        "data.domains": '["embedded:optdigits"]',
        "data.limit": 20 * nodes,
        "data.test_limit": 100,
        "data.server": "embedded:mnist",
        "data.pool_limit": 100,
        "clients.per_domain": nodes,
        "model.name": "mlp",
        "algorithm.name": "feddf",
        "algorithm.distillation.epochs": 1,
    }
    words = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    limit = ["--at-once", str(at_once)] if at_once else []
    return [sys.executable, "-m", "fedstill", "flower", "up", "demo", *words, *limit, "--out", str(out)]


def main() -> None:
    """Run it and say whether it held."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=50)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--at-once", type=int, default=0, help="nodes that start or compute at the same time")
    options.add_argument("--out", type=Path, help="keep the run's folder here")
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = options.parse_args()
    if given.smoke:
        given.nodes, given.rounds = 2, 1
    clock, first, most, peak, load = time.monotonic(), 0.0, 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        out = given.out or Path(folder) / "run"
        process = subprocess.Popen(command(given.nodes, given.rounds, given.at_once, out))
        while True:
            try:
                process.wait(EVERY)
            except subprocess.TimeoutExpired:
                family = [process.pid, *descendants([process.pid])]
                most, peak = max(most, len(family)), max(peak, sum(map(memory, family)))
                load = max(load, os.getloadavg()[0])
                if not first and read_history(out / "history.jsonl"):
                    first = time.monotonic() - clock
                continue
            break
        lines = read_history(out / "history.jsonl")
    took = time.monotonic() - clock
    whole = sum(len(line["clients"]) == given.nodes for line in lines)
    said = f"{took:.0f} s, the first round after {first:.0f} s; {most} processes, {peak / 1e9:.1f} GB, load {load:.0f}"
    print(f"{given.nodes} nodes: {whole} of {given.rounds} rounds with every node's reply; {said}", flush=True)
    for line in lines:
        for lost in line["dropped"]:
            print(f"  round {line['round']}: {lost['client']} dropped: {lost['reason']}")
    finish(
        [Row(f"rounds with the replies of all {given.nodes} SuperNodes", "rounds", whole / given.rounds, note=said)], given.json
    )
    sys.exit(int(bool(process.returncode) or whole < given.rounds))


if __name__ == "__main__":
    main()
