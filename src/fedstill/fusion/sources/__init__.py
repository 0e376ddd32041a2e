"""Sources of the samples on which knowledge is transferred."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedstill.algorithm import Reply
from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.sources.contract import (
    MIXTURE,
    SOURCES,
    Source,
    SourceContext,
    SourceKind,
    check_source,
    kinds_of,
    reports_for,
    source,
)
from fedstill.task import Task

__all__ = [
    "SOURCES",
    "Source",
    "SourceContext",
    "SourceKind",
    "check_source",
    "draw",
    "fresh_inputs",
    "kinds_of",
    "reports_for",
    "source",
]


def draw(
    options: Source,
    task: Task,
    rng: torch.Generator,
    generator: nn.Module | None = None,
    replies: Sequence[Reply] = (),
) -> Samples:
    """The round's samples. ``generator`` is the system's own, if it has one (DaFKD, FedFTG)."""
    if options.kind != MIXTURE:
        return SOURCES.get(options.kind).draw(SourceContext(options, options.size, task, rng, generator, replies))
    total = sum(options.shares.values())
    if total <= 0:
        raise FedstillError("source.shares must contain a positive share")
    parts = [
        SOURCES.get(kind).draw(SourceContext(options, round(options.size * share / total), task, rng, generator, replies))
        for kind, share in options.shares.items()
        if share > 0
    ]
    normalise = task.networks.get(task.networks.student).normalise
    return Samples(torch.cat([normalise(part.x) for part in parts]))


def fresh_inputs(
    options: Source, task: Task, generator: nn.Module | None = None
) -> Callable[[int, torch.Generator], Tensor] | None:
    """A function that makes a number of new inputs, for steps of distillation with fresh inputs; None if the inputs are data."""
    if options.kind == MIXTURE or not SOURCES.get(options.kind).fresh:
        return None
    kind = SOURCES.get(options.kind)
    return lambda size, rng: kind.draw(SourceContext(options, size, task, rng, generator)).x
