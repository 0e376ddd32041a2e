"""Drop-worst: leave out teachers that predict no better than chance (FedDF, section 4.2).

A model whose accuracy on the server's labelled validation data is under ``factor`` times chance is dropped, from the average and
as a teacher. If none is that bad, models more than ``deviations`` standard deviations below the mean of all but the best do not
teach; as in the authors' code, they stay in the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithm import Reply, Round
from fedstill.core.errors import FedstillError
from fedstill.core.options import Part
from fedstill.fusion.teacher import network_of
from fedstill.models.predict import accuracy
from fedstill.task import Task

__all__ = ["DropWorst", "check_worst", "drop_teachers", "drop_worst", "kept"]


class DropWorst(Part):
    """The two rules by which models are dropped, given their validation accuracies."""

    factor: Annotated[float, Field(ge=1)] = 1.2
    """Drop models whose accuracy is below this many times chance, from the average and as teachers."""

    deviations: Annotated[float, Field(ge=0)] = 1.5
    """If there are none, models more than this many standard deviations below the mean of all but the best do not teach; 0 drops
    none. They stay in the average, as in the authors' code."""


def kept(scores: Tensor, classes: int, rule: DropWorst, teachers: bool = True) -> Tensor:
    """Which of the models with these validation accuracies stay, as teachers or in the average.

    >>> kept(torch.tensor([0.6, 0.1, 0.5]), 10, DropWorst()).tolist()
    [True, False, True]
    >>> scores = torch.tensor([0.61, 0.6, 0.59, 0.6, 0.3])  # none near chance, one far behind the others
    >>> kept(scores, 10, DropWorst())[-1].item(), kept(scores, 10, DropWorst(), teachers=False)[-1].item()
    (False, True)
    """
    stay = scores >= rule.factor / classes
    if teachers and bool(stay.all()) and rule.deviations and len(scores) > 2:
        others = scores[torch.arange(len(scores)) != int(scores.argmax())]
        stay = scores >= others.mean() - rule.deviations * others.std(unbiased=False)
    return stay


def check_worst(task: Task, rule: DropWorst | None) -> None:
    """Refuse a rule without validation data to measure accuracies on, before any client trains."""
    if rule is not None and not task.config.data.validation:
        raise FedstillError("drop_worst needs labelled data on the server: set data.validation, e.g. 0.1")


def drop_worst(task: Task, replies: Sequence[Reply], rule: DropWorst | None, round: Round) -> Sequence[Reply]:
    """The replies that may enter the average: those better than chance, or all of them without a ``rule``. The history notes
    which were left out. If all would be dropped, all stay."""
    return _dropped(task, replies, rule, round, teachers=False)


def drop_teachers(task: Task, replies: Sequence[Reply], rule: DropWorst | None, round: Round) -> Sequence[Reply]:
    """Of the replies that entered the average, those that teach: if none was dropped as near chance, all but those far below."""
    return replies if "worst" in round.notes else _dropped(task, replies, rule, round, teachers=True)


def _dropped(task: Task, replies: Sequence[Reply], rule: DropWorst | None, round: Round, teachers: bool) -> Sequence[Reply]:
    if rule is None:
        return replies
    validation = task.validation
    assert validation is not None, "check_worst has checked this"
    for r in replies:
        if r.client not in round.validated:
            round.validated[r.client] = accuracy(network_of(task, r), validation)
    scores = torch.tensor([round.validated[r.client] for r in replies])
    stay = kept(scores, len(task.classes), rule, teachers)
    if not bool(stay.any()):
        return list(replies)
    left = {r.client: round_to(s) for r, s, ok in zip(replies, scores.tolist(), stay.tolist(), strict=True) if not ok}
    if left:
        round.note(**{"worst_teachers" if teachers else "worst": left})
    return [r for r, ok in zip(replies, stay.tolist(), strict=True) if ok]


def round_to(value: float) -> float:
    """Round to four decimals, enough for a note."""
    return float(f"{value:.4f}")
