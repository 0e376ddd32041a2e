"""How a client trains: the options of the local loop."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedstill.core.options import Part, Positive

__all__ = ["Augment", "Local", "Optimizer", "Schedule"]


class Optimizer(Part):
    """A torch optimiser."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Field(gt=0)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: tuple[float, float] = (0.9, 0.999)


class Schedule(Part):
    """The learning rate over the rounds."""

    kind: Literal["constant", "cosine", "exponential"] = "constant"
    final: Annotated[float, Field(ge=0)] = 0.0  # the rate in the last round (cosine)
    factor: Annotated[float, Field(gt=0, le=1)] = 1.0  # a round (exponential)


class Augment(Part):
    """Batched augmentation of training images."""

    flip: bool = False
    crop: Annotated[int, Field(ge=0)] = 0  # padding of the random crop


class Local(Part):
    """How a client trains."""

    epochs: Positive = 1
    steps: Positive | None = None  # instead of epochs
    batch_size: Positive = 64
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    clip: Annotated[float, Field(gt=0)] | None = None
    augment: Augment = Augment()
    drop_last: bool = False  # batches of one are always skipped where BatchNorm could not take them
