"""DP-SGD beside plain training: its slow-down, as a ratio.

    python benchmarks/private.py [--models mlp,cnn-small,resnet8] [--batch 64] [--steps 20] [--repeat 5]
    python benchmarks/private.py --smoke       a run of seconds: its figures mean nothing

Timed: steps of SGD on 28 x 28 pixels with full batches, plain and with gradients clipped sample by sample and noised, one
after the other in the same process. The medians count.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.models import build
from fedstill.training.fit import fit
from fedstill.training.options import Local
from fedstill.training.private import DPSGD


def main() -> None:
    """Print the times and their ratio."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", default="mlp,cnn-small,resnet8")
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = options.parse_args()
    if given.smoke:
        given.models, given.batch, given.steps, given.repeat = "mlp", 4, 2, 1
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (given.batch, 1, 28, 28), generator=rng, dtype=torch.uint8)
    data = Samples(images, torch.arange(given.batch) % 10)
    local = Local(batch_size=given.batch, steps=given.steps)  # batches of all samples, so that both train on as many
    for name in given.models.split(","):
        network = build(name, classes=10, shape=(1, 28, 28), norm="batch" if name == "mlp" else "group", seed=0)
        plain, private = [], []
        for turn in range(given.repeat + 1):
            for found, how in ((plain, None), (private, DPSGD(1.0, 1.0, stream(turn, "noise")))):
                clock = time.perf_counter()
                fit(network, data, local, rng=stream(turn, "fit"), private=how)
                if turn:  # the first is not counted: imports, memory
                    found.append(time.perf_counter() - clock)
        each = [1000 * median(times) / given.steps for times in (plain, private)]
        print(f"{name}: plain {each[0]:.2f} ms a step, DP-SGD {each[1]:.2f} ms, ratio {each[1] / each[0]:.2f}")


if __name__ == "__main__":
    main()
