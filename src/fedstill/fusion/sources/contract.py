"""On what knowledge is transferred: the contract of sources, and their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import torch
from pydantic import AfterValidator, Field
from torch import nn

from fedstill.core.options import Part, Positive
from fedstill.core.registry import Registry
from fedstill.data.samples import Samples
from fedstill.task import Task

__all__ = ["MIXTURE", "SOURCES", "Source", "SourceContext", "SourceKind", "source"]

MIXTURE = "mixture"  # of other kinds, by their shares


def _plain(name: str) -> str:
    SOURCES.get(name)
    return name


def _known(name: str) -> str:
    return name if name == MIXTURE else _plain(name)


SourceName = Annotated[str, AfterValidator(_known)]
PlainName = Annotated[str, AfterValidator(_plain)]


class Source(Part):
    """On what knowledge is transferred: the server's unlabelled data, a generator's samples, uniform noise, or a mixture."""

    kind: SourceName = "data"
    size: Positive = 5000  # samples drawn for generator and noise, and altogether for a mixture
    generator: str | None = None  # a frozen generator: a .safetensors file written by fedstill, or module.path:callable
    shares: dict[PlainName, Annotated[float, Field(ge=0)]] = {"data": 0.5, "noise": 0.5}  # of a mixture
    redraw: bool = True  # draw generated samples and noise anew each round
    options: dict[str, Any] | None = None  # of a kind that brings options of its own

    def under(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As for every table; shares that are given are all of them.

        >>> Source().under({"kind": "mixture", "shares": {"noise": 1.0}})["shares"]
        {'noise': 1.0}
        """
        found = super().under(given)
        return {**found, "shares": given["shares"]} if "shares" in given else found


@dataclass(frozen=True)
class SourceContext:
    """What a source may look at when it draws the samples of a round."""

    options: Source
    size: int  # how many samples are wanted
    task: Task
    rng: torch.Generator
    generator: nn.Module | None = None  # the system's own, where it has one (DaFKD, FedFTG)

    @property
    def mixed(self) -> bool:
        """Whether the samples become a part of a mixture."""
        return self.options.kind == MIXTURE


@dataclass(frozen=True)
class SourceKind:
    """A source before it draws; ``fresh`` where each step of distillation may have inputs of its own, drawn anew."""

    draw: Callable[[SourceContext], Samples]
    fresh: bool = False


Draw = TypeVar("Draw", bound=Callable[[SourceContext], Samples])
SOURCES: Registry[SourceKind] = Registry("source", group="fedstill.sources", home="fedstill.fusion.sources")


def source(name: str, *, fresh: bool = False) -> Callable[[Draw], Draw]:
    """Add the decorated function to the common set of sources."""
    return SOURCES.register(name, lambda draw: SourceKind(draw, fresh))
