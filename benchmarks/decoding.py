"""Decoding images in all cores beside one, and loading them from the cache beside decoding them.

    python benchmarks/decoding.py [--data DIR] [--repeat 5]     DIR may hold pacs160; otherwise photographs are generated
    python benchmarks/decoding.py --smoke     a run of seconds: its figures mean nothing

The threads and the single one take turns in one process. A load is a process of its own with a cache of its own, and its imports
are not counted; the second load of each pair finds what the first one stored.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench import Row, finish

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
LOAD = """
import json, sys, time
from fedstill.data.loading import load_domains
clock, used = time.perf_counter(), time.process_time()
found = load_domains(json.loads(sys.argv[1]), cache=sys.argv[2])
print(json.dumps({"wall": time.perf_counter() - clock, "cpu": time.process_time() - used,
                  "images": sum(len(d.train) + len(d.test) for d in found.values())}))
"""


def generated(folder: Path, count: int, size: int) -> Path:
    """JPEGs of smooth noise, in two classes."""
    import numpy as np  # slow
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
        for i in range(count // 2):
            small = Image.fromarray(rng.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8))
            small.resize((size, size), Image.Resampling.BICUBIC).save(folder / label / f"{i}.jpg", quality=90)
    return folder


def loaded(sources: list[str], cache: Path) -> dict[str, float]:
    """One load in a new process."""
    done = subprocess.run([sys.executable, "-c", LOAD, json.dumps(sources), str(cache)], stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def decoded(files: list[bytes], size: int, cores: set[int]) -> float:
    """Seconds to decode, with one thread for each of ``cores``."""
    # slow: they bring torch
    from fedstill.data.folders import open_image
    from fedstill.data.images import stack_images
    from fedstill.data.raw import Encoded

    usual = os.sched_getaffinity
    os.sched_getaffinity = lambda process: cores  # the number of threads follows it
    try:
        items = [Encoded("", lambda data=data: open_image(io.BytesIO(data))) for data in files]
        clock = time.perf_counter()
        stack_images(items, len(items), (3, size, size))
        return time.perf_counter() - clock
    finally:
        os.sched_getaffinity = usual


def main() -> None:
    """Print the ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path)
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--count", type=int, default=2000, help="generated images")
    options.add_argument("--size", type=int, default=320, help="their height and width")
    options.add_argument("--json", type=Path, help="also write the ratios to this file")
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = options.parse_args()
    if given.smoke:
        given.repeat, given.count, given.size, given.data = 1, 20, 16, None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = generated(folder / "photographs", given.count, given.size)
        pacs = given.data / "pacs160" if given.data is not None and (given.data / "pacs160").is_dir() else None
        sources = [str(made)] if pacs is None else [str(pacs / domain) for domain in DOMAINS]
        files = [path.read_bytes() for path in sorted(made.rglob("*.jpg"))][:1000]
        cores = os.sched_getaffinity(0)
        decoded(files[:50], given.size, cores)  # warm up
        times: dict[str, list[float]] = {"one": [], "all": [], "first": [], "second": [], "first_cpu": [], "second_cpu": []}
        for turn in range(given.repeat):
            times["one"].append(decoded(files, given.size, {0}))
            times["all"].append(decoded(files, given.size, cores))
            if turn < 3:
                for kind in ("first", "second"):
                    found = loaded(sources, folder / f"cache-{turn}")
                    times[kind].append(found["wall"])
                    times[f"{kind}_cpu"].append(found["cpu"])
    of = {kind: median(values) for kind, values in times.items()}
    what = "PACS at 160 px" if pacs is not None else f"{given.count:,} JPEGs of {given.size} px"
    rows = [
        Row(
            f"decoding {len(files):,} JPEGs of {given.size} px in {len(cores)} threads",
            "in one",
            of["all"] / of["one"],
            note="wall time",
        ),
        Row(
            f"loading {what} from the cache",
            "decoding",
            of["second"] / of["first"],
            note=f"{of['second']:.3f} s and {of['first']:.1f} s",
        ),
        Row(f"loading {what} from the cache", "decoding, processor time", of["second_cpu"] / of["first_cpu"]),
    ]
    finish(rows, given.json)


if __name__ == "__main__":
    main()
