"""How long a run of one tiny round takes from the command line, beside ``python -c "import torch"``.

    python benchmarks/startup.py [--repeat 5]
    python benchmarks/startup.py --smoke     a run of seconds: its figures mean nothing

Both are new processes and take turns. The round trains an MLP on a few embedded digits that are in the cache, so nearly all of
the time is start-up. Modules are compiled by the first turn, which is not counted, as they are when a package is installed. The
first round starts so long after the imports as the event that begins the rounds.
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

from bench import Row, finish

TINY = ["rounds=1", "data.limit=60", "data.test_limit=30", "model.name=mlp", "algorithm.name=fedavg"]
WITHIN = """
import json, sys, time
from pathlib import Path
from fedstill.run.configuration import resolved, tree_in
from fedstill.run.listener import Listener
from fedstill.run.loop import run
class Clock(Listener):
    def started(self, task, rounds_done):
        self.began = time.perf_counter()
    def round(self, line):
        self.ended = time.perf_counter()
clock, first = Clock(), time.perf_counter()
run(resolved(tree_in("demo"), json.loads(sys.argv[1])).config, Path(sys.argv[2]), listeners=[clock])
print(json.dumps({"start": clock.began - first, "round": clock.ended - clock.began}))
"""


def timed(words: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of a process."""
    before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--json", type=Path, help="also write the ratios to this file")
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = options.parse_args()
    if given.smoke:
        given.repeat = 1
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(FEDSTILL_CACHE=f"{folder}/cache", PYTHONPYCACHEPREFIX=f"{folder}/compiled", PYTHONDONTWRITEBYTECODE="")
        settings = [word for setting in TINY for word in ("--set", setting)]
        for turn in range(given.repeat + (not given.smoke)):  # the first turn fills the cache and is not counted
            kinds = {"torch": [sys.executable, "-c", "import torch"]}
            for workers in ("0", "2"):
                out = f"{folder}/{workers}-{turn}"
                kinds[workers] = [sys.executable, "-m", "fedstill", "run", "demo", *settings, "--workers", workers, "--out", out]
            for kind, words in kinds.items():
                spent = timed(words)
                if turn or given.smoke:
                    found.setdefault(kind, []).append(spent)
        done = subprocess.run(
            [sys.executable, "-c", WITHIN, json.dumps(TINY), f"{folder}/within"], check=True, capture_output=True, text=True
        )
        within = json.loads(done.stdout.splitlines()[-1])
    wall = {kind: median(spent[0] for spent in turns) for kind, turns in found.items()}
    cpu = {kind: median(spent[1] for spent in turns) for kind, turns in found.items()}
    print(f"import torch {wall['torch']:.2f} s; after the imports the rounds begin in {within['start']:.2f} s")
    of = '`python -c "import torch"`'
    rows = [
        Row("`fedstill run` of one tiny round", of, wall["0"] / wall["torch"], 1.5, f"wall time, {wall['0']:.2f} s"),
        Row("`fedstill run` of one tiny round", f"{of}, processor time", cpu["0"] / cpu["torch"]),
        Row("the same with two workers", of, wall["2"] / wall["torch"], None, f"wall time, {wall['2']:.2f} s"),
        Row("the same with two workers", f"{of}, processor time", cpu["2"] / cpu["torch"]),
    ]
    finish(rows, given.json)


if __name__ == "__main__":
    main()
