"""The line between the average and the student: which point on it is delivered, and which is carried over.

Distillation may cost accuracy if the pool is unlike the clients' data. So a judge compares a few points between the two. The best
of them is *delivered*: evaluated, and saved at the end. The next round starts from the *carried* point, which may be another one:
a student that loses a percentage point now often gains several in later rounds.

A model that moves a long way in every round is often worse than the mean of its last states. So the judge also compares points
averaged with the models that the rounds before carried on; such a mean may be delivered, and is never carried on.

Samples that clients hold out for their verdicts are lost to training. So in the last round clients train on all of their samples,
nobody judges, and the point is one that every one of the last judged rounds found better than the average, if there is any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
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
    "Past",
    "averaged",
    "candidates",
    "carried_point",
    "cautious_scores",
    "delivered_point",
    "held_share",
    "is_full",
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
    (``clients.validation``), ``pool`` by agreement with the ensemble on samples held out of the pool, or ``none``. ``auto`` asks
    the server if it has labelled data, and the clients otherwise, unless they hold nothing out; with ``privacy.sample`` it asks
    the pool instead of the clients. Test data never judge."""
    points: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2)] = [0.0, 0.5, 1.0]
    """The points to compare: 0 is the average, 1 the student. Clients receive the two ends and compute the others."""
    past: Annotated[int, Field(ge=0)] = 1
    """The number of rounds before this one whose carried models are averaged with every point up to ``reach``; these means are
    judged too, and the best may be delivered. Their mean is one more model to send to every judging client. 0 compares the points
    of this round alone."""
    snapshots: Annotated[int, Field(ge=0)] = 0
    """Number of early states of the student to judge as well, evenly spread over its steps; the best may be delivered. Each is
    one more model to send to every judging client."""
    carry: Annotated[float, Field(ge=0, le=1)] | Literal["tolerant", "delivered"] = "tolerant"
    """The point that the next round starts from: the farthest one within ``reach`` that costs at most ``tolerance``
    (``tolerant``), the delivered one (``delivered``), or a fixed share of the way to the student."""
    reach: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The farthest point towards the student from which the next round may start, if ``carry`` is ``tolerant``."""
    tolerance: Annotated[float, Field(ge=0)] = 0.05
    """The accuracy that the carried point may lose against the average, as measured by the judge. The default is about twice the
    standard error of a verdict on three hundred samples: less would stop students by chance."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """The share of the clients' verdicts to cut at either end, so that false ones cannot decide."""
    full_rounds: Annotated[int, Field(ge=0)] = 0
    """Number of rounds at the end in which clients train on all of their samples, those that they held out before included.
    Nothing unseen is left to judge by then, so earlier verdicts choose the points (``window``). The first round is always judged.
    Only if the judge is ``clients``. The default judges to the end: a verdict of the same round is worth more than the samples
    (docs/results/never-hurts.md), and a run that is continued with more rounds stays the same."""
    window: Annotated[int, Field(ge=1)] = 3
    """Number of last judged rounds that choose the points of the rounds that are not judged. The point with the largest of its
    smallest gains in these rounds is delivered, so one that was worse than the average in any of them is not."""

    @field_validator("points")
    @classmethod
    def _ends(cls, points: list[float]) -> list[float]:
        if sorted(set(points)) != points or points[0] != 0 or points[-1] != 1:
            raise ValueError("points must increase from 0 (the average) to 1 (the student)")
        return points


def line_of(algorithm: Algorithm[Any]) -> Line | None:
    """The line of a system that distils; None if it does not, or if ``line = false``."""
    return getattr(algorithm.options, "line", None) or None


def judge_of(line: Line, config: Config) -> Judge:
    """The judge: as configured, or the best that the task offers."""
    if line.judge != "auto":
        return line.judge
    if config.privacy.sample is not None:  # it covers what clients train, not verdicts on samples that they hold out
        return "server" if config.data.validation else "pool"
    return "server" if config.data.validation else "clients" if config.clients.validation else "none"


def is_full(line: Line, config: Config, round: int) -> bool:
    """Whether clients who are the judge train on all of their samples in this round, so that it cannot be judged."""
    return judge_of(line, config) == "clients" and round > max(1, config.rounds - line.full_rounds)


def held_share(algorithm: Algorithm[Any], round: int) -> float:
    """The share of its samples that each client holds out of this round's training for its verdict."""
    line, config = line_of(algorithm), algorithm.task.config
    if line is None or judge_of(line, config) != "clients" or is_full(line, config, round):
        return 0.0
    return config.clients.validation


def pool_share(algorithm: Algorithm[Any]) -> float:
    """The share of the pool held out of the students' training, to judge them by agreement with the ensemble."""
    line = line_of(algorithm)
    return 0.1 if line is not None and judge_of(line, algorithm.task.config) == "pool" else 0.0


def point(average: State, student: State, t: float) -> State:
    """``(1 - t) average + t student``; the ends are returned unchanged, bit for bit.

    >>> import torch
    >>> point({"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}, 0.25)["w"].item()
    1.0
    """
    if t in (0.0, 1.0):
        return student if t else average
    return weighted_sum([average, student], [1 - t, t])


@dataclass(frozen=True)
class Past:
    """The mean of the models that the last rounds carried on, the number of these rounds, and the points to average with it."""

    mean: State
    rounds: int
    points: Sequence[float]


def averaged(model: State, past: Past) -> State:
    """The mean of this round's model and of those that the rounds before carried on, each counting the same.

    >>> import torch
    >>> averaged({"w": torch.tensor([6.0])}, Past({"w": torch.tensor([3.0])}, rounds=2, points=[0.0]))["w"].item()
    4.0
    """
    share = 1 / (past.rounds + 1)
    return weighted_sum([model, past.mean], [share, 1 - share])


def candidates(
    average: State, student: State, points: Sequence[float], past: Past | None = None, others: Sequence[State] = ()
) -> Iterator[State]:
    """The models to judge, in order: the points of the line, points averaged with the rounds before, then others."""
    yield from (point(average, student, t) for t in points)
    if past is not None:
        yield from (averaged(point(average, student, t), past) for t in past.points)
    yield from others


def delivered_point(points: Sequence[float], scores: Sequence[float]) -> float:
    """The best point; on a tie, the one nearest the average.

    >>> delivered_point([0.0, 0.5, 1.0], [0.7, 0.8, 0.8])
    0.5
    """
    return points[max(range(len(points)), key=lambda i: (scores[i], -points[i]))]


def cautious_scores(judged: Sequence[Sequence[float]], safe: int = 0) -> list[float]:
    """Scores for a round that nobody judges, from those of several rounds before: the mean score of the safe candidate, which is
    the plain average, and for every other one that plus its *smallest* gain over it. So a candidate that was once worse is not
    preferred. The best of one round, or of the mean, is often best by chance and not better in the next round.

    >>> [round(score, 3) for score in cautious_scores([[0.70, 0.72, 0.60], [0.74, 0.75, 0.78]])]
    [0.72, 0.73, 0.62]
    """
    average = fmean(scores[safe] for scores in judged)
    return [average + min(scores[i] - scores[safe] for scores in judged) for i in range(len(judged[0]))]


def carried_point(points: Sequence[float], scores: Sequence[float] | None, options: Line) -> float:
    """The point that the next round starts from; without scores, ``reach`` itself unless ``carry`` is a number.

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
