"""The options of sample-level differential privacy, ``[privacy.sample]``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fedstill.core.options import Part

__all__ = ["Sample"]


class Sample(Part):
    """Clients train by DP-SGD (Abadi et al., CCS 2016). Needs the extra ``privacy``."""

    epsilon: Annotated[float, Field(gt=0)] | None = None
    """What each client may spend on its samples over all rounds. The noise is chosen for a client that takes part in every round,
    unless ``noise`` is set; a client that would exceed it stops."""

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The probability with which epsilon may not hold; well below one over a client's number of samples."""

    noise: Annotated[float, Field(ge=1e-3)] | None = None
    """Standard deviation of the noise on a sum of clipped gradients, divided by ``max_grad_norm``. Set this, or ``epsilon``, or
    both: then clients stop when ``epsilon`` is spent."""

    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """The gradient of every sample is scaled down to this norm if it is longer."""

    secret: bool = False
    """Draw batches and noise from the operating system instead of from ``seed``. Whoever knows the seed can subtract the noise,
    so that epsilon holds only against those who do not; with this, a run cannot be repeated."""

    @model_validator(mode="after")
    def _bounded(self) -> Sample:
        if self.epsilon is None and self.noise is None:
            raise ValueError("set epsilon, or noise")
        return self
