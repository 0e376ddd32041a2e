"""On what knowledge is transferred: samples for the teachers to speak about."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors
import torch
from torch import Tensor, nn

from fedstill.core.errors import FedstillError
from fedstill.core.message import State
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.options import Source
from fedstill.models.generator import build_generator

if TYPE_CHECKING:
    from fedstill.task import Task

__all__ = ["check_range", "draw", "fresh_inputs", "from_generator", "load_generator", "noise"]


def check_range(task: Task) -> None:
    """Refuse a task whose normalised images are not in [-1, 1], where generators make theirs: they could never meet."""
    values = [task.config.data.mean, task.config.data.std]
    if any(x != 0.5 for value in values for x in (value if isinstance(value, list) else [value])):
        raise FedstillError(
            "generated images lie in [-1, 1]: set data.mean = 0.5 and data.std = 0.5 for systems that generate them"
        )


def noise(task: Task, size: int, rng: torch.Generator) -> Samples:
    """Images of uniform noise over the whole range of pixels (FedDF, Figure 5)."""
    if len(task.shape) != 3:
        raise FedstillError("source.kind = 'noise' makes images; this task's inputs are not images")
    return Samples(torch.randint(0, 256, (size, *task.shape), generator=rng, dtype=torch.uint8))


def from_generator(generator: nn.Module, size: int, rng: torch.Generator, batch_size: int = 256) -> Samples:
    """``size`` samples of a frozen generator, already in the networks' input range."""
    generator.eval()
    with torch.no_grad():
        parts = [generator.sample(min(batch_size, size - i), rng)[0] for i in range(0, size, batch_size)]  # type: ignore[operator]
    return Samples(torch.cat(parts))


def load_generator(spec: str, task: Task) -> nn.Module:
    """A pre-trained generator: a safetensors file (its ``kind`` in the metadata), or ``module.path:callable``."""
    if ":" in spec and not Path(spec).exists():
        module, _, name = spec.partition(":")
        try:
            made = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise FedstillError(f"source.generator = '{spec}': {error}") from None
        return made() if not isinstance(made, nn.Module) else made
    try:
        with safetensors.safe_open(spec, framework="pt") as file:
            about = file.metadata() or {}
            state: State = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise FedstillError(f"source.generator = '{spec}' is not a readable safetensors file: {error}") from None
    generator = build_generator(
        about.get("kind", "conditional"),
        classes=len(task.classes),
        shape=task.shape,
        noise_dim=int(about.get("noise_dim", 100)),
    )
    try:
        generator.load_state_dict(state)
    except RuntimeError as error:
        raise FedstillError(
            f"source.generator = '{spec}' does not fit this task: {str(error).splitlines()[-1].strip()}"
        ) from None
    return generator


def draw(source: Source, task: Task, rng: torch.Generator, generator: nn.Module | None = None) -> Samples:
    """The round's samples. ``generator`` is the system's own where it has one (DaFKD, FedFTG)."""
    if source.kind == "mixture":
        total = sum(source.shares.values())
        if total <= 0:
            raise FedstillError("source.shares must have a positive share")
        parts = [
            _one(kind, round(source.size * share / total), source, task, rng, generator)
            for kind, share in source.shares.items()
            if share > 0
        ]
        normalise = task.networks.get(task.networks.student).normalise
        return Samples(torch.cat([normalise(part.x) for part in parts]))
    return _one(source.kind, source.size, source, task, rng, generator)


def _one(kind: str, size: int, source: Source, task: Task, rng: torch.Generator, generator: nn.Module | None) -> Samples:
    if kind == "noise":
        return noise(task, size, rng)
    if kind == "generator":
        return from_generator(_frozen(source, task, generator), size, rng)
    if task.pool is None:
        raise FedstillError("distilling on unlabelled data needs a pool: set data.server, data.target or data.holdout")
    if source.kind == "mixture" and size < len(task.pool):
        index: Tensor = torch.randperm(len(task.pool), generator=rng)[:size]
        return task.pool.samples.take(index)
    return task.pool.samples


def _frozen(source: Source, task: Task, generator: nn.Module | None) -> nn.Module:
    found = generator if generator is not None else load_generator(source.generator, task) if source.generator else None
    if found is None:
        raise FedstillError("source.kind = 'generator' needs source.generator: a file or module.path:callable")
    return found


def fresh_inputs(
    source: Source, task: Task, generator: nn.Module | None = None
) -> Callable[[int, torch.Generator], Tensor] | None:
    """What makes so many new inputs, where each step of distillation is to have its own; None where the inputs are data."""
    if source.kind == "noise":
        return lambda size, rng: noise(task, size, rng).x
    if source.kind == "generator":
        found = _frozen(source, task, generator)
        return lambda size, rng: from_generator(found, size, rng).x
    return None
