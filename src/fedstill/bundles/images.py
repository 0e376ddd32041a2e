"""Images for packing and fusing: all images of a source, without the test set that a run would hold out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedstill.core.errors import FedstillError
from fedstill.core.options import validated
from fedstill.data.loading import load_domain
from fedstill.data.raw import Limits
from fedstill.data.reading import Reading
from fedstill.data.samples import Samples
from fedstill.task import short_name

__all__ = ["Images", "load_images", "relabelled"]


class Images:
    """The samples of a source, its name, its classes (none if it is unlabelled) and how it was read."""

    def __init__(self, name: str, samples: Samples, classes: tuple[str, ...], reading: Mapping[str, Any] | None = None):
        self.name, self.samples, self.classes, self.reading = name, samples, classes, reading

    @property
    def range(self) -> Limits | None:
        """The values of black and white, if that was said."""
        return validated(Reading, dict(self.reading or {}), "data").range


def load_images(
    source: str | Path,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    seed: int = 0,
    reading: Mapping[str, Any] | None = None,
) -> Images:
    """All images of ``source``: a folder, a table, ``embedded:NAME`` or a name on the Hub.

    ``SOURCE#train`` and ``SOURCE#test`` are only its training or test images (a fixed fifth is the test set if it has none).
    ``reading`` holds options of :class:`~fedstill.data.reading.Reading`, such as the ``range`` of images with more than 8 bits.

    >>> found = load_images("embedded:optdigits#test", image_size=8)
    >>> len(found.samples), found.name, len(found.classes)
    (359, 'optdigits', 10)
    """
    place, _, part = str(source).partition("#")
    if part not in ("", "train", "test"):
        raise FedstillError(f"'{source}': only train or test may follow #, not '{part}'")
    read_as = validated(Reading, dict(reading or {}), "data")
    domain = load_domain(place, image_size=image_size, channels=channels, seed=seed, reading=read_as, name=short_name(place))
    if domain.train.x.dtype != torch.uint8:
        held = "numbers" if domain.train.x.is_floating_point() else "text"
        other = "; fuse models of numbers from Python: fedstill.fuse(modules, tensor)" if held == "numbers" else ""
        raise FedstillError(f"'{place}' holds {held}, but packing and fusing files is for images{other}")
    for note in domain.notes:
        warnings.warn(note, stacklevel=2)
    parts = [domain.train, domain.test] if not part else [domain.train if part == "train" else domain.test]
    if all(len(samples) == 0 for samples in parts):
        raise FedstillError(f"'{source}' has no {part} images: there are too few to hold out a fifth")
    labelled = all(samples.y is not None for samples in parts)
    y = torch.cat([samples.y for samples in parts if samples.y is not None]) if labelled else None
    samples = Samples(torch.cat([samples.x for samples in parts]), y)
    return Images(short_name(place), samples, domain.classes if labelled else (), reading)


def relabelled(images: Images, classes: Sequence[str], unknown: str) -> Samples:
    """The samples with labels that index ``classes``; a class that is not among them is an error."""
    extra = [name for name in images.classes if name not in classes]
    if extra:
        raise FedstillError(
            f"{images.name} has classes that {unknown}: {', '.join(extra[:5])} (known: {', '.join(classes[:10])})"
        )
    if images.samples.y is None:
        raise FedstillError(f"{images.name} has no labels: put its images in one folder per class")
    places = torch.tensor([list(classes).index(name) for name in images.classes])
    return Samples(images.samples.x, places[images.samples.y])
