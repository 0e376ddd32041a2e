"""The options of noised reports, ``[privacy.reports]``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fedstill.core.options import Part

__all__ = ["Reports"]

Above = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Reports(Part):
    """What clients send besides weights, noised before it leaves: projections, label counts, feature statistics, predictions."""

    clip: Above = 1.0
    """The largest norm of a feature, or of a row of predictions: longer ones are scaled down to it. Choose it without looking at
    the clients' data."""

    noise: Above | None = None
    """Standard deviation of the noise on a report, divided by what one sample can change (docs/privacy.md)."""

    epsilon: Above | None = None
    """What each client may spend on its samples over all rounds. The noise is chosen for a report in every round, unless
    ``noise`` is set; a client that would exceed it stops. Set this, ``noise``, or both."""

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The probability with which epsilon may not hold; well below one over a client's number of samples."""

    secret: bool = False
    """Draw the noise from the operating system instead of from ``seed``. Whoever knows the seed can subtract the noise, so that
    epsilon holds only against those who do not; with this, a run cannot be repeated."""

    @model_validator(mode="after")
    def _bounded(self) -> Reports:
        if self.epsilon is None and self.noise is None:
            raise ValueError("set epsilon, or noise")
        return self
