"""Samples as tensors: the content of every client, pool and test set."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.data.rows import Rows

__all__ = ["Domain", "Samples", "held_out", "hold_out", "normalise", "resident", "stratified"]

TEST_SHARE = 0.2  # held out, class by class, where a source has no test set


@dataclass(frozen=True)
class Samples:
    """Inputs and, if known, their labels.

    ``x`` holds uint8 images ``(n, channels, height, width)``, token ids ``(n, length)`` or float32 inputs that are
    already normalised; ``y`` holds int64 labels ``(n,)``. ``views`` holds further versions of each input, ``(n, k, ...)``, among
    which training draws.

    >>> samples = Samples(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 2, 2]))
    >>> len(samples), samples.counts(4).tolist()
    (3, [1, 0, 2, 0])
    >>> samples.take([1, 2]).unlabelled().y is None
    True
    """

    x: Tensor
    y: Tensor | None = None
    views: Tensor | None = None

    def __post_init__(self) -> None:
        if self.y is not None and len(self.y) != len(self.x):
            raise ValueError(f"{len(self.x)} inputs but {len(self.y)} labels")

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor | np.ndarray | Sequence[int] | slice) -> Samples:
        """The samples at ``index``: a view for a slice, a copy for a list of positions."""
        if not isinstance(index, slice):
            index = torch.as_tensor(index, dtype=torch.long, device=self.x.device)
        return Samples(self.x[index], *(None if part is None else part[index] for part in (self.y, self.views)))

    def unlabelled(self) -> Samples:
        """The same inputs without their labels, as a server's pool holds them."""
        return Samples(self.x)

    def to(self, device: torch.device | str) -> Samples:
        """The same samples on ``device`` (no copy if they are already there)."""
        return Samples(self.x.to(device), *(None if part is None else part.to(device) for part in (self.y, self.views)))

    def viewed(self, index: Tensor, rng: torch.Generator) -> Tensor:
        """The inputs at ``index``, each in a version drawn at random: the input itself or one of its views.

        >>> samples = Samples(torch.zeros(2, 1), views=torch.ones(2, 3, 1))
        >>> samples.viewed(torch.tensor([0, 0, 1, 1, 1]), torch.Generator().manual_seed(0)).flatten().tolist()
        [0.0, 1.0, 1.0, 0.0, 1.0]
        """
        x = self.x[index]
        if self.views is None:
            return x
        chosen = torch.randint(1 + self.views.shape[1], (len(index),), generator=rng).to(x.device)
        other = torch.nonzero(chosen).flatten()
        return x.index_copy(0, other, self.views[index[other], chosen[other] - 1])

    def counts(self, classes: int) -> Tensor:
        """The number of samples of each class; all zero if nothing is labelled."""
        if self.y is None:
            return torch.zeros(classes, dtype=torch.long, device=self.x.device)
        return torch.bincount(self.y, minlength=classes)


