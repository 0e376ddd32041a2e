"""The options of ``fuse``: checked once, then handed from step to step as one object."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from pydantic import Field, field_validator, model_validator

from fedstill.bundles.bundle import Scale, scale_fault
from fedstill.core.options import Part, Positive
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Space

__all__ = ["FuseDistillation", "FuseKeywords", "FuseOptions", "described"]

Call = TypeVar("Call", bound=Callable[..., Any])


class FuseDistillation(Distillation):
    """How a fused student learns: as in a run, but once and for long."""

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
            raise ValueError("new inputs each step are for runs; fuse computes the teachers' table once")
        return fresh


class FuseOptions(Part):
    """What ``fuse`` takes besides models and data.

    >>> FuseOptions(weighting="projection", distillation={"temperature": 2.0}).distillation.steps
    2000
    """

    weighting: str = "uniform"
    """How much each teacher counts for each sample (``fedstill.fusion.weightings``); those that look at domains need bundles
    that describe theirs."""

    weighting_options: dict[str, Any] = {}
    """The options of that weighting."""

    ensemble: Space = "probabilities"
    """What is averaged: "probabilities", "logits" or "losses"."""

    distillation: FuseDistillation = Field(default_factory=FuseDistillation)
    """How the student learns: options of ``fedstill.fusion.distillation.options.Distillation`` that differ from fuse's own."""

    targets: Literal["own", "label", "ensemble"] = "own"
    """Without unlabelled inputs, who says what a drawn feature is: the model of the site that it was drawn from, the class that
    it was drawn for, or the whole ensemble."""

    draws: Positive = 20_000
    """Without unlabelled inputs, how many features are drawn from the bundles' statistics."""

    start: str = "auto"
    """Where the student starts: "auto" takes whichever agrees most often with the ensemble on the pool: the average of the
    teachers with its architecture, each of them, or its own weights; or "average", "own", or a teacher's name."""

    classes: list[str] | dict[str, list[str]] | None = None
    """Class names of module teachers, the same for all or by teacher's name. Classes are aligned by name, and a teacher is
    silent on those that it does not know."""

    student_options: dict[str, Any] = {}
    """The options of a student that is a built-in model."""

    norm: str = "batch"
    """The normalisation layers of a student that is a built-in model: batch, group or none."""

    image_size: Positive | None = None
    """The side of the student's images; the largest of the bundles' by default."""

    limit: Positive | None = None
    """At most so many unlabelled samples of folders, tables and embedded domains."""

    reading: dict[str, Any] = {}
    """How images of folders and tables become pixels where their files do not say it: options of ``[data]`` such as ``range`` and
    ``unreadable``."""

    mean: Scale | None = None
    """How plain modules and the student normalise uint8 images, ``(x / 255 - mean) / std``: one number, or one a channel."""

    std: Scale | None = None
    """Of that normalisation, likewise; 0.5 both, or the first bundle's for a student that is a built-in model."""

    reference: str | None = None
    """The backbone that the bundles' projections were made with, where it is not a built-in one."""

    trust_code: bool = False
    """Open bundles that hold programs or name networks of one's own: this runs their code."""

    keep_ensemble: bool = False
    """Whether ``Fused.save`` also writes the teachers and their weighting, as an ensemble that can be loaded and exported."""

    seed: int = 0
    """Of the student's weights and the order of the samples."""

    @model_validator(mode="after")
    def _scales_are_numbers(self) -> FuseOptions:
        wrong = scale_fault(0.5 if self.mean is None else self.mean, 0.5 if self.std is None else self.std)
        if wrong is not None:
            raise ValueError(wrong)
        return self

    def learning(self, trained: bool) -> Distillation:
        """How the student learns. Unless told, one that is not ``trained`` learns its BatchNorm statistics too: it has none yet.

        >>> [FuseOptions().learning(trained).student_norm for trained in (True, False)]
        ['frozen', 'train']
        """
        if trained or "student_norm" in self.distillation.model_fields_set:
            return self.distillation
        return self.distillation.model_copy(update={"student_norm": "train"})


class FuseKeywords(TypedDict, total=False):
    """The fields of :class:`FuseOptions` as a caller may write them; None is as good as leaving one out."""

    weighting: str
    weighting_options: Mapping[str, Any] | None
    ensemble: Space
    targets: Literal["own", "label", "ensemble"]
    draws: int
    distillation: Mapping[str, Any] | None
    start: str
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
    """Add every option, its default and what it means to the text that ``help`` shows of a function that takes them."""
    lines = []
    for name, option in FuseOptions.model_fields.items():
        default = f" ({option.default!r})" if isinstance(option.default, str | int) else ""
        text = f"{name}{default}: {' '.join((option.description or '').split())}"
        lines.append(textwrap.fill(text, 120, initial_indent=" " * 4, subsequent_indent=" " * 8))
    function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options:", *lines])
    return function
