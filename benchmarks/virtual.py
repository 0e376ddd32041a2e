"""What many virtual features cost: drawing and distilling 100,000 of 1,280 numbers, against the whole table of them in memory.

    python benchmarks/virtual.py [--size 100000] [--width 1280]
    python benchmarks/virtual.py --smoke     a run of seconds: its figures mean nothing

Three sites describe ten classes each by 16 directions. Memory is what the process takes for itself (RssAnon) above what it had
before; the features lie in a file without a name, whose pages the system keeps as long as it has room. The time is compared with
training the same head for as many epochs on as many real features, which are in memory.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fedstill.algorithm import Reply
from fedstill.core.message import Message
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.distil import distil
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.sources.statistics import draw_virtual
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.virtual import own_table
from fedstill.local.reports.statistics import Statistics, described
from fedstill.models import build
from fedstill.models.heads import HeadOnly
from fedstill.training.fit import fit
from fedstill.training.options import Local, Optimizer

CLASSES, SITES = 10, 3
ADAM = Optimizer(name="adam", lr=1e-3)


def held() -> float:
    """Megabytes that this process has for itself; 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon")), 0.0)


class Peak:
    """The most megabytes that were held beyond what was held at the start."""

    megabytes = 0.0


@contextmanager
def watched() -> Iterator[Peak]:
    """Look at the memory every few milliseconds."""
    found, before, over = Peak(), held(), threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            found.megabytes = max(found.megabytes, held() - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def site(number: int, width: int) -> Reply:
    """A site that describes made-up features."""
    rng = torch.Generator().manual_seed(number)
    centres = torch.randn(CLASSES, width, generator=rng)
    y = torch.arange(40 * CLASSES) % CLASSES
    part = described(centres[y] + torch.randn(len(y), width, generator=rng), y, Statistics()).state()
    return Reply(f"site{number}", f"site{number}", "mlp", len(y), lambda: Message.of(statistics=part))


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--size", type=int, default=100_000)
    arguments.add_argument("--width", type=int, default=1280)
    arguments.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = arguments.parse_args()
    if given.smoke:
        given.size, given.width = 11_000, 8
    torch.set_num_threads(1)
    replies = [site(k, given.width) for k in range(SITES)]
    networks = [
        HeadOnly(build("mlp", classes=CLASSES, shape=(1, 1, 4), hidden=[given.width], head=[256], seed=k))
        for k in range(SITES + 2)
    ]
    teachers = [Teacher(str(k), lambda k=k: networks[k]) for k in range(SITES)]  # type: ignore[misc]
    with watched() as peak:
        clock = time.perf_counter()
        virtual = draw_virtual(replies, given.size, (given.width,), torch.Generator().manual_seed(0))
        drawn = time.perf_counter() - clock
        table = own_table(lambda network: network, teachers, virtual, CLASSES)
        options = Distillation(epochs=2, batch_size=128, optimizer=ADAM, schedule="cosine", clip=None)
        distil(networks[-2], virtual.samples, table, options, rng=torch.Generator().manual_seed(0))
        server = time.perf_counter() - clock
    del virtual, table
    whole = 4 * given.size * given.width / 1e6
    print(f"{given.size:,} virtual features of {given.width:,} numbers, a table of {whole:.0f} MB")
    print(f"peak memory {peak.megabytes:.0f} MB, {peak.megabytes / whole:.2f} of the table")
    real = Samples(torch.randn(given.size, given.width), torch.arange(given.size) % CLASSES)
    clock = time.perf_counter()
    fit(networks[-1], real, Local(epochs=2, batch_size=128, optimizer=ADAM), rng=torch.Generator().manual_seed(0))
    training = time.perf_counter() - clock
    print(f"drawing {drawn:.1f} s, with targets and distilling {server:.1f} s; training on real features {training:.1f} s")
    print(f"ratio {server / training:.2f}")


if __name__ == "__main__":
    main()
