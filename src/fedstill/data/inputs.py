"""The preprocessing that belongs to a trained model: images, texts and rows become tensors as in training."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedstill.core.errors import FedstillError, first_line
from fedstill.data.cache import cache_folder
from fedstill.data.depth import domain_range
from fedstill.data.folders import IMAGES, encoded_image
from fedstill.data.images import cannot_decode, left_out, look_at, stack_images
from fedstill.data.raw import Encoded, Limits, Raw, RawSplit
from fedstill.data.reading import Reading
from fedstill.data.rows import Rows
from fedstill.data.samples import Samples, held_out
from fedstill.data.sources import find_source
from fedstill.data.text import TextOptions, tokenize

__all__ = ["Inputs", "Preprocessing", "image_files"]

Inputs = Any  # tensors, arrays, paths, images, texts, rows, data frames: what Preprocessing.batches says


@dataclass(frozen=True)
class Preprocessing:
    """How inputs are made.

    >>> made = Preprocessing((1, 2, 2))
    >>> [tuple(batch.shape) for batch in made.batches([Image.new("L", (4, 4))] * 3, 2)]
    [(2, 1, 2, 2), (1, 1, 2, 2)]
    """

    shape: tuple[int, ...]  # of one input: (channels, height, width), or the length of a row
    text: TextOptions | None = None  # how texts become token ids, where it takes texts
    rows: Rows | None = None  # how rows of numbers and words do, where it takes them
    range: Limits | None = None  # the values that are black and white in images of more than 8 bits, where that was said
    label: str | None = None  # the column of a table that holds the classes, where that was said

    @property
    def kind(self) -> str:
        """What it takes: ``image``, ``text`` or ``vector``."""
        return "image" if len(self.shape) == 3 else "text" if self.text is not None else "vector"

    @property
    def wanted(self) -> str:
        """What it takes, in words."""
        numbers = len(self.rows.plan.columns) if self.rows is not None else self.shape[0]
        return {"image": "images", "text": "texts"}.get(self.kind, f"rows of {numbers} values")

    def to_json(self) -> dict[str, Any]:
        """What a file of weights stores about it besides the shape."""
        return {
            **({"text": self.text.model_dump(mode="json")} if self.text is not None else {}),
            **({"rows": self.rows.to_json()} if self.rows is not None else {}),
            **({"range": list(self.range)} if self.range is not None else {}),
            **({"label": self.label} if self.label is not None else {}),
        }

    # -- from a program's values ---------------------------------------------------------------------------------------------

    def batches(
        self, inputs: Inputs, size: int, *, standardised: bool = False, skipped: dict[int, str] | None = None
    ) -> Iterator[Tensor]:
        """The inputs as tensors that a network can normalise, ``size`` at a time, so that a folder may be of any size. Images
        that cannot be decoded are an error, or go to ``skipped``: position -> name."""
        if self.kind == "vector":
            yield from torch.split(self._vectors(inputs, standardised), size)
            return
        if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "fiub":
            inputs = torch.from_numpy(np.ascontiguousarray(inputs))
        if isinstance(inputs, Tensor):
            yield from torch.split(self._fitting(inputs), size)
            return
        listed: list[Any] = [inputs] if isinstance(inputs, str | Path | Image.Image) else list(inputs)
        if self.kind == "image" and all(isinstance(one, str | Path | Image.Image) for one in listed):
            yield from self._pictures([item for one in listed for item in _encoded(one)], size, skipped, "the inputs")
            return
        for start in range(0, len(listed), size):
            yield self._batch(listed[start : start + size])

    def _batch(self, listed: Sequence[Any]) -> Tensor:
        if self.text is not None and all(isinstance(one, str) for one in listed):
            return tokenize(list(listed), self.text)
        try:
            return self._fitting(torch.stack([torch.as_tensor(one) for one in listed]))
        except (TypeError, ValueError, RuntimeError) as error:
            raise FedstillError(f"the model takes {self.wanted}: {first_line(error)}") from error

    def _pictures(self, items: Sequence[Encoded], size: int, skipped: dict[int, str] | None, name: str) -> Iterator[Tensor]:
        """Images as in training: upright, in the model's size and channels, deep ones by their range."""
        if not items:
            return
        seen = look_at(lambda: iter(items), "error" if skipped is None else "skip", name)
        limits = self.range if seen.deep else None
        if seen.depth is not None:
            limits = domain_range(seen.depth, self.range, name)
        channels, height, width = self.shape
        for start in range(0, len(items), size):
            part = items[start : start + size]
            x, kept, lost = stack_images(
                part, len(part), (channels, height, width), background=seen.background, limits=limits, own=self.range is None
            )
            if lost and skipped is None:
                raise cannot_decode(*lost[0])
            if skipped is not None:
                others = np.setdiff1d(np.arange(len(part)), kept, assume_unique=True)
                skipped.update({start + int(i): name for i, (name, _) in zip(others, lost, strict=True)})
            if len(kept):
                yield x

    def _vectors(self, inputs: Inputs, standardised: bool) -> Tensor:
        if isinstance(inputs, str | Path):
            inputs = self._table(Path(inputs))
        if self.rows is not None and not standardised:
            return self.rows.inputs(inputs)
        try:
            return self._fitting(torch.as_tensor(inputs if isinstance(inputs, Tensor) else np.asarray(inputs)).float())
        except (TypeError, ValueError, RuntimeError) as error:
            raise FedstillError(f"the model takes {self.wanted}: {first_line(error)}") from error

    def _table(self, path: Path) -> Any:
        """What is in a file: the columns of a table, or an array."""
        raw = find_source(str(path), None, cache_folder(None), Reading(kind="table", label="")).raw  # every row, labelled or not
        return _whole_columns(raw) if raw.kind == "table" else _whole_vectors(raw)

    def _fitting(self, x: Tensor) -> Tensor:
        """A batch of the model's own kind: one sample becomes a batch of one, channels come first, other shapes are refused."""
        image = self.kind == "image"
        if x.ndim == len(self.shape):
            x = x[None] if not (image and self.shape[0] == 1 and x.shape[0] != 1 and x.dtype == torch.uint8) else x[:, None]
        if image and x.ndim == 4 and x.dtype == torch.uint8:
            if x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
                x = x.permute(0, 3, 1, 2).contiguous()
            if x.shape[1] in (1, 3):
                return x  # of any size: the network brings them to its own
        if tuple(x.shape[1:]) != tuple(self.shape):
            raise FedstillError(f"the model takes inputs of shape {tuple(self.shape)}, not {tuple(x.shape[1:])}")
        if x.is_floating_point():
            return x.float()
        if image:
            raise FedstillError(f"the model takes images as uint8 or normalised floats, not {x.dtype}")
        return x

    # -- from a data set -----------------------------------------------------------------------------------------------------

    def labelled(
        self, source: str | Path, classes: Sequence[str], label: str | None = None, unreadable: Literal["error", "skip"] = "error"
    ) -> Samples:
        """All samples of a data set, its labels as indices into ``classes``. ``SOURCE#test`` stands for its test samples alone:
        those that a run holds out if the source has none. Images that cannot be decoded are an error, or left out with a
        warning (``unreadable = "skip"``)."""
        place, _, part = str(source).partition("#")
        kind = {"vector": "table"}.get(self.kind, self.kind)
        raw = find_source(place, None, cache_folder(None), Reading(kind=kind, label=label or self.label)).raw  # type: ignore[arg-type]
        if part not in ("", "train", "test"):
            raise FedstillError(f"'{source}': after # comes train or test, not '{part}'")
        found = [split for split in (raw.train, raw.test) if split is not None]
        if any(split.labels is None for split in found):
            raise FedstillError(f"'{place}' has no labels to compare with: images need one folder per class, tables a column")
        extra = [name for name in raw.classes if name not in classes]
        if extra:
            raise FedstillError(f"'{place}' has classes that the model does not know: {', '.join(extra[:5])}")
        if raw.test is not None and part:
            found = [raw.train if part == "train" else raw.test]
        places = torch.tensor([list(classes).index(name) for name in raw.classes])
        skipped: dict[int, str] | None = {} if unreadable == "skip" and raw.kind == "image" else None
        lost: list[str] = []
        parts: list[Samples] = []
        for split in found:
            x = self._split(raw, split, place, skipped)
            y_split = torch.from_numpy(np.asarray(split.labels, dtype=np.int64))
            if skipped:
                y_split = y_split[[i not in skipped for i in range(len(y_split))]]
                lost += skipped.values()
                skipped.clear()
            parts.append(Samples(x, places[y_split]))
        if lost and not any(len(one) for one in parts):
            raise FedstillError(f"none of the images of '{place}' can be decoded")
        if lost:
            warnings.warn(left_out(place, lost), stacklevel=2)
        y = torch.cat([one.y for one in parts if one.y is not None])
        samples = Samples(torch.cat([one.x for one in parts]), y)
        if raw.test is None and part:
            held = held_out(y.numpy())
            samples = samples.take(held if part == "test" else np.setdiff1d(np.arange(len(y)), held, assume_unique=True))
        if not len(samples):
            raise FedstillError(f"'{source}' has no samples")
        return samples

    def _split(self, raw: Raw, split: RawSplit, place: str, skipped: dict[int, str] | None) -> Tensor:
        if raw.kind not in {"vector": ("vector", "table")}.get(self.kind, (self.kind,)):
            raise FedstillError(f"the model takes {self.wanted}, and '{place}' holds another kind of data")
        if raw.kind == "image":
            empty = torch.empty((0, *self.shape), dtype=torch.uint8)  # nothing else is left if no image can be decoded
            return torch.cat([empty, *self._pictures(list(split.rows()), 256, skipped, place)])
        if raw.kind == "text":
            assert self.text is not None
            return tokenize(list(split.rows()), self.text)
        if raw.kind == "table" and self.rows is not None:
            assert split.columns is not None
            return self.rows.inputs(split.columns())
        return self._vectors(np.stack(list(split.rows())), False)


def _whole_columns(raw: Raw) -> dict[str, np.ndarray]:
    parts = [split.columns() for split in (raw.train, raw.test) if split is not None and split.columns is not None]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _whole_vectors(raw: Raw) -> np.ndarray:
    if raw.kind != "vector":
        raise FedstillError("the model takes rows of numbers, and the file holds something else")
    return np.stack(list(itertools.chain.from_iterable(split.rows() for split in (raw.train, raw.test) if split is not None)))


def _encoded(one: str | Path | Image.Image) -> Iterable[Encoded]:
    if isinstance(one, Image.Image):
        return [Encoded("the image", lambda: one.copy())]
    return [encoded_image(path) for path in image_files([one])]


def image_files(places: Sequence[str | Path]) -> list[Path]:
    """The files in ``places``, in order; a folder stands for all images in and below it."""
    found: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            inside = [path for path in sorted(place.rglob("*")) if path.suffix.lower() in IMAGES and path.is_file()]
            if not inside:
                raise FedstillError(f"{place} holds no images")
            found += inside
        elif place.is_file():
            found.append(place)
        else:
            raise FedstillError(f"no such file: {place}")
    return found
