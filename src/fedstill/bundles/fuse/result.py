"""The result of ``fuse``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from fedstill.bundles import card
from fedstill.bundles.bundle import About
from fedstill.fusion.distillation.distil import Distilled
from fedstill.models.network import Network

__all__ = ["Figure", "Fused"]


@dataclass(frozen=True)
class Figure:
    """One row of the table before and after: who, and the accuracy (0..1) on each labelled set."""

    who: str
    kind: str  # teacher, average, ensemble, start, distilled (if the result is another point of the line) or student
    accuracy: dict[str, float]

    @property
    def mean(self) -> float:
        """The mean over the sets."""
        return fmean(self.accuracy.values())


@dataclass(frozen=True)
class Fused:
    """One model fused from several, and how it was made."""

    student: nn.Module  # the module that was given, or a fedstill network
    network: Network = field(repr=False)
    classes: tuple[str, ...]
    teachers: dict[str, float]  # mean weight over the pool
    start: str  # where the student started
    distilled: Distilled
    figures: tuple[Figure, ...] = ()
    weights_by_set: dict[str, dict[str, float]] = field(default_factory=dict)  # each teacher's mean weight on each labelled set
    about: About | None = field(default=None, repr=False)  # None if the student is the caller's own module
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    sources: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    ensemble: Callable[[Path], None] | None = field(default=None, repr=False)  # writes the teachers, if they are kept

    def save(self, folder: str | Path, *, onnx: bool = False) -> Path:
        """Write the folder: model.safetensors, fused.json, MODEL_CARD.md, model.onnx on request, and ``ensemble/`` if the
        ensemble was kept."""
        return card.save(self, Path(folder), onnx=onnx)
