"""Samples of a generator: the system's own, or a frozen one from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import nn

from fedstill.core.errors import FedstillError
from fedstill.core.message import State
from fedstill.core.registry import resolve
from fedstill.core.streams import subseed
from fedstill.data.samples import Samples
from fedstill.fusion.sources.contract import SourceContext, source
from fedstill.models.generator import Generator, build_generator
from fedstill.task import Task

__all__ = ["check_range", "from_generator", "generator_for", "load_generator"]


def check_range(task: Task) -> None:
    """Refuse a task whose normalised images are not in [-1, 1], where generators make theirs: they could never meet."""
    network = task.networks.get(task.networks.student)
    values = [network.mean, network.std]
    if any(x != 0.5 for value in values for x in (value if isinstance(value, list) else [value])):
        raise FedstillError(
            "generated images lie in [-1, 1]: set data.mean = 0.5 and data.std = 0.5 for systems that generate them"
        )


def from_generator(generator: nn.Module, size: int, rng: torch.Generator, batch_size: int = 256) -> Samples:
    """``size`` samples of a frozen generator, already in the networks' input range."""
    generator.eval()
    with torch.no_grad():
        parts = [generator.sample(min(batch_size, size - i), rng)[0] for i in range(0, size, batch_size)]  # type: ignore[operator]
    return Samples(torch.cat(parts))


def generator_for(
    task: Task, kind: str, state: State | None = None, *, noise_dim: int, feature_dim: int | None = None, **options: Any
) -> Generator:
    """The generator that a system trains for itself, with ``state`` or its initial weights, a function of the seed alone."""
    made = build_generator(
        kind,
        classes=len(task.classes),
        shape=task.shape,
        feature_dim=feature_dim,
        noise_dim=noise_dim,
        seed=subseed(task.seed, "generator"),
        **options,
    ).to(task.device)
    if state is not None:
        made.load_state_dict(state)
    return made


def load_generator(spec: str, task: Task) -> nn.Module:
    """A pre-trained generator: a safetensors file (its ``kind`` in the metadata), or ``module.path:callable``."""
    if ":" in spec and not Path(spec).exists():
        made = resolve(spec, "source.generator =")
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


@source("generator", fresh=True)
def _made(context: SourceContext) -> Samples:
    """What the system's own generator makes, or the one that ``source.generator`` names."""
    generator = context.generator
    if generator is None:
        if context.options.generator is None:
            raise FedstillError("source.kind = 'generator' needs source.generator: a file or module.path:callable")
        generator = load_generator(context.options.generator, context.task)
    return from_generator(generator, context.size, context.rng)
