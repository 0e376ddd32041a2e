"""The line between the average and the student: which point of it is delivered, and which is carried on.

Distillation may cost accuracy where the pool is unlike the clients' data. So a judge compares a few points between the two. The
best of them is *delivered*: evaluated, and saved at the end. What the next round starts from is *carried*, and need not be the
same: a student that costs a point now is often worth several rounds later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedstill.algorithm import Algorithm
from fedstill.config.tables import Config
from fedstill.core.message import State
from fedstill.core.options import Part
from fedstill.fusion.merges import weighted_sum

__all__ = [
    "Judge",
    "Line",
    "candidates",
    "carried_point",
    "delivered_point",
    "held_share",
    "judge_of",
    "line_of",
    "point",
    "pool_share",
]

Judge = Literal["auto", "server", "clients", "pool", "none"]


class Line(Part):
    """How far a round goes from the average to the distilled student."""

    judge: Judge = "auto"
    """Who compares the points: ``server`` on its labelled data (``data.validation``), ``clients`` on data that each holds out
    (``clients.validation``), ``pool`` by agreement with the ensemble on samples held out of the pool, ``none`` for nobody.
    ``auto`` asks the server where it has labelled data, and the clients otherwise. Test data never judges."""
    points: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2)] = [0.0, 0.25, 0.5, 0.75, 1.0]
    """The points that are compared: 0 is the average, 1 the student. Clients are sent the two ends and make the others."""
    snapshots: Annotated[int, Field(ge=0)] = 0
    """So many early states of the student are judged too, evenly spread over its steps, and may be delivered. Each is one more
    model that a judging client is sent."""
    carry: Annotated[float, Field(ge=0, le=1)] | Literal["tolerant", "delivered"] = "tolerant"
    """What the next round starts from: the farthest point within ``reach`` that costs at most ``tolerance`` (``tolerant``), the
    delivered one, or always the same share of the way to the student."""
    reach: Annotated[float, Field(ge=0, le=1)] = 0.5
    """How far towards the student the next round starts at most, where ``carry`` is ``tolerant``."""
    tolerance: Annotated[float, Field(ge=0)] = 0.05
    """The accuracy that the carried point may cost against the average, as the judge measures it. The default is about twice the
    standard error of a verdict on three hundred samples: less would stop students by chance."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """The share of the clients' verdicts that is cut at either end, so that false ones cannot decide."""

    @field_validator("points")
    @classmethod
    def _ends(cls, points: list[float]) -> list[float]:
        if sorted(set(points)) != points or points[0] != 0 or points[-1] != 1:
            raise ValueError("points grow from 0, the average, to 1, the student")
        return points


def line_of(algorithm: Algorithm[Any]) -> Line | None:
    """The line of a system that distils; None for one that does not, and where ``line = false``."""
    return getattr(algorithm.options, "line", None) or None


def judge_of(line: Line, config: Config) -> Judge:
    """Who judges: as asked, or the best that the task offers."""
    if line.judge != "auto":
        return line.judge
    return "server" if config.data.validation else "clients" if config.clients.validation else "none"


def held_share(algorithm: Algorithm[Any]) -> float:
    """The share of its samples that each client holds out for its verdicts."""
    line, config = line_of(algorithm), algorithm.task.config
    return config.clients.validation if line is not None and judge_of(line, config) == "clients" else 0.0


def pool_share(algorithm: Algorithm[Any]) -> float:
    """The share of the pool that students do not learn from, because agreement with the ensemble on it judges them."""
    line = line_of(algorithm)
    return 0.1 if line is not None and judge_of(line, algorithm.task.config) == "pool" else 0.0


def point(average: State, student: State, t: float) -> State:
    """``(1 - t) average + t student``; the ends are what they are, to the last bit.

    >>> import torch
    >>> point({"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}, 0.25)["w"].item()
    1.0
    """
    if t in (0.0, 1.0):
        return student if t else average
    return weighted_sum([average, student], [1 - t, t])


def candidates(average: State, student: State, points: Sequence[float], others: Sequence[State] = ()) -> Iterator[State]:
    """What is judged, one after another: the points of the line, then models that are not on it."""
    yield from (point(average, student, t) for t in points)
    yield from others


def delivered_point(points: Sequence[float], scores: Sequence[float]) -> float:
    """The best point; of equals the one nearest the average.

    >>> delivered_point([0.0, 0.5, 1.0], [0.7, 0.8, 0.8])
    0.5
    """
    return points[max(range(len(points)), key=lambda i: (scores[i], -points[i]))]


def carried_point(points: Sequence[float], scores: Sequence[float] | None, options: Line) -> float:
    """What the next round starts from; as far as it may go where nobody judged.

    >>> carried_point([0.0, 0.5, 1.0], [0.70, 0.69, 0.60], Line()), carried_point([0.0, 0.5, 1.0], [0.70, 0.71, 0.72], Line())
    (0.5, 0.5)
    >>> carried_point([0.0, 0.5, 1.0], [0.70, 0.69, 0.60], Line(carry="delivered"))
    0.0
    """
    if isinstance(options.carry, float):
        return options.carry
    if scores is None:
        return options.reach
    if options.carry == "delivered":
        return delivered_point(points, scores)
    near = [(t, score) for t, score in zip(points, scores, strict=True) if t <= options.reach]
    return max(t for t, score in near if score >= scores[0] - options.tolerance)
