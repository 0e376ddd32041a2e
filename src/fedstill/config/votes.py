"""The options of private votes, ``[privacy.votes]``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedstill.core.options import Part

__all__ = ["Votes"]


class Votes(Part):
    """Teachers' votes about the pool, noised before a student learns from them: confident-GNMax (Papernot et al., ICLR 2018)."""

    sigma: Annotated[float, Field(gt=0)]
    """Standard deviation of the noise on every class's votes, whose largest is the answer (sigma_2)."""

    sigma_threshold: Annotated[float, Field(gt=0)]
    """Standard deviation of the noise on the number of votes for the leading class, which decides whether to answer (sigma_1).
    Not used with ``privacy.secure``, where one noised histogram serves both."""

    threshold: Annotated[float, Field(ge=0)]
    """The noised number of votes T that the leading class needs for an answer."""

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The probability with which epsilon may not hold; well below one over the number of teachers."""

    epsilon: Annotated[float, Field(gt=0)] | None = None
    """What all answers of a run may spend; samples after it is spent are not asked about. If not set, every sample is asked."""

    secret: bool = False
    """Draw the noise from the operating system instead of from ``seed``. Whoever knows the seed can subtract the noise, so that
    epsilon holds only against those who do not; with this, a run cannot be repeated."""

    @property
    def limits(self) -> str:
        """What to add to what epsilon covers.

        >>> Votes(sigma=1, sigma_threshold=1, threshold=1).limits
        '; those who know the seed can subtract the noise'
        """
        return "" if self.secret else "; those who know the seed can subtract the noise"
