"""Sources of the samples on which knowledge is transferred: their contract and their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import torch
from pydantic import AfterValidator, Field
from torch import nn

from fedstill.algorithm import Reply
from fedstill.core.errors import FedstillError
from fedstill.core.options import Part, Positive
from fedstill.core.registry import Registry
from fedstill.data.samples import Samples
from fedstill.task import Task

__all__ = [
    "MIXTURE",
    "SOURCES",
    "Source",
    "SourceContext",
    "SourceKind",
    "check_images",
    "check_source",
    "kinds_of",
    "reports_for",
    "source",
]

MIXTURE = "mixture"  # of other kinds, by their shares


def _plain(name: str) -> str:
    SOURCES.get(name)
    return name


def _known(name: str) -> str:
    return name if name == MIXTURE else _plain(name)


SourceName = Annotated[str, AfterValidator(_known)]
PlainName = Annotated[str, AfterValidator(_plain)]


class Source(Part):
    """The samples on which knowledge is transferred."""

    kind: SourceName = "data"
    """``data``: the server's unlabelled pool. ``varied``: the pool in other colours, places and overlays, and vectors mixed.
    ``statistics``: features drawn from statistics that clients report. ``generator``: generated samples. ``noise``: images of
    uniform noise (FedDF, Figure 5). ``mixture``: several of these, by ``shares``."""

    size: Positive = 5000
    """Number of samples to draw from a generator, from noise, or in all for a mixture. ``data`` alone uses the whole pool."""

    generator: str | None = None
    """A frozen generator, for algorithms that train none: the ``generator.safetensors`` that a run of dafkd, fedftg or fedgen
    saves, or ``module.path:callable`` for a module with a method ``sample(n, generator)``."""

    shares: dict[PlainName, Annotated[float, Field(ge=0)]] = {"data": 0.5, "noise": 0.5}
    """Shares of the kinds in a mixture."""

    redraw: bool = True
    """Draw new samples each round; ``false`` repeats the same random draw."""

    options: dict[str, Any] | None = None
    """Options of the source kind, for kinds that have their own."""

    def under(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As for every table, but given ``shares`` replace all default shares.

        >>> Source().under({"kind": "mixture", "shares": {"noise": 1.0}})["shares"]
        {'noise': 1.0}
        """
        found = super().under(given)
        return {**found, "shares": given["shares"]} if "shares" in given else found


@dataclass(frozen=True)
class SourceContext:
    """What a source may use when it draws the samples of a round."""

    options: Source
    size: int  # how many samples are wanted
    task: Task
    rng: torch.Generator
    generator: nn.Module | None = None  # the system's own, if it has one (DaFKD, FedFTG)
    replies: Sequence[Reply] = ()  # of the round's clients, for sources that draw from their reports

    @property
    def mixed(self) -> bool:
        """Whether the samples become part of a mixture."""
        return self.options.kind == MIXTURE


@dataclass(frozen=True)
class SourceKind:
    """A source before it draws; ``fresh`` if it can draw new inputs for each step of distillation."""

    draw: Callable[[SourceContext], Samples]
    fresh: bool = False
    report: str | None = None  # what clients must report for it


Draw = TypeVar("Draw", bound=Callable[[SourceContext], Samples])
SOURCES: Registry[SourceKind] = Registry("source", group="fedstill.sources", home="fedstill.fusion.sources")


def source(name: str, *, fresh: bool = False, report: str | None = None) -> Callable[[Draw], Draw]:
    """Register the decorated function as a source; the arguments are those of :class:`SourceKind`."""
    return SOURCES.register(name, lambda draw: SourceKind(draw, fresh, report))


def kinds_of(options: Source) -> list[str]:
    """The kinds that samples are drawn from: one, or those with a share in a mixture.

    >>> kinds_of(Source()), kinds_of(Source(kind="mixture", shares={"data": 1, "noise": 0}))
    (['data'], ['data'])
    """
    return [kind for kind, share in options.shares.items() if share > 0] if options.kind == MIXTURE else [options.kind]


def check_source(options: Source, task: Task) -> None:
    """Refuse a source that does not suit the task, before the first round's training."""
    if "noise" in kinds_of(options):
        check_images(task)


def check_images(task: Task) -> None:
    """Refuse a task whose inputs are not images: only pixels have a range to draw uniform noise from."""
    if len(task.shape) != 3:
        raise FedstillError("source.kind = 'noise' makes images; this task's inputs are not images")


def reports_for(options: Source) -> list[str]:
    """What clients must report for a source, or for the parts of a mixture."""
    return list(dict.fromkeys(found for kind in kinds_of(options) if (found := SOURCES.get(kind).report) is not None))
