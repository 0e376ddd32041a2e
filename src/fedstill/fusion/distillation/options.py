"""How the student learns: the options of distillation. Defaults are FedDF's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from fedstill.core.options import Part, Positive
from fedstill.training.options import Augment, Optimizer

__all__ = ["Averaging", "Distillation"]


class Averaging(Part):
    """Stochastic weight averaging of the student: the mean of its weights every ``every`` steps, or after every epoch of the
    samples, from step ``start`` on, at the latest after a third of the steps (FedBE's 500 are so many of 1,580)."""

    start: Annotated[int, Field(ge=0)] = 0
    every: Positive | Literal["epoch"] = 25


class Distillation(Part):
    """How the student learns from the teachers' table."""

    start: Literal["average", "previous", "scratch"] = "average"  # FedDF Table 5
    direction: Literal["forward", "reverse"] = "forward"  # KL(teacher || student), or KL(student || teacher)
    temperature: Annotated[float, Field(gt=0)] = 1.0
    square: bool = False  # multiply the loss by the temperature's square
    reduction: Literal["batchmean", "mean"] = "batchmean"  # "mean" divides by the number of classes as well
    sharpen: Annotated[float, Field(gt=0)] | None = None  # targets to the power 1/sharpen, renormalised (FedBE: 0.5)
    steps: Positive = 10_000
    epochs: Annotated[int, Field(ge=0)] | None = None  # instead of steps; 0 where steps are to count after all
    batch_size: Positive = 128
    optimizer: Optimizer = Optimizer(name="adam", lr=1e-3)
    schedule: Literal["cosine", "constant"] = "cosine"  # over the steps, to zero
    clip: Annotated[float, Field(ge=0)] | None = 5.0  # the gradient's norm, as in FedDF's code; 0 does not clip
    # steps without a better validation accuracy, where there is validation data; 0 takes all steps and keeps the last
    patience: Annotated[int, Field(ge=0)] | None = 1000
    check_every: Positive = 100
    student_norm: Literal["train", "frozen", "recalibrate"] = "frozen"  # BatchNorm statistics while distilling
    keep_if_worse: Literal["student", "merged"] = "student"  # which model stays where validation says distilling hurt
    fresh: bool = False  # new inputs each step, teachers evaluated on them: exact, and as many times slower as there are teachers
    augment: Augment = Augment()  # of fresh inputs
    averaging: Averaging | Literal[False] | None = None  # false switches off what a system has
    mixup: Annotated[float, Field(gt=0)] | None = None  # inputs and targets mixed in pairs, a share ~ Beta(mixup, mixup) a batch

    def under(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As for every table; who gives steps alone means steps, also where the default is in epochs.

        >>> Distillation.model_validate(Distillation(epochs=20).under({"steps": 200})).epochs
        0
        """
        by_steps = "steps" in given and given.get("epochs") is None and self.epochs
        return super().under({**given, "epochs": 0} if by_steps else given)