def resident(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on ``device``, copied there once for as long as ``x`` lives: pools and test sets, which every round reads.

    >>> x, elsewhere = torch.ones(2), torch.device("meta")
    >>> resident(x, elsewhere) is resident(x, elsewhere), resident(x, torch.device("cpu")) is x
    (True, True)
    """
    if x.device.type == device.type and device.index in (None, x.device.index):
        return x
    key, state = id(x), (device, x._version)
    if key not in _RESIDENT or _RESIDENT[key][0] != state:  # a change in place counts
        if key not in _RESIDENT:
            weakref.finalize(x, _RESIDENT.pop, key, None)
        _RESIDENT[key] = state, x.to(device)
    return _RESIDENT[key][1]


_RESIDENT: dict[int, tuple[tuple[torch.device, int], Tensor]] = {}  # by the id of a tensor that lives


@dataclass(frozen=True)
class Domain:
    """One data set with its own distribution: training samples, test samples and the names of its classes.

    ``whole`` holds both together if nothing is labelled and the test samples were held out of the others. ``columns`` names the
    coordinates of a table's vectors, ``standardised`` says how their numbers were scaled, and ``rows`` how to do the same to
    others. ``notes`` are messages for the user, such as images that were left out.
    """

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    whole: Samples | None = None
    columns: tuple[str, ...] = ()
    standardised: str = "none"
    notes: tuple[str, ...] = ()
    rows: Rows | None = None


def normalise(x: Tensor, mean: float | Sequence[float] = 0.5, std: float | Sequence[float] = 0.5) -> Tensor:
    """uint8 images as float32 ``(x / 255 - mean) / std``; float inputs and token ids are returned as they are.

    ``mean`` and ``std`` are numbers or one number a channel.

    >>> normalise(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([-1.0000,  1.0000])
    >>> normalise(torch.full((1, 2, 1, 1), 255, dtype=torch.uint8), mean=(0.0, 0.5), std=(1.0, 0.25)).flatten()
    tensor([1.0000, 2.0000])
    """
    if x.dtype != torch.uint8:
        return x
    # (x/255 - mean)/std = x * 1/(255 std) - mean/std, in one pass that also converts.
    if isinstance(mean, int | float) and isinstance(std, int | float):
        return torch.add(torch.tensor(-mean / std), x, alpha=1.0 / (255.0 * std))
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    channels = x.shape[-3]
    means, stds = _each(mean, channels), _each(std, channels)
    for c, (m, s) in enumerate(zip(means, stds, strict=True)):
        torch.add(torch.tensor(-m / s), x[..., c, :, :], alpha=1.0 / (255.0 * s), out=out[..., c, :, :])
    return out


def _each(value: float | Sequence[float], channels: int) -> Sequence[float]:
    if isinstance(value, int | float):
        return [value] * channels
    if len(value) not in (1, channels):
        raise FedstillError(f"{len(value)} means or deviations for images of {channels} channels")
    return list(value) * (channels // len(value))


def stratified(labels: Tensor | np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Sorted positions of a random subset of ``size`` samples with the class shares of the whole.

    Each class gets its share rounded down; what is left over goes to the classes with the largest remainders.

    >>> labels = np.repeat([0, 1], [80, 20])
    >>> np.bincount(labels[stratified(labels, 10, np.random.default_rng(0))]).tolist()
    [8, 2]
    """
    values = np.asarray(labels)
    size = min(size, len(values))
    order = rng.permutation(len(values))
    classes, found = np.unique(values, return_inverse=True)
    share = np.bincount(found, minlength=len(classes)) * size / max(len(values), 1)
    take = np.floor(share).astype(int)
    # Ties between equal remainders are broken at random, not always for the low classes.
    ranked = np.lexsort((rng.random(len(classes)), take - share))
    take[ranked[: size - take.sum()]] += 1
    chosen = [order[found[order] == c][: take[c]] for c in range(len(classes))]
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


def held_out(labels: Tensor | np.ndarray) -> np.ndarray:
    """The positions of the fixed, stratified fifth that is the test set of a source without one.

    >>> len(held_out(np.repeat([0, 1], 10)))
    4
    """
    return stratified(labels, round(TEST_SHARE * len(labels)), np.random.default_rng(0))


def hold_out(samples: Samples, fraction: float, rng: np.random.Generator) -> tuple[Samples, Samples]:
    """Split the samples: those kept, and a stratified random ``fraction`` held out (for validation or a test). The only sample of
    a class is always kept, because the class would be lost to training otherwise.

    >>> kept, held = hold_out(Samples(torch.arange(10.0)), 0.2, np.random.default_rng(0))
    >>> len(kept), len(held)
    (8, 2)
    """
    labels = np.zeros(len(samples), dtype=np.int64) if samples.y is None else samples.y.numpy()
    held = stratified(labels, round(fraction * len(samples)), rng)
    classes, counts = np.unique(labels, return_counts=True)
    held = held[~np.isin(labels[held], classes[counts == 1])]
    kept = np.setdiff1d(np.arange(len(samples)), held, assume_unique=True)
    return samples.take(kept), samples.take(held)
