"""How a client trains: the options of the local loop."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedstill.core.options import Part, Positive

__all__ = ["Augment", "Local", "Optimizer", "Schedule"]


class Optimizer(Part):
    """A torch optimiser."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    """Name of the optimiser."""

    lr: Annotated[float, Field(gt=0)] = 0.05
    """Learning rate."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum (sgd)."""

    nesterov: bool = False
    """Whether momentum is Nesterov's (sgd)."""

    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay, added to the gradient (sgd, adam) or decoupled from it (adamw)."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the two moments (adam, adamw)."""


class Schedule(Part):
    """The learning rate over the rounds."""

    kind: Literal["constant", "cosine", "exponential"] = "constant"
    """How the learning rate changes from round to round."""

    final: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate in the last round (cosine)."""

    factor: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor of the learning rate from one round to the next (exponential)."""


class Augment(Part):
    """Batched augmentation of training images."""

    flip: bool = False
    """Mirror each image with probability one half."""

    crop: Annotated[int, Field(ge=0)] = 0
    """Pad each image by this many pixels and crop it at random to its size; 0 does not crop."""


class Local(Part):
    """How a client trains."""

    epochs: Positive = 1
    """Passes over the client's data in a round."""

    steps: Positive | None = None
    """Steps in a round, instead of ``epochs``."""

    batch_size: Positive = 64
    """Samples in a batch."""

    optimizer: Optimizer = Optimizer()
    """The optimiser."""

    schedule: Schedule = Schedule()
    """The learning rate over the rounds."""

    backbone_rate: Annotated[float, Field(gt=0)] = 1.0
    """Factor of the learning rate below the head. A bottleneck or projection, which is new like the head, has the full rate."""

    clip: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of the gradient; not clipped if not set."""

    augment: Augment = Augment()
    """Augmentation of the client's images."""

    drop_last: bool = False
    """Leave out a last batch that is not full. A last batch of one is always left out if the network has BatchNorm."""
