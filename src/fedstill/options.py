"""What every table of options has in common: frozen, validated, and no unknown keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Part", "Positive"]

Positive = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """A table of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
