"""Fifty teachers cost the memory of three: the peak of fusing many bundles over that of few, each in a process of its own.

python benchmarks/fuse_memory.py            prints both peaks and their ratio, and fails above 1.2
python benchmarks/fuse_memory.py --smoke    a run of seconds: its figures mean nothing
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from bench import Row, finish

LIMIT = 1.2


def write_sites(folder: Path, count: int, model: str) -> list[Path]:
    """Bundles of untrained networks: memory does not ask what they have learned."""
    # slow: they bring torch
    from fedstill.bundles.bundle import About, Architecture, write_bundle
    from fedstill.models import build

    paths = []
    for i in range(count):
        network = build(model, classes=10, shape=(3, 32, 32), seed=i)
        about = About(
            name=f"site{i}", model=Architecture(name=model), classes=[str(c) for c in range(10)], shape=[3, 32, 32], samples=100
        )
        paths.append(folder / f"site{i}.fed")
        write_bundle(paths[-1], about, model=network.state_dict())
    return paths


def fuse_once(paths: list[str], samples: int) -> None:
    """Fuse the bundles and print this process's peak in kilobytes."""
    # slow: they bring torch
    import torch

    from fedstill.bundles.fuse import fuse

    pool = torch.randint(0, 256, (samples, 3, 32, 32), dtype=torch.uint8)
    fuse(paths, pool, "cnn-small", distillation={"steps": 5, "batch_size": 64})
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


@cache
def peak(paths: tuple[Path, ...], samples: int) -> float:
    """The peak in megabytes of fusing ``paths`` in a new process."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, __file__, "--one", "--samples", str(samples), *map(str, paths)]
    return int(subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout.split()[-1]) / 1024


def main() -> None:
    """Measure, print, and fail where fifty cost more than ``LIMIT`` times three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=3)
    parser.add_argument("--many", type=int, default=50)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--json", type=Path, help="also write the ratios to this file")
    parser.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.smoke:
        given.few, given.many, given.model, given.samples = 2, 2, "cnn-small", 16  # the same twice: one process
    if given.one:
        fuse_once(given.paths, given.samples)
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = tuple(write_sites(Path(folder), given.many, given.model))
        size = paths[0].stat().st_size / 1e6
        few, many = peak(paths[: given.few], given.samples), peak(paths, given.samples)
    print(f"{given.model}, {size:.1f} MB a bundle: {given.few} teachers {few:.0f} MB, {given.many} teachers {many:.0f} MB")
    finish([Row(f"peak memory of `fuse` with {given.many} bundles", f"{given.few} bundles", many / few, LIMIT)], given.json)
    if many > LIMIT * few:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
