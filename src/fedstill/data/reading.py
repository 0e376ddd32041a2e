"""The options of reading: what a source is taken for, and what happens to values that a network cannot take as they are."""

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
    """What the data is taken for. ``auto``: images where there are any, text where a column holds texts, else a table of numbers
    and categories (docs/data.md)."""

    label: str | None = None
    """The column of a table that holds the labels; found by its usual names if not set (docs/data.md)."""

    ignore: list[str] = []
    """Columns of a table that are left out, such as identifiers."""

    standardise: Literal["shared", "local", "none"] | None = None
    """Numbers of tables and arrays, with mean 0 and variance 1 in every column. ``shared``: over the training data of all client
    domains, which in a real federation share their means, variances and counts. ``local``: each domain by its own. ``none``: as
    they are. If not set, ``shared``, and ``none`` for vectors that a loader brings."""

    range: tuple[float, float] | None = None
    """The values that become black and white in images of more than 8 bits, ``[low, high]``; what lies outside is cut off. Needed
    where the files do not say it, as with floats."""

    unreadable: Literal["error", "skip"] = "error"
    """What happens with an image that cannot be decoded. ``skip``: it is left out, and a warning names it."""

    text: TextOptions | None = None
    """How text becomes token ids, for domains of text."""

    @field_validator("range")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not (all(map(math.isfinite, value)) and value[0] < value[1]):
            raise ValueError("is two numbers, the lower one first")
        return value
