"""What the table of predictions buys: time of a fusion round, and memory with many teachers. Both are printed as ratios.

    python benchmarks/fusion.py             the full size: 8 ResNet-8 teachers, 5,000 pool images, 1,000 steps of 128
    python benchmarks/fusion.py --quick     a tenth of the pool and of the steps
    python benchmarks/fusion.py --smoke     a run of seconds: its figures mean nothing

(a) processor time with the table / processor time when the teachers are evaluated anew in each step (at most 0.35);
(b) peak memory with 100 teachers / peak memory with 5 (at most 1.15), each measured in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import torch
from bench import Row, finish

from fedstill.core.message import Message
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.distil import distil
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import ensemble_table
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.weightings import WeightingContext, make_weighting
from fedstill.models import build

SHAPE, CLASSES = (3, 32, 32), 10
TIME_LIMIT, MEMORY_LIMIT = 0.35, 1.15


def pool(size: int) -> Samples:
    """Noise: the work does not depend on what the images show."""
    return Samples(torch.randint(0, 256, (size, *SHAPE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8))


def teachers(folder: Path, count: int) -> list[Teacher]:
    """``count`` ResNet-8 whose weights lie in files, read into one network when their turn comes, as replies are."""
    network = build("resnet8", classes=CLASSES, shape=SHAPE, seed=0)

    def load(path: Path):  # type: ignore[no-untyped-def]
        network.load_state_dict(Message.load(path).group("model"))
        return network

    found = []
    for k in range(count):
        path = folder / f"{k}.safetensors"
        if not path.exists():
            path.write_bytes(Message.of(model=build("resnet8", classes=CLASSES, shape=SHAPE, seed=k).state_dict()).to_bytes())
        found.append(Teacher(str(k), lambda path=path: load(path)))
    return found


def fuse(count: int, size: int, steps: int, *, live: bool, folder: Path) -> float:
    """Processor seconds of one fusion round: on a busy machine the clock on the wall tells of its other work."""
    members, samples = teachers(folder, count), pool(size)
    uniform = make_weighting("uniform", WeightingContext(members, torch.Generator()))
    student = build("resnet8", classes=CLASSES, shape=SHAPE, seed=1000)
    clock = time.process_time()
    if live:
        table = lambda x: ensemble_table(members, Samples(x), uniform)
    else:
        table = ensemble_table(members, samples, uniform)
    distil(student, samples, table, Distillation(steps=steps, batch_size=128), rng=torch.Generator().manual_seed(0))
    return time.process_time() - clock


@cache
def peak_with(count: int, size: int) -> float:
    """The peak memory in MB of a process that makes the table of ``count`` teachers and learns a little from it."""
    done = subprocess.run(
        [sys.executable, __file__, "--peak", str(count), "--pool", str(size)], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the pool and of the steps")
    parser.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="also write the ratios to this file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pool", type=int, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    torch.set_num_threads(wanted.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if wanted.peak:
            fuse(wanted.peak, wanted.pool, 5, live=False, folder=folder)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            return
        count, size, steps, least, most = 8, 5000, 1000, 5, 100
        if wanted.quick:
            size, steps = 500, 100
        if wanted.smoke:
            count, size, steps, least, most = 2, 16, 1, 2, 2  # the same twice: one process
        fuse(2, min(size, 128), 1, live=False, folder=folder)  # warm up
        with_table = fuse(count, size, steps, live=False, folder=folder)
        without = fuse(count, size, steps, live=True, folder=folder)
        print(f"(a) {count} ResNet-8 teachers, {size} images, {steps} steps of 128")
        print(f"    {with_table:.1f} CPU seconds with the table, {without:.1f} with teachers evaluated in each step")
        verdict(with_table / without, TIME_LIMIT)
        few, many = peak_with(least, size), peak_with(most, size)
        print(f"(b) peak memory: {few:.0f} MB with {least} teachers, {many:.0f} MB with {most}")
        verdict(many / few, MEMORY_LIMIT)
        rows = [
            Row(
                f"distillation of {count} teachers from the table",
                "evaluating them in each step",
                with_table / without,
                TIME_LIMIT,
                f"processor time, {size:,} images, {steps:,} steps",
            ),
            Row(f"peak memory of fusing {most} teachers", f"{least} teachers", many / few, MEMORY_LIMIT, f"{many:.0f} MB"),
        ]
        finish(rows, wanted.json)


def verdict(ratio: float, limit: float) -> None:
    """The ratio and whether it is within its limit."""
    print(f"    ratio {ratio:.3f} (at most {limit}): {'met' if ratio <= limit else 'NOT met'}")


if __name__ == "__main__":
    main()
