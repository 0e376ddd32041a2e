"""The effect of distillation in a system: the model delivered, the model carried on, and whether it was worse than the average.

If a judge compared points between the average and the student (``line`` in the history), the delivered model and the one that
the next round starts from may differ. Harm refers to the second, because that is what distillation does to the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedstill.report.numbers import LEVEL, count, half_interval, points
from fedstill.report.runs import Run
from fedstill.run.history import Line

__all__ = ["Distilled", "carried_gain", "delivered_gain", "distilled", "distils", "judges", "line_data", "score_at"]


def distils(run: Run) -> bool:
    """Whether the run distils: it has an ensemble or a judge, or it evaluated a model other than the average."""
    return any(
        bool(line.get("line"))
        or (
            line.get("merged_accuracy") is not None
            and (line.get("ensemble_accuracy") is not None or line["merged_accuracy"] != line.get("accuracy"))
        )
        for line in run.history
    )


def delivered_gain(line: Line) -> float | None:
    """How much more accurate the delivered model is than the average, on the test data."""
    accuracy, merged = line.get("accuracy"), line.get("merged_accuracy")
    return None if accuracy is None or merged is None else accuracy - merged


def carried_gain(line: Line) -> float | None:
    """How much better the model that is carried on is than the average, by the judge's scores, as the mean over prototypes.
    Without a judge the delivered model is carried on, and the test data decide. None for a round that could not be judged because
    clients trained on all of their samples.

    >>> judged = {"points": [0.0, 0.5, 1.0], "scores": {"mlp": [0.70, 0.72, 0.60]}, "carried": {"mlp": 0.75}}
    >>> round(carried_gain({"round": 1, "accuracy": 0.8, "merged_accuracy": 0.7, "line": judged}), 4)
    -0.04
    >>> round(carried_gain({"round": 1, "accuracy": 0.8, "merged_accuracy": 0.7}), 4)
    0.1
    """
    found = line.get("line") or {}
    if "judged_in" in found:
        return None
    scores, carried = found.get("scores") or {}, found.get("carried") or {}
    gains = [score_at(found["points"], scores[name], carried[name]) - scores[name][0] for name in scores if name in carried]
    return fmean(gains) if gains else delivered_gain(line)


def score_at(points: Sequence[float], scores: Sequence[float], t: float) -> float:
    """The judge's score at ``t``, interpolated linearly between the points that were compared.

    >>> score_at([0.0, 0.5, 1.0], [0.5, 0.7, 0.6], 0.25)
    0.6
    """
    for left in range(len(points) - 1):
        if t <= points[left + 1]:
            share = (t - points[left]) / (points[left + 1] - points[left])
            return scores[left] + max(share, 0.0) * (scores[left + 1] - scores[left])
    return scores[-1]


def judges(line: Line) -> bool:
    """Whether a judge scored the points of this round."""
    return bool((line.get("line") or {}).get("scores"))


@dataclass(frozen=True)
class Distilled:
    """Differences of accuracy from the average, as fractions: a value for each round of each seed that has one."""

    delivered: list[float]
    carried: list[float]
    ensemble: list[float]
    judge: str  # who scored the points; empty without a judge

    @property
    def harm(self) -> bool:
        """Whether the model carried on is worse than the average, by a hundredth of a point or more and by more than chance:
        the interval of the mean over the rounds is below zero, or nearly all rounds are worse. For a single round, the sign
        decides."""
        if not self.carried or not _worse(fmean(self.carried)):
            return False
        return fmean(self.carried) + (half_interval(self.carried) or 0.0) < 0 or _nearly_all_worse(self.carried)

    @property
    def text(self) -> str:
        """The result, in one or two sentences."""
        worse = f"in {sum(map(_worse, self.carried))} of {count(len(self.carried), 'round')}"
        if not self.carried:
            return ""
        if not self.judge:
            return f"{points(fmean(self.carried))} points per round on average{self._chance}; worse after distillation {worse}."
        said = f"Delivered: {points(fmean(self.delivered))} points per round against the average. " if self.delivered else ""
        carried = (
            f"Carried on, by {_whose(self.judge)}: {points(fmean(self.carried))} points per round{self._chance}; worse than the "
            f"average {worse}."
        )
        return said + carried

    @property
    def _chance(self) -> str:
        """A remark on a loss that may be chance."""
        mean = fmean(self.carried)
        if self.harm or not _worse(mean):
            return ""
        half = half_interval(self.carried) or 0.0
        level = f"{LEVEL:.0%}".replace("%", " %")
        return f", which may be chance ({level} interval {points(mean - half)} to {points(mean + half)})"


def _worse(gain: float) -> bool:
    """Whether a difference of accuracies is a loss, to a hundredth of a point."""
    return round(100 * gain, 2) < 0


def _nearly_all_worse(gains: Sequence[float]) -> bool:
    """The sign test: whether this many losses would be rare if losses and gains were equally likely.

    >>> _nearly_all_worse([-0.4, *[-0.01] * 5]), _nearly_all_worse([-0.4, *[-0.01] * 4, 0.01])
    (True, False)
    """
    losses = sum(map(_worse, gains))
    told = losses + sum(_worse(-gain) for gain in gains)
    return sum(math.comb(told, n) for n in range(losses, told + 1)) < (1 - LEVEL) / 2 * 2.0**told


def _whose(judge: str) -> str:
    return {"clients": "the clients' scores", "server": "the server's scores", "pool": "agreement with the ensemble"}.get(
        judge, f"the scores of '{judge}'"
    )


def distilled(runs: Sequence[Run]) -> Distilled | None:
    """The effect of distillation in the runs of one system; None if nothing was distilled."""
    lines = [line for run in runs if distils(run) for line in run.history]
    if not lines:
        return None
    delivered = [gain for line in lines if (gain := delivered_gain(line)) is not None]
    carried = [gain for line in lines if (gain := carried_gain(line)) is not None]
    ceilings = [(line.get("ensemble_accuracy"), line.get("merged_accuracy")) for line in lines]
    ensemble = [ceiling - merged for ceiling, merged in ceilings if ceiling is not None and merged is not None]
    judge = next((str(line["line"].get("judge", "")) for line in lines if judges(line)), "")
    return Distilled(delivered, carried, ensemble, judge) if delivered or carried else None


def line_data(lines: Sequence[Line]) -> dict[str, Any] | None:
    """The judge of a run, for the page: for each prototype the points, their scores in each round, and the points chosen."""
    having = [line for line in lines if line.get("line")]
    if not having:
        return None
    points = having[-1]["line"]["points"]
    prototypes = dict.fromkeys(name for line in having for name in line["line"]["delivered"])
    return {
        "judge": next((str(line["line"]["judge"]) for line in having if judges(line)), str(having[-1]["line"]["judge"])),
        "points": points,
        "round": [line["round"] for line in having],
        "prototypes": {
            name: {
                "scores": [_scores(line, name, points) for line in having],
                "delivered": [None if _elsewhere(line, name) else line["line"]["delivered"].get(name) for line in having],
                "averaged": [_averaged(line, name) for line in having],
                "carried": [line["line"]["carried"].get(name) for line in having],
            }
            for name in prototypes
        },
        "scored": any(judges(line) for line in having),
        "early": sum(_early(line, name) for line in having for name in prototypes),
        "averaged": sum(_averaged(line, name) is not None for line in having for name in prototypes),
        "faults": sum(len(line["line"].get("faults", {})) for line in having),
        "unjudged": _unjudged(having),
    }


def _unjudged(lines: Sequence[Line]) -> str:
    """A sentence on the rounds in which clients trained on all of their samples, and on who chose the point; empty without any.

    >>> _unjudged([{"round": 5, "line": {}}, {"round": 6, "line": {"judged_in": {"mlp": [3, 4, 5]}}}])
    'In round 6 clients trained on all of their data, so nobody could judge: the scores of rounds 3 to 5 chose the point.'
    """
    full = [line for line in lines if "judged_in" in line["line"]]
    if not full:
        return ""
    earlier = sorted({number for line in full for found in line["line"]["judged_in"].values() for number in found})
    who = f"the scores of {_rounds(earlier)} chose the point" if earlier else "the average was delivered"
    return f"In {_rounds([line['round'] for line in full])} clients trained on all of their data, so nobody could judge: {who}."


def _rounds(numbers: Sequence[int]) -> str:
    return f"round {numbers[0]}" if len(numbers) == 1 else f"rounds {numbers[0]} to {numbers[-1]}"


def _early(line: Line, name: str) -> bool:
    """Whether an early snapshot of the prototype's student was delivered, which is not a point of the line."""
    found = line["line"].get("snapshots", {}).get(name, {})
    return found.get("delivered") is not None


def _averaged(line: Line, name: str) -> float | None:
    """The point that was delivered averaged with the rounds before, if one was."""
    found: float | None = line["line"].get("past", {}).get(name, {}).get("delivered")
    return None if _early(line, name) else found


def _elsewhere(line: Line, name: str) -> bool:
    return _early(line, name) or _averaged(line, name) is not None


def _scores(line: Line, name: str, points: Sequence[float]) -> list[float] | None:
    """The scores of a round; None if its points differ from those of the last round, which a resumed run may have changed."""
    found: list[float] | None = line["line"]["scores"].get(name)
    return found if line["line"]["points"] == points else None
