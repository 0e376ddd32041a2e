"""Samples of a generator: the system's own, or a frozen one from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from fedstill.core.errors import FedstillError, first_line
from fedstill.core.message import State
from fedstill.core.registry import resolve
from fedstill.core.streams import subseed
from fedstill.data.samples import Samples
from fedstill.fusion.sources.contract import SourceContext, source
from fedstill.models.files import read_state
from fedstill.models.generator import FeatureGenerator, Generator, build_generator
from fedstill.task import Task

__all__ = [
    "Frozen",
    "check_generated",
    "check_range",
    "class_grid",
    "from_generator",
    "frozen_generator",
    "generator_for",
    "load_generator",
    "shows_images",
]


def check_range(task: Task) -> None:
    """Refuse a task whose normalised images are not in [-1, 1], the range of generated images: the two would never match."""
    if len(task.shape) != 3:
        return  # vectors have no range
    network = task.networks.get(task.networks.student)
    values = [network.mean, network.std]
    if any(x != 0.5 for value in values for x in (value if isinstance(value, list) else [value])):
        raise FedstillError(
            "generated images lie in [-1, 1]: set data.mean = 0.5 and data.std = 0.5 for systems that generate them"
        )


def check_generated(task: Task, name: str) -> None:
    """Refuse a text task for the system ``name``: a generator cannot be trained through token ids."""
    if task.kind == "text" and task.kept_trunk is None:
        raise FedstillError(f"{name} generates inputs and cannot generate text: it is for images and vectors")


def shows_images(task: Task) -> bool:
    """Whether inputs can be shown as images: not if they are vectors or the outputs of a frozen trunk."""
    return task.kind == "image" and task.kept_trunk is None


def from_generator(generator: nn.Module, size: int, rng: torch.Generator, batch_size: int = 256) -> Samples:
    """``size`` samples of a frozen generator, already in the networks' input range."""
    generator.eval()
    with torch.no_grad():
        parts = [generator.sample(min(batch_size, size - i), rng)[0] for i in range(0, size, batch_size)]  # type: ignore[operator]
    return Samples(torch.cat(parts))


def class_grid(generator: Generator, rng: torch.Generator, rows: int = 8) -> Tensor:
    """``rows`` images of each class, in the order of a grid with one column per class."""
    generator.eval()
    with torch.no_grad():
        return generator.sample(rows * generator.classes, rng, torch.arange(generator.classes).repeat(rows))[0]


def generator_for(
    task: Task, kind: str, state: State | None = None, *, noise_dim: int, feature_dim: int | None = None, **options: Any
) -> Generator:
    """The generator that a system trains itself, with ``state`` or with initial weights that depend on the seed alone."""
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
    """A pre-trained generator: a file that a run saved (``generator.safetensors``), or ``module.path:callable``."""
    if ":" in spec and not Path(spec).exists():
        return _called(resolve(spec, "source.generator ="), spec)
    try:
        state, about = read_state(spec)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise FedstillError(f"source.generator = '{spec}' is not a readable safetensors file: {first_line(error)}") from None
    kind, classes = str(about.get("generator", about.get("kind", "conditional"))), len(task.classes)
    if about.get("classes", classes) != classes:
        raise FedstillError(f"source.generator = '{spec}' is for {about['classes']} classes, but this task has {classes}")
    shape = tuple(about.get("shape", task.shape))
    try:
        generator = build_generator(
            kind,
            classes=classes,
            shape=shape,
            feature_dim=shape[0] if len(shape) == 1 else None,
            noise_dim=int(about.get("noise_dim", 100)),
            **about.get("options", {}),
        )
        generator.load_state_dict(state)
    except (RuntimeError, TypeError, ValueError) as error:
        raise FedstillError(
            f"source.generator = '{spec}' does not fit this task: {str(error).splitlines()[-1].strip()}"
        ) from None
    return generator


def _called(found: Any, spec: str) -> nn.Module:
    """The module that ``module.path:callable`` names or returns."""
    try:
        made = found if isinstance(found, nn.Module) else found()
    except Exception as error:  # a user's own code may raise anything
        raise FedstillError(f"source.generator = '{spec}' cannot be called: {first_line(error)}") from error
    if not isinstance(made, nn.Module):
        raise FedstillError(f"source.generator = '{spec}' returned a {type(made).__name__}, not a module")
    return made


@dataclass(frozen=True)
class Frozen:
    """A pre-trained generator that fits the task, and whether it makes features of the layer before the head."""

    module: nn.Module
    features: bool = False


def frozen_generator(spec: str, task: Task) -> Frozen:
    """The generator that ``spec`` names, tried once, so that one that does not fit is refused before any client trains."""
    module = load_generator(spec, task).to(task.device).eval()
    if not callable(getattr(module, "sample", None)):
        raise FedstillError(
            f"source.generator = '{spec}' has no method sample(n, generator) that returns samples and their labels or None"
        )
    try:
        with torch.no_grad():
            made = module.sample(2, torch.Generator().manual_seed(0))[0]  # type: ignore[operator]
    except Exception as error:  # a user's own code may raise anything
        raise FedstillError(f"source.generator = '{spec}' cannot make samples: {first_line(error)}") from error
    shape = tuple(made.shape[1:]) if isinstance(made, Tensor) else None
    features = shape == (task.networks.get(task.networks.student).feature_dim,)
    if shape == tuple(task.shape) and not (features and isinstance(module, FeatureGenerator)):  # vectors may be as wide
        return Frozen(module)
    if features:
        return Frozen(module, features=True)
    what = f"samples of shape {shape}" if shape is not None else f"a {type(made).__name__} instead of samples"
    raise FedstillError(f"source.generator = '{spec}' makes {what}, but this task's inputs have shape {tuple(task.shape)}")


@source("generator", fresh=True)
def _made(context: SourceContext) -> Samples:
    """Samples of the system's own generator, or of the one that ``source.generator`` names."""
    generator = context.generator
    if generator is None:
        if context.options.generator is None:
            raise FedstillError("source.kind = 'generator' needs source.generator: a file or module.path:callable")
        generator = frozen_generator(context.options.generator, context.task).module
    return from_generator(generator, context.size, context.rng)
