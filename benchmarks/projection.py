"""What FedD3A's report costs: its bytes beside the model's, and its seconds beside a local epoch.

    python benchmarks/projection.py [--data DIR] [--samples 3000] [--features 512] [--repeat 5]
    python benchmarks/projection.py --smoke     a run of seconds: its figures mean nothing

The epoch is one of ResNet-8 on 32x32 images with a neck of ``--features`` units, as wide as a ResNet-34's features. The forward
pass that extracts the features is counted apart from the matrix; ``sample`` computes it on a part of the data. The last column
says what each does to the weights of three digit domains.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from fedstill.data import load_domain
from fedstill.data.samples import Samples
from fedstill.fusion.weightings.projection import proximity, soft_weights
from fedstill.local.reports.projection import Projection, subspace
from fedstill.models import build
from fedstill.models.network import Network
from fedstill.models.predict import apply
from fedstill.training.fit import fit
from fedstill.training.options import Local, Optimizer


def seconds(work: Callable[[], object], repeat: int) -> float:
    """The median processor time of ``work``, after one run that does not count."""
    work()
    times = []
    for _ in range(repeat):
        clock = time.process_time()
        work()
        times.append(time.process_time() - clock)
    return median(times)


def data(folder: str | None, samples: int) -> Samples:
    """SVHN where there is a folder of data, else images of noise: the work is the same."""
    if folder:
        return load_domain("svhn", root=folder, limit=samples).train
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (samples, 3, 32, 32), dtype=torch.uint8, generator=rng)
    return Samples(x, torch.randint(0, 10, (samples,), generator=rng))


def nbytes(tensors: dict[str, torch.Tensor]) -> int:
    """The size of what is sent."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def main() -> None:
    """Print both tables."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data")
    arguments.add_argument("--samples", type=int, default=3000)
    arguments.add_argument("--features", type=int, default=512)
    arguments.add_argument("--repeat", type=int, default=5)
    arguments.add_argument("--smoke", action="store_true", help="see that it runs; the figures mean nothing")
    given = arguments.parse_args()
    tested = 1000
    if given.smoke:
        given.data, given.samples, given.features, given.repeat, tested = None, 64, 64, 1, 20
    torch.set_num_threads(1)

    print("| model | features | model, bytes | matrix, bytes | share |\n|---|---|---|---|---|")
    for name, classes in (("resnet34", 345), ("resnet18", 10), ("resnet8", 10), ("cnn-small", 10)):
        network = build(name, classes=classes, shape=(3, 32, 32), seed=0)
        size, d = nbytes(dict(network.state_dict())), network.feature_dim
        print(f"| {name} | {d} | {size:,} | {d * d * 4:,} | {d * d * 4 / size:.2%} |")

    own = data(given.data, given.samples)
    network = build("resnet8", classes=10, shape=(3, 32, 32), bottleneck=given.features, seed=0)
    local = Local(batch_size=64, optimizer=Optimizer(lr=0.01, momentum=0.9))
    epoch = seconds(lambda: fit(network, own, local, rng=torch.Generator().manual_seed(0)), max(1, given.repeat // 2))
    features = apply(network.features, network, own)

    print(f"\none local epoch of ResNet-8, {given.samples:,} samples, one thread: {epoch:.2f} s\n")
    print("| what | seconds | of the epoch | bytes | mean change of the weights |\n|---|---|---|---|---|")
    forward = seconds(lambda: apply(network.features, network, own), given.repeat)
    print(f"| features of all samples | {forward:.3f} | {forward / epoch:.1%} | | |")
    some = own.take(slice(0, given.samples // 4))
    part = seconds(lambda: apply(network.features, network, some), given.repeat)
    print(f"| features of a quarter | {part:.3f} | {part / epoch:.1%} | | |")
    kinds: dict[str, Projection] = {
        "matrix, closed form": Projection(),
        "matrix, iterative (Eq. 5)": Projection(method="iterative"),
        "matrix, a quarter of the samples": Projection(sample=given.samples // 4),
        "matrix, rank 64": Projection(rank=64),
        "matrix, 95% of the trace": Projection(rank=0.95),
    }
    train, test = sites(network, given.data, given.samples, tested)
    whole = soft_weights(proximity(test, [subspace(z, Projection()) for z in train]))
    for label, options in kinds.items():
        used = features[: options.sample]
        spent = seconds(lambda used=used, options=options: subspace(used, options), given.repeat)
        kept = 4 if options.sample else 1
        weights = soft_weights(proximity(test, [subspace(z[: len(z) // kept], options) for z in train]))
        change = float((weights - whole).abs().mean())
        print(f"| {label} | {spent:.3f} | {spent / epoch:.1%} | {nbytes(subspace(used, options)):,} | {change:.4f} |")


def sites(network: Network, root: str | None, samples: int, tested: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Features of three domains: each one's training samples in random order, and test samples of all three together."""
    names = ("mnist", "usps", "svhn") if root else ("embedded:mnist", "embedded:blended", "embedded:inverted")
    domains = [load_domain(name, root=root, image_size=32, channels=3) for name in names]
    rng = torch.Generator().manual_seed(0)
    train = [d.train.take(torch.randperm(len(d.train), generator=rng)[:samples]) for d in domains]
    test = [d.test.take(torch.randperm(len(d.test), generator=rng)[:tested]) for d in domains]
    return [apply(network.features, network, x) for x in train], torch.cat([apply(network.features, network, x) for x in test])


if __name__ == "__main__":
    main()
