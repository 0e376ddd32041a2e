"""The options of ``fuse``: checked once, then passed from step to step as one object."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from pydantic import Field, field_validator, model_validator

from fedstill.bundles.bundle import Scale, scale_fault
from fedstill.core.options import Part, Positive, descriptions
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Space

__all__ = ["FuseDistillation", "FuseKeywords", "FuseOptions", "described"]

Call = TypeVar("Call", bound=Callable[..., Any])


class FuseDistillation(Distillation):
    """How a fused student learns: as in a run, but only once and for longer."""

    steps: Positive = 2000
    """Steps of the student."""

    patience: Annotated[int, Field(ge=0)] | None = 500
    """Stop after this many steps without a better validation accuracy and keep the best student, if there is validation data; 0
    takes all steps and keeps the last."""

    check_every: Positive = 50
    """Steps between measurements of the validation accuracy."""

    @field_validator("fresh")
    @classmethod
    def _never_fresh(cls, fresh: bool) -> bool:
        if fresh:
            raise ValueError("fresh inputs in each step are for runs; fuse computes the teachers' table once")
        return fresh


class FuseOptions(Part):
    """What ``fuse`` takes besides models and data.

    >>> FuseOptions(weighting="projection", distillation={"temperature": 2.0}).distillation.steps
    2000
    """

    weighting: str = "auto"
    """How much each teacher counts for each sample (``fedstill.fusion.weightings``). "auto": "projection" if all teachers are
    bundles that describe their domains under one reference, else "uniform". Domain-aware weightings need such descriptions."""

    weighting_options: dict[str, Any] = {}
    """The options of that weighting."""

    ensemble: Space = "probabilities"
    """What is averaged: "probabilities", "logits" or "losses"."""

    distillation: FuseDistillation = Field(default_factory=FuseDistillation)
    """How the student learns: options of ``fedstill.fusion.distillation.options.Distillation`` that differ from fuse's own."""

    targets: Literal["own", "label", "ensemble"] = "own"
    """Without unlabelled inputs, the target of a drawn feature: the prediction of its own site's model, the class that it was
    drawn for, or the prediction of the whole ensemble."""

    draws: Positive = 20_000
    """Without unlabelled inputs, how many features are drawn from the bundles' statistics."""

    start: str = "auto"
    """The student's initial weights: "average" of the teachers with its architecture, its "own", a teacher's name, or "auto": the
    average, unless on the pool it agrees with the ensemble less often than these teachers do in the mean, and else whichever of
    these agrees most often."""

    line: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = "auto"
    """How far the result lies from the average of the teachers (0) towards the student that was distilled from it (1). "auto":
    the best of five points by the accuracy on validation data, or half way without any. Students that do not start from the
    average, and those that learn from statistics, are taken themselves."""

    classes: list[str] | dict[str, list[str]] | None = None
    """Class names of module teachers, the same for all or by teacher's name. Classes are aligned by name, and a teacher says
    nothing about classes that it does not know."""

    student_options: dict[str, Any] = {}
    """The options of a student that is a built-in model."""

    norm: Literal["batch", "group", "none"] = "batch"
    """The normalisation layers of a student that is a built-in model: batch, group or none."""

    image_size: Positive | None = None
    """The side of the student's images; by default the largest among the bundles."""

    limit: Positive | None = None
    """The maximum number of unlabelled samples from folders, tables and embedded domains."""

    reading: dict[str, Any] = {}
    """How images in folders and tables become pixels if their files do not say it: options of ``[data]`` such as ``range`` (by
    default that of all bundles, if they agree) and ``unreadable``."""

    mean: Scale | None = None
    """How plain modules and the student normalise uint8 images, ``(x / 255 - mean) / std``: one number, or one per channel."""

    std: Scale | None = None
    """The same for ``std``; both default to 0.5, or to the first bundle's values for a student that is a built-in model."""

    reference: str | None = None
    """The backbone that the bundles' projections were made with, if it is not a built-in one."""

    trust_code: bool = False
    """Open bundles that contain programs or name custom networks: this runs their code."""

    keep_ensemble: bool = False
    """Whether ``Fused.save`` also writes the teachers and their weighting, as an ensemble that can be loaded and exported."""

    seed: int = 0
    """The seed of the student's weights and of the order of the samples."""

    @model_validator(mode="after")
    def _scales_are_numbers(self) -> FuseOptions:
        wrong = scale_fault(0.5 if self.mean is None else self.mean, 0.5 if self.std is None else self.std)
        if wrong is not None:
            raise ValueError(wrong)
        return self

    def learning(self, trained: bool) -> Distillation:
        """How the student learns. By default a student that is not ``trained`` also learns its BatchNorm statistics.

        >>> [FuseOptions().learning(trained).student_norm for trained in (True, False)]
        ['frozen', 'train']
        """
        if trained or "student_norm" in self.distillation.model_fields_set:
            return self.distillation
        return self.distillation.model_copy(update={"student_norm": "train"})


class FuseKeywords(TypedDict, total=False):
    """The fields of :class:`FuseOptions` as a caller may write them; None means the default."""

    weighting: str
    weighting_options: Mapping[str, Any] | None
    ensemble: Space
    targets: Literal["own", "label", "ensemble"]
    draws: int
    distillation: Mapping[str, Any] | None
    start: str
    line: float | Literal["auto"]
    classes: Sequence[str] | Mapping[str, Sequence[str]] | None
    student_options: Mapping[str, Any] | None
    norm: str
    image_size: int | None
    limit: int | None
    reading: Mapping[str, Any] | None
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    reference: str | None
    trust_code: bool
    keep_ensemble: bool
    seed: int


def described(function: Call) -> Call:
    """Add every option, its default and its meaning to the ``help`` text of a function that takes them."""
    lines, meanings = [], descriptions(FuseOptions)
    for name, option in FuseOptions.model_fields.items():
        default = f" ({option.default!r})" if isinstance(option.default, str | int) else ""
        text = f"{name}{default}: {' '.join(meanings.get(name, '').split())}"
        lines.append(textwrap.fill(text, 120, initial_indent=" " * 4, subsequent_indent=" " * 8))
    function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options:", *lines])
    return function
