"""Data before it becomes tensors: the common form of all sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

__all__ = ["Column", "Deep", "Encoded", "Header", "Kind", "Limits", "Raw", "RawSplit"]

Kind = Literal["image", "text", "vector", "table"]
Limits = tuple[float, float]


@dataclass(frozen=True)
class Deep:
    """An image of more than 8 bits: values (height, width) or (height, width, 3), and what its file says of them.

    ``declared`` are the values that are black and white, ``room`` the range that its bits can hold; each is None if the file does
    not say. ``own`` limits apply to this image alone, such as a window. ``alpha`` (height, width) is the pixels' opacity, from 0
    to 1, and None if all are opaque.
    """

    values: np.ndarray
    declared: Limits | None = None
    room: Limits | None = None
    own: bool = False
    inverted: bool = False  # low values are white
    alpha: np.ndarray | None = None


@dataclass(frozen=True)
class Header:
    """What is known of an image before its pixels are decoded."""

    channels: int
    height: int
    width: int
    transparent: bool = False
    deep: bool = False


@dataclass(frozen=True)
class Encoded:
    """An image that is not decoded yet: its name, and how it is opened; ``look`` if its header is read in another way."""

    name: str
    open: Callable[[], Image.Image | Deep]
    look: Callable[[], Header] | None = None


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers, words of which each is a category, or nothing but missing values."""

    name: str
    kind: Literal["number", "category", "empty"]
    values: tuple[str, ...] = ()  # the categories; at most one more than are allowed
    missing: bool = False


@dataclass(frozen=True)
class RawSplit:
    """Rows that are read when needed, and their labels (None if there are none).

    A row is an :class:`Encoded` image, a text or a vector. The rows of a table come all at once, as ``columns``: numbers with
    NaN, or words with None, where a value is missing. ``pixels`` are images that are bytes already, (n, channels, height, width).
    """

    count: int
    rows: Callable[[], Iterator[Any]]
    labels: np.ndarray | None
    columns: Callable[[], dict[str, np.ndarray]] | None = None
    pixels: np.ndarray | None = None


@dataclass(frozen=True)
class Raw:
    """A data set before it becomes tensors; ``test`` is None where the source has only one split."""

    kind: Kind
    classes: tuple[str, ...]
    train: RawSplit
    test: RawSplit | None
    columns: tuple[Column, ...] = ()  # of a table, its label left out
    prepared: bool = False  # vectors that are inputs already, and are not standardised unless that is asked for
