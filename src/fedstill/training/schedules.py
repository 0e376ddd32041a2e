"""The learning rate over the rounds."""

from __future__ import annotations

import math

from fedstill.training.options import Schedule

__all__ = ["learning_rate"]


def learning_rate(base: float, schedule: Schedule, round: int, rounds: int) -> float:
    """The rate in ``round`` (from 1) of ``rounds``.

    >>> learning_rate(0.01, Schedule(kind="cosine", final=0.0001), 1, 30)
    0.01
    >>> round(learning_rate(0.01, Schedule(kind="cosine", final=0.0001), 30, 30), 6)
    0.0001
    """
    done = (round - 1) / max(1, rounds - 1)
    if schedule.kind == "cosine":
        return schedule.final + (base - schedule.final) * (1 + math.cos(math.pi * min(1.0, done))) / 2
    if schedule.kind == "exponential":
        return base * schedule.factor ** (round - 1)
    return base
