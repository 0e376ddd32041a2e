"""The unlabelled inputs that the teachers predict and the student learns from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedstill.bundles.bundle import Bundle
from fedstill.bundles.images import load_images
from fedstill.core.errors import FedstillError
from fedstill.core.streams import stream
from fedstill.data.images import resized
from fedstill.data.samples import Samples

__all__ = ["Inputs", "pool_of", "pool_shape", "read_alike"]

Inputs = Tensor | Samples | Dataset[Any] | DataLoader[Any] | str | Path | Sequence[str | Path]


def pool_shape(bundles: Iterable[Bundle], image_size: int | None) -> tuple[int, ...] | None:
    """The shape in which the pool is loaded: the requested one, or the largest of the bundles'; None keeps the pool's own."""
    shapes = [bundle.about.shape for bundle in bundles if len(bundle.about.shape) == 3]
    if not shapes:
        return None if image_size is None else (3, image_size, image_size)
    height, width = (image_size or max(shape[side] for shape in shapes) for side in (1, 2))
    return (max(shape[0] for shape in shapes), height, width)


def read_alike(bundles: Iterable[Bundle], reading: Mapping[str, Any]) -> dict[str, Any]:
    """How images are read: as the caller says, and those of more than 8 bits by the range that all bundles have, if it is one."""
    found = {bundle.about.range for bundle in bundles}
    common = found.pop() if len(found) == 1 else None
    return {"range": common, **reading} if common is not None else dict(reading)


def pool_of(
    unlabelled: Inputs, shape: tuple[int, ...] | None, limit: int | None, seed: int, reading: Mapping[str, Any] | None = None
) -> Samples:
    """The pool: at most ``limit`` images from files, or all inputs from anything else."""
    if isinstance(unlabelled, str | Path):
        pool = _from_files([unlabelled], shape, limit, seed, reading)
    elif isinstance(unlabelled, list | tuple) and all(isinstance(source, str | Path) for source in unlabelled):
        pool = _from_files(unlabelled, shape, limit, seed, reading)
    else:
        pool = _inputs(unlabelled)
    if len(pool) == 0:
        raise FedstillError("there are no unlabelled samples to distil on")
    if shape is not None and pool.x.dtype == torch.uint8:
        pool = Samples(resized(pool.x, shape))
    return pool


def _from_files(
    sources: Iterable[str | Path],
    shape: tuple[int, ...] | None,
    limit: int | None,
    seed: int,
    reading: Mapping[str, Any] | None,
) -> Samples:
    """The images of all sources in one shape, by default that of the first."""
    parts: list[Tensor] = []
    for source in sources:
        size, channels = (shape[1], shape[0]) if shape is not None else (None, None)
        x = load_images(source, image_size=size, channels=channels, seed=seed, reading=reading).samples.x
        shape = tuple(x.shape[1:])
        parts.append(x)
    x = torch.cat(parts) if parts else torch.empty(0)
    if limit is not None and limit < len(x):
        x = x[torch.randperm(len(x), generator=stream(seed, "fuse", "pool"))[:limit]]
    return Samples(x)


def _inputs(given: Any) -> Samples:
    """The inputs of anything that torch can iterate over, without their labels."""
    if isinstance(given, Samples):
        return given.unlabelled()
    if isinstance(given, Tensor):
        return Samples(given)
    loader = given if isinstance(given, DataLoader) else DataLoader(given, batch_size=256)
    parts = [_input_of(batch) for batch in loader]
    return Samples(torch.cat(parts)) if parts else Samples(torch.empty(0))


def _input_of(batch: Any) -> Tensor:
    """The model's input in a batch: the batch itself, its first part, or in a mapping the first tensor with two dimensions or
    more."""
    x = batch
    if isinstance(batch, Mapping):
        x = next((value for value in batch.values() if isinstance(value, Tensor) and value.ndim > 1), None)
    elif isinstance(batch, list | tuple):
        x = batch[0]
    if not isinstance(x, Tensor):
        raise FedstillError(f"the unlabelled data yields {type(x).__name__}, not tensors: add a transform to tensors")
    return x
