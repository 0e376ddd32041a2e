"""The knowledge vote with contributions beside the forward passes that it needs: its cost, as a ratio.

    python benchmarks/vote.py [--sources 5] [--samples 10000] [--model cnn-small] [--repeat 5]
    python benchmarks/vote.py --smoke       a run of seconds: its figures mean nothing

Timed: five networks' forward passes over 10,000 images of 28 x 28 pixels, and then the vote of their predictions, qualities of
all subsets that leave-one-out needs, contributions and weights. The medians of processor time count: on a busy machine,
waiting would count too.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from fedstill.data.samples import Samples
from fedstill.fusion.merges.contributions import contribution_weights, leave_one_out, qualities, shapley
from fedstill.fusion.vote import knowledge_vote
from fedstill.models import build
from fedstill.models.predict import predict_logits


def main() -> None:
    """Print the times and their ratio."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sources", type=int, default=5)
    options.add_argument("--samples", type=int, default=10_000)
    options.add_argument("--classes", type=int, default=10)
    options.add_argument("--model", default="cnn-small")
    options.add_argument("--threads", type=int, default=0)
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = options.parse_args()
    if given.smoke:
        given.sources, given.samples, given.repeat = 3, 50, 1
    if given.threads:
        torch.set_num_threads(given.threads)
    rng = torch.Generator().manual_seed(0)
    images = Samples(torch.randint(0, 256, (given.samples, 1, 28, 28), generator=rng, dtype=torch.uint8))
    networks = [build(given.model, classes=given.classes, shape=(1, 28, 28), seed=k) for k in range(given.sources)]
    forward, vote, exact = [], [], []
    # untrained networks agree on nothing: the vote gets confident predictions of the same shape
    spoken = (4 * torch.randn(given.sources, given.samples, given.classes, generator=rng)).softmax(2)

    def value(members: torch.Tensor) -> torch.Tensor:
        return qualities([spoken], 0.9, members)

    for _ in range(given.repeat):
        clock = time.process_time()
        for network in networks:
            predict_logits(network, images)
        forward.append(time.process_time() - clock)
        clock = time.process_time()
        knowledge_vote(spoken, 0.9)
        contribution_weights(leave_one_out(value, given.sources).values)
        vote.append(time.process_time() - clock)
        clock = time.process_time()
        shapley(value, given.sources)
        exact.append(time.process_time() - clock)
    about = f"{given.sources} sources, {given.classes} classes, {given.samples} samples"
    print(f"{about}, {given.model}, {torch.get_num_threads()} threads")
    print(f"forward passes            {median(forward):8.3f} s")
    print(f"vote and leave-one-out    {median(vote):8.3f} s   {median(vote) / median(forward):.3f} of the forward passes")
    print(f"exact Shapley values      {median(exact):8.3f} s   {median(exact) / median(forward):.3f} of the forward passes")


if __name__ == "__main__":
    main()
