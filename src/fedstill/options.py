"""What every table of options has in common: frozen, validated, and no unknown keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Part", "Positive", "laid_over"]

Positive = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """A table of the configuration.

    A nested table that is given in part keeps the other keys as this table's own default has them, not as its kind has them:

    >>> class Inner(Part):
    ...     steps: int = 10
    ...     size: int = 1
    >>> class Outer(Part):
    ...     inner: Inner = Inner(steps=5)
    >>> Outer.model_validate({"inner": {"size": 3}}).inner
    Inner(steps=5, size=3)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _over_defaults(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        given = laid_over(cls.presets(given), given)
        nested = {name: field.default for name, field in cls.model_fields.items() if isinstance(field.default, Part)}
        over = {name: default.under(given[name]) for name, default in nested.items() if isinstance(given.get(name), Mapping)}
        return {**given, **over}

    def under(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given in part of this table, completed by its own values."""
        return laid_over(self.model_dump(), given)

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Values that what is given brings with it, such as a named set of defaults; what is given wins over them."""
        return {}


def laid_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees, the second winning, tables merged key by key.

    >>> laid_over({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    result = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = laid_over(result[key], value) if both else value
    return result
