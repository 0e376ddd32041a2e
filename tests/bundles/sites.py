"""Sites for the tests: folders of images, and models trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import nn

from fedstill.bundles.bundle import About, Architecture, Bundle, write_bundle
from fedstill.data.samples import Samples
from fedstill.models import build
from fedstill.training.fit import fit
from fedstill.training.options import Local, Optimizer

SHAPE = (1, 8, 8)


def write_folder(folder: Path, samples: Samples, classes: Sequence[str] | None) -> Path:
    """Images as PNG files, one folder per class, or all in one folder without classes."""
    labels = samples.y.tolist() if samples.y is not None else [0] * len(samples)
    for i, (image, label) in enumerate(zip(samples.x, labels, strict=True)):
        place = folder / classes[label] if classes is not None else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(place / f"{i:05}.png", compress_level=1)
    return folder


def blobs(classes: Sequence[int], n: int, seed: int, shift: int = 0) -> Samples:
    """Images whose class is the bright row: a task that anything learns in a second."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (n,), generator=rng)]
    x = torch.randint(0, 90, (n, *SHAPE), generator=rng, dtype=torch.uint8)
    x[torch.arange(n), 0, labels + shift] = 255
    return Samples(x, labels)


def trained(model: str, samples: Samples, classes: int, **options) -> nn.Module:
    """A network that has learned the samples."""
    network = build(model, classes=classes, shape=tuple(samples.x.shape[1:]), seed=1, **options)
    local = Local(epochs=8, batch_size=16, optimizer=Optimizer(name="adam", lr=3e-3))
    fit(network, samples, local, rng=torch.Generator().manual_seed(0))
    return network.eval()


def blob_bundle(folder: Path, name: str, classes: Sequence[int], model: str = "mlp", seed: int = 0, **options) -> Bundle:
    """The bundle of a site that knows ``classes`` of the bright rows, called row0, row1, ..."""
    samples = blobs(classes, 200, seed)
    own = Samples(samples.x, torch.tensor([list(classes).index(y) for y in samples.y.tolist()]))  # type: ignore[union-attr]
    network = trained(model, own, len(classes), **options)
    about = About(
        name=name,
        model=Architecture(name=model, options=options),
        classes=[f"row{c}" for c in classes],
        shape=list(SHAPE),
        samples=len(samples),
    )
    return write_bundle(folder / f"{name}.fed", about, model=network.state_dict())
