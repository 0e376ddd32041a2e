"""The properties of a source, determined once and cached: its kind, the shape of its images, its columns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.data.cache import cached
from fedstill.data.depth import Depth
from fedstill.data.images import Look, look_at
from fedstill.data.raw import Column, Kind, Raw
from fedstill.data.reading import Reading
from fedstill.data.sources import Source

__all__ = ["Seen", "look"]


@dataclass(frozen=True)
class Seen:
    """The properties of a source: those of its images, or the width of its vectors and which coordinates have missing values, or
    the columns of its table."""

    kind: Kind
    labelled: bool
    prepared: bool = False  # vectors that are inputs already
    image: Look | None = None
    width: int = 0
    missing: tuple[int, ...] = ()
    columns: tuple[Column, ...] = ()


def look(source: Source, folder: Path, reading: Reading) -> Seen:
    """Inspect a source, or read what was found before from the cache."""

    def seen() -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, asdict(_seen(source.raw, source.name, reading))

    return _remembered(cached({**source.key, "what": "look"}, folder, seen, source.name)[1])


def _remembered(facts: Mapping[str, Any]) -> Seen:
    image = facts["image"]
    if image is not None:
        limits = {key: None if value is None else tuple(value) for key, value in (image["depth"] or {}).items()}
        depth = Depth(**limits) if limits else None  # type: ignore[arg-type]
        image = Look(**{**image, "shape": tuple(image["shape"]), "depth": depth})
    columns = tuple(Column(**{**column, "values": tuple(column["values"])}) for column in facts["columns"])
    return Seen(**{**facts, "image": image, "missing": tuple(facts["missing"]), "columns": columns})


def _seen(raw: Raw, name: str, reading: Reading) -> Seen:
    if raw.train.count == 0:
        raise FedstillError(f"'{name}' holds no training samples")
    labelled = raw.train.labels is not None
    splits = [split for split in (raw.train, raw.test) if split is not None]
    if raw.kind == "image":
        shapes = [split.pixels.shape[1:] for split in splits if split.pixels is not None]
        if len(shapes) == len(splits):
            channels, height, width = max(shape[0] for shape in shapes), *shapes[0][1:]
            return Seen("image", labelled, image=Look((channels, height, width)))
        found = look_at(lambda: itertools.chain.from_iterable(split.rows() for split in splits), reading.unreadable, name)
        return Seen("image", labelled, image=found)
    if raw.kind == "vector":
        parts = [np.stack(list(split.rows())) for split in splits if split.count]
        if any(part.shape[1] != parts[0].shape[1] for part in parts):
            raise FedstillError(f"the training vectors of '{name}' are {parts[0].shape[1]} wide, its test vectors are not")
        if any(np.isinf(part).any() for part in parts):
            raise FedstillError(f"the vectors of '{name}' hold infinite numbers")
        missing = np.flatnonzero(np.any([np.isnan(part).any(axis=0) for part in parts], axis=0))
        return Seen("vector", labelled, raw.prepared, width=parts[0].shape[1], missing=tuple(missing.tolist()))
    return Seen(raw.kind, labelled, columns=raw.columns)
