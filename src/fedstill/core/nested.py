"""Nested tables as in TOML, before they are interpreted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["laid_over"]


def laid_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees merged key by key; the second one wins.

    >>> laid_over({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    result = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = laid_over(result[key], value) if both else value
    return result
