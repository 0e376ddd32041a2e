"""The options of reading: how a source is interpreted, and how values become inputs of a network."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import field_validator

from fedstill.core.options import Part
from fedstill.data.text import TextOptions

__all__ = ["Reading"]


class Reading(Part):
    """How sources are read."""

    kind: Literal["auto", "image", "text", "table"] = "auto"
    """How the data is read. ``auto``: as images if there are any, as text if a column holds texts, otherwise as a table of
    numbers and categories (docs/data.md)."""

    label: str | None = None
    """The column of a table that holds the labels. If not set, a column with one of the usual names (docs/data.md)."""

    ignore: list[str] = []
    """Columns of a table that are left out, such as identifiers."""

    standardise: Literal["shared", "local", "none"] | None = None
    """How the columns of tables and arrays are scaled to mean 0 and variance 1. ``shared``: by the training data of all client
    domains, which in a real federation share their means, variances and counts. ``local``: each domain by its own data.
    ``none``: not at all. If not set, ``shared``, and ``none`` for vectors from a loader."""

    range: tuple[float, float] | None = None
    """The values that become black and white in images of more than 8 bits, ``[low, high]``; values outside are clipped. Needed
    if the files do not say it, as with floats."""

    unreadable: Literal["error", "skip"] = "error"
    """What happens if an image cannot be decoded. ``error``: the run stops. ``skip``: the image is left out, and a warning names
    it."""

    text: TextOptions | None = None
    """How text becomes token ids, for domains of text."""

    @field_validator("range")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not (all(map(math.isfinite, value)) and value[0] < value[1]):
            raise ValueError("should be two numbers, the lower one first")
        return value
