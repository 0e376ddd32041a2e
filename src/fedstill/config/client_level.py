"""The options of client-level differential privacy, ``[privacy.client]``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fedstill.core.options import Part

__all__ = ["Adaptive", "ClientLevel"]

Above = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Adaptive(Part):
    """Clipping to a norm that follows a quantile of the updates' norms (Andrew et al., NeurIPS 2021)."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The part of the updates that is to stay unclipped (gamma)."""

    rate: Above = 0.2
    """How fast the norm follows: it is multiplied by exp(-rate (part of the updates below it - quantile)) in every round
    (eta_C)."""

    count_noise: Above | None = None
    """Standard deviation of the noise on the number of updates below the norm (sigma_b). It must be more than half of ``noise``.
    If not set, a twentieth of the expected number of clients as in the paper, and at least ``noise``."""


class ClientLevel(Part):
    """Clipped updates, summed and noised by the server (FedAvg, FedProx, FedAvgM, MOON): McMahan et al., ICLR 2018."""

    clip: Above
    """The largest norm of a client's update, over all of its tensors: longer ones are scaled down to it. Where clipping is
    adaptive, the norm of the first round."""

    noise: Above | None = None
    """Standard deviation of the noise on the sum of the updates, in multiples of ``clip`` (z). Either this or ``epsilon``."""

    epsilon: Above | None = None
    """What all rounds may spend: the least noise that keeps within it is used. Either this or ``noise``."""

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The probability with which epsilon may not hold; well below one over the number of clients."""

    adaptive: Adaptive | None = None
    """Clip to a quantile of the updates' norms instead of a fixed norm; ``{}`` takes its defaults."""

    secret: bool = False
    """Draw the noise and each round's clients from the operating system instead of from ``seed``. Whoever knows the seed can
    subtract the noise, so that epsilon holds only against those who do not; with this, a run cannot be repeated."""

    @model_validator(mode="after")
    def _either(self) -> ClientLevel:
        if (self.noise is None) == (self.epsilon is None):
            raise ValueError("set either noise or epsilon")
        return self
