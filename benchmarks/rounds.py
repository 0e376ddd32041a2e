"""A round of FedDF, of FedD3A and of FedDF with six prototypes, with two workers, in two source trees of fedstill.

    python benchmarks/rounds.py --base TREE [--tree TREE] [--data DIR] [--repeat 5] [--json FILE]
    python benchmarks/rounds.py --smoke     a run of seconds: its figures mean nothing

Eight teachers (two clients of each of four digit domains), a pool of 5,000 images, and the accuracies of the student, of the
average and of the ensemble after every round. The two trees take turns, each in a process of its own; the time of a round is
the clock's between the ends of the first and of the last round, so start-up does not count.
The models of both are compared bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench import Row, finish

HERE = Path(__file__).resolve().parent.parent
GOAL = 0.65
PROTOTYPES = ["resnet8", "cnn", "resnet20", "cnn-small", "vgg9", "mobilenetv3-small"]

# runs in either tree, so it uses only what both have; numbers to stdout as one line of JSON
CHILD = """
import hashlib, json, sys, time
from pathlib import Path
from fedstill.run.configuration import parse
from fedstill.run.listener import Listener
from fedstill.run.loop import run

class Clock(Listener):
    def __init__(self):
        self.ends = []
    def round(self, line):
        self.ends.append(time.perf_counter())

tree, out = json.loads(sys.argv[1]), Path(sys.argv[2])
clock = Clock()
result = run(parse(tree), out, listeners=[clock])
parts = {p: sum(l["seconds"].get(p, 0.0) for l in result.history[1:]) for p in ("train", "fuse", "judge", "evaluate")}
digest = hashlib.sha256()
for name, state in sorted(result.server.models.items()):
    for key in sorted(state):
        digest.update(state[key].cpu().contiguous().numpy().tobytes())
print(json.dumps({
    "seconds": (clock.ends[-1] - clock.ends[0]) / max(1, len(clock.ends) - 1),
    "parts": parts,
    "models": digest.hexdigest()[:16],
    "figures": [[l["accuracy"], l["merged_accuracy"], l["ensemble_accuracy"]] for l in result.history],
}))
"""


def configuration(system: str, given: argparse.Namespace) -> dict[str, Any]:
    """Two clients of each of four domains of digits."""
    names = ["mnist", "usps", "svhn", "mnist_m"] if given.data else [f"embedded:{n}" for n in ("mnist", "optdigits", "rotated")]
    tree: dict[str, Any] = {
        "rounds": given.rounds,
        "data": {
            "domains": names,
            **({"root": given.data} if given.data else {}),
            "limit": given.limit,
            "test_limit": given.tests,
            "holdout": 0.5,
            "pool_limit": given.pool,
            "image_size": given.size,
            "channels": 3,
        },
        "clients": {"per_domain": 2},
        "model": {"name": given.model},
        "local": {"epochs": 1, "batch_size": 32},
        "engine": {"workers": given.workers, "threads": 1},
        "algorithm": {"name": "fedd3a"} if system == "fedd3a" else {"name": "feddf", "distillation": {"epochs": 1}},
    }
    if system == "six prototypes":
        tree["model"] = {"clients": PROTOTYPES}
    return tree


def one(tree: Path, config: dict[str, Any]) -> dict[str, Any]:
    """One run in a source tree."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps(config), str(Path(folder) / "run")],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # here: at the end of a run its workers' time is known to their parent
    return {**found, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def main() -> None:
    """Print the ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--base", type=Path, help="the source tree to compare with; without it, only this one is timed")
    options.add_argument("--tree", type=Path, default=HERE, help="the source tree to time (default: this one)")
    options.add_argument("--data", help="the folder of mnist, usps, svhn and mnist_m; embedded digits without it")
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--model", default="resnet8")
    options.add_argument("--limit", type=int, default=3000, help="training samples of a domain; half of them go to the pool")
    options.add_argument("--pool", type=int, default=5000)
    options.add_argument("--tests", type=int, default=1000, help="test samples of a domain")
    options.add_argument("--size", type=int, default=32)
    options.add_argument("--only", choices=["feddf", "fedd3a", "six prototypes"])
    options.add_argument("--json", type=Path, help="also write the ratios to this file")
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = options.parse_args()
    systems = [given.only] if given.only else ["feddf", "fedd3a", "six prototypes"]
    if given.smoke:
        given.repeat, given.rounds, given.limit, given.pool, given.tests, given.size = 1, 2, 24, 12, 8, 16
        given.model, given.workers, systems = "mlp", 1, ["feddf"]
    rows: list[Row] = []
    for system in systems:
        config = configuration(system, given)
        found: dict[str, list[dict[str, Any]]] = {"tree": [], **({"base": []} if given.base else {})}
        for _ in range(given.repeat):
            for name, runs in found.items():  # in turns
                runs.append(one(given.base if name == "base" else given.tree, config))
        times = {name: median(r["seconds"] for r in runs) for name, runs in found.items()}
        load = os.getloadavg()[0]
        parts = ", ".join(f"{k} {v / max(1, given.rounds - 1):.2f}" for k, v in found["tree"][-1]["parts"].items())
        print(f"{system}: {times['tree']:.3f} s a round ({parts}; {median(r['cpu'] for r in found['tree']):.1f} CPU s in all)")
        if given.base:
            cpu = median(r["cpu"] for r in found["tree"]) / median(r["cpu"] for r in found["base"])
            same = len({(r["models"], str(r["figures"])) for runs in found.values() for r in runs}) == 1
            ratio = times["tree"] / times["base"]
            parts = ", ".join(f"{k} {v / max(1, given.rounds - 1):.2f}" for k, v in found["base"][-1]["parts"].items())
            print(f"  base {times['base']:.3f} s ({parts}): ratio {ratio:.3f}, of processor time {cpu:.2f}; load {load:.1f}")
            print(f"  models and accuracies are {'the same bit by bit' if same else 'NOT the same'}", flush=True)
            what, note = f"a round of {system}, {given.workers} workers", f"{times['tree']:.1f} s and {times['base']:.1f} s"
            rows += [Row(what, "base", ratio, GOAL, note), Row(what, "base, processor time", cpu)]
    finish(rows, given.json)


if __name__ == "__main__":
    main()
