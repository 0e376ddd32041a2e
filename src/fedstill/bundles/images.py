"""Images for packing and fusing: all of a source, where a run would hold a part of it out for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from fedstill.core.errors import FedstillError
from fedstill.data.loading import load_domain
from fedstill.data.samples import Samples
from fedstill.task import short_name

__all__ = ["Images", "load_images", "relabelled"]


class Images:
    """The samples of a source, what it is called and its classes (none where it is unlabelled)."""

    def __init__(self, name: str, samples: Samples, classes: tuple[str, ...]):
        self.name, self.samples, self.classes = name, samples, classes


def load_images(
    source: str | Path,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    seed: int = 0,
) -> Images:
    """All images of ``source``: a folder, a table, ``embedded:NAME`` or a name on the Hub.

    ``SOURCE#train`` and ``SOURCE#test`` are its training and test images alone (a fixed fifth is the test where it has none).

    >>> found = load_images("embedded:optdigits#test", image_size=8)
    >>> len(found.samples), found.name, len(found.classes)
    (359, 'optdigits', 10)
    """
    place, _, part = str(source).partition("#")
    if part not in ("", "train", "test"):
        raise FedstillError(f"'{source}': after # comes train or test, not '{part}'")
    domain = load_domain(place, image_size=image_size, channels=channels, seed=seed)
    if domain.train.x.dtype != torch.uint8:
        raise FedstillError(f"'{place}' holds text; packing and fusing by files is for images")
    parts = [domain.train, domain.test] if not part else [domain.train if part == "train" else domain.test]
    if all(len(samples) == 0 for samples in parts):
        raise FedstillError(f"'{source}' has no {part} images: there are too few to hold a fifth out")
    labelled = all(samples.y is not None for samples in parts)
    y = torch.cat([samples.y for samples in parts if samples.y is not None]) if labelled else None
    samples = Samples(torch.cat([samples.x for samples in parts]), y)
    return Images(short_name(place), samples, domain.classes if labelled else ())


def relabelled(images: Images, classes: Sequence[str], unknown: str) -> Samples:
    """The samples with labels that count along ``classes``; a class that is not among them is an error."""
    extra = [name for name in images.classes if name not in classes]
    if extra:
        raise FedstillError(
            f"{images.name} has classes that {unknown}: {', '.join(extra[:5])} (known: {', '.join(classes[:10])})"
        )
    if images.samples.y is None:
        raise FedstillError(f"{images.name} has no labels: put its images in one folder a class")
    places = torch.tensor([list(classes).index(name) for name in images.classes])
    return Samples(images.samples.x, places[images.samples.y])
