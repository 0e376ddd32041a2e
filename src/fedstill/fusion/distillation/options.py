"""How the student learns: the options of distillation. Defaults are FedDF's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from fedstill.core.options import Part, Positive
from fedstill.training.options import Augment, Optimizer

__all__ = ["Averaging", "Distillation"]


class Averaging(Part):
    """Stochastic weight averaging (SWA) of the student: the mean of its weights over training."""

    start: Annotated[int, Field(ge=0)] = 0
    """First step whose weights are averaged, but no later than a third of all steps (FedBE: 500 of 1,580)."""

    every: Positive | Literal["epoch"] = 25
    """Steps between averaged weights; ``epoch`` averages the weights after every pass over the samples."""


class Distillation(Part):
    """How the student learns from the teachers' table."""

    start: Literal["average", "previous", "scratch"] = "average"
    """Where the student starts: from the merged model, the previous global model (FedDF, Table 5), or new weights."""

    direction: Literal["forward", "reverse"] = "forward"
    """``forward``: KL(teachers || student). ``reverse``: KL(student || teachers)."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the teachers' and the student's softmax."""

    square: bool = False
    """Multiply the loss by the square of the temperature."""

    reduction: Literal["batchmean", "mean"] = "batchmean"
    """``batchmean`` divides the loss by the number of samples, ``mean`` also by the number of classes."""

    sharpen: Annotated[float, Field(gt=0)] | None = None
    """Raise targets to the power ``1/sharpen`` and renormalise them (FedBE: 0.5)."""

    steps: Positive = 10_000
    """Steps in a round."""

    epochs: Annotated[int, Field(ge=0)] | None = None
    """Passes over the samples in a round, instead of ``steps``; with 0, ``steps`` applies."""

    batch_size: Positive = 128
    """Samples in a batch."""

    optimizer: Optimizer = Optimizer(name="adam", lr=1e-3)
    """The student's optimiser."""

    backbone_rate: Annotated[float, Field(gt=0)] | None = None
    """Factor of the student's learning rate below the head; if not set, that of the clients (``local.backbone_rate``)."""

    schedule: Literal["cosine", "constant"] = "cosine"
    """The learning rate over the steps of a round; ``cosine`` falls to zero."""

    clip: Annotated[float, Field(ge=0)] | None = 5.0
    """Largest norm of the gradient (5 in FedDF's code); 0 disables clipping."""

    patience: Annotated[int, Field(ge=0)] | None = 1000
    """Stop after this many steps without a better validation accuracy and keep the best student, if there is validation data; 0
    takes all steps and keeps the last."""

    check_every: Positive = 100
    """Steps between measurements of the validation accuracy."""

    student_norm: Literal["train", "frozen", "recalibrate"] = "frozen"
    """BatchNorm while distilling. ``frozen``: keep the running statistics of the start. ``train``: normalise by batches, and let
    the running statistics follow. ``recalibrate``: as ``train``, and re-estimate them at the end."""

    keep_if_worse: Literal["student", "merged"] = "student"
    """The model to keep if distillation lowers the validation accuracy; ``merged`` is the one that the student started from."""

    fresh: bool = False
    """Ask the teachers about new inputs, augmented or generated, in every step, instead of once per round about a fixed set. This
    is exact, and slower the more teachers there are."""

    augment: Augment = Augment()
    """Augmentation of ``fresh`` inputs."""

    averaging: Averaging | Literal[False] | None = None
    """Stochastic weight averaging of the student; ``false`` switches off an algorithm's default."""

    proximal: Annotated[float, Field(ge=0)] = 0.0
    """Weight mu of a pull towards the student's start, ``mu/2 * ||w - w_start||^2``."""

    mixup: Annotated[float, Field(gt=0)] | None = None
    """Mix inputs and targets in pairs, in a proportion drawn from Beta(mixup, mixup) for each batch."""

    def under(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As for every table, but ``steps`` alone overrides a default in ``epochs``.

        >>> Distillation.model_validate(Distillation(epochs=20).under({"steps": 200})).epochs
        0
        """
        by_steps = "steps" in given and given.get("epochs") is None and self.epochs
        return super().under({**given, "epochs": 0} if by_steps else given)
