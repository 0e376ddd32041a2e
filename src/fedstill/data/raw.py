"""Data before it becomes tensors: what every source ends as."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = ["Kind", "Raw", "RawSplit"]

Kind = Literal["image", "text", "vector"]


@dataclass(frozen=True)
class RawSplit:
    """Rows that are read when asked for, and their labels (None where there are none)."""

    count: int
    rows: Callable[[], Iterator[Any]]
    labels: np.ndarray | None


@dataclass(frozen=True)
class Raw:
    """A data set before it becomes tensors; ``test`` is None where the source has only one split."""

    kind: Kind
    classes: tuple[str, ...]
    train: RawSplit
    test: RawSplit | None
