"""Confident-GNMax: its mechanism, its accounting, and its use in fuse and in rounds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fedstill
from fedstill.config.votes import Votes
from fedstill.core.accounting import gaussian_cost
from fedstill.core.errors import FedstillError
from fedstill.core.streams import stream
from fedstill.fusion.weightings import WeightingContext
from fedstill.fusion.weightings.private_votes import (
    HISTOGRAM_SENSITIVITY,
    THRESHOLD_SENSITIVITY,
    PrivateVotes,
    Spent,
    budget_cost,
    spent_epsilon,
)
from fedstill.models import build

LOUD: dict[str, Any] = {"sigma": 3.0, "sigma_threshold": 5.0, "threshold": 6.0}
QUIET: dict[str, Any] = {"sigma": 1e-6, "sigma_threshold": 1e-6, "threshold": 2.5}


def voters(options: dict[str, Any], seed: int = 0) -> PrivateVotes:
    return PrivateVotes(WeightingContext([], stream(seed, "votes"), options=options))


def ballots(counts: list[list[int]]) -> Tensor:
    """Logits (teachers, samples, classes) with these votes."""
    rows = [[label for label, count in enumerate(row) for _ in range(count)] for row in counts]
    return F.one_hot(torch.tensor(rows).T, len(counts[0])).float()


def gaussian_divergence(order: float, distance: float, sigma: float) -> float:
    """The Renyi divergence of N(distance, sigma^2) from N(0, sigma^2), by numerical integration."""
    x = torch.linspace(-60, 60, 400_001, dtype=torch.float64) * sigma
    p, q = (torch.distributions.Normal(torch.tensor(m, dtype=torch.float64), sigma).log_prob(x) for m in (distance, 0.0))
    return float((torch.exp(order * p + (1 - order) * q).sum() * (x[1] - x[0])).log() / (order - 1))


@pytest.mark.parametrize("sigma", [1.5, 4.0])
@pytest.mark.parametrize("order", [1.5, 3.0, 8.0])
def test_a_question_and_an_answer_cost_the_divergence_of_neighbouring_votes(sigma: float, order: float) -> None:
    """Neighbours: one of nine teachers votes for another class."""
    one, two = torch.tensor([5.0, 3.0, 1.0]), torch.tensor([4.0, 4.0, 1.0])
    largest, histogram = float((one.max() - two.max()).abs()), float((one - two).norm())
    assert (largest, histogram) == (THRESHOLD_SENSITIVITY, pytest.approx(HISTOGRAM_SENSITIVITY))
    votes = Votes(sigma=sigma, sigma_threshold=sigma, threshold=0)
    # the divergence of products of normal distributions depends on the Euclidean distance alone
    assert order * Spent(1, 0).cost(votes) == pytest.approx(gaussian_divergence(order, largest, sigma), rel=1e-6)
    assert order * Spent(0, 1).cost(votes) == pytest.approx(gaussian_divergence(order, histogram, sigma), rel=1e-6)


def test_epsilon_is_the_best_conversion_over_all_orders() -> None:
    votes = Votes(sigma=40.0, sigma_threshold=100.0, threshold=0, delta=1e-6)
    spent = Spent(asked=900, answered=400)
    cost = 900 / (2 * 100.0**2) + 400 * 2 / (2 * 40.0**2)  # composition adds the costs of all questions and all answers
    orders = torch.linspace(1.001, 400, 400_000, dtype=torch.float64)
    found = (orders * cost + math.log(1e6) / (orders - 1)).min()
    assert spent.cost(votes) == pytest.approx(cost)
    assert spent.epsilon(votes) == pytest.approx(float(found), rel=1e-5)
    assert spent.epsilon(votes) <= float(found) + 1e-9
    assert budget_cost(spent.epsilon(votes), 1e-6) == pytest.approx(cost)


def test_without_noise_the_confident_majority_answers_and_others_are_silent() -> None:
    weighting = voters(QUIET)
    ballot = weighting.vote(ballots([[4, 1, 0], [2, 2, 1], [0, 2, 3]]))
    assert ballot.sample_weight is not None
    assert ballot.sample_weight.tolist() == [1.0, 0.0, 1.0]
    assert ballot.targets[[0, 2]].tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert ballot.targets[1].tolist() == pytest.approx([1 / 3] * 3)  # nothing of its votes
    assert weighting.spent == Spent(3, 2)
    assert weighting.left_out == 1


def test_the_noise_has_the_stated_deviations() -> None:
    """Ten teachers agree on class 0 of two: P(answered) = P(10 + s1 N >= T), P(answer is 1) = P(s2 sqrt(2) N > 10)."""
    n = 20_000
    weighting = voters({"sigma": 8.0, "sigma_threshold": 4.0, "threshold": 12.0})
    ballot = weighting.vote(ballots([[10, 0]] * n))
    normal = torch.distributions.Normal(0.0, 1.0)
    heard = 1 - float(normal.cdf(torch.tensor((12 - 10) / 4.0)))
    wrong = 1 - float(normal.cdf(torch.tensor(10 / (8.0 * math.sqrt(2)))))
    assert weighting.spent.answered / n == pytest.approx(heard, abs=0.012)
    assert ballot.sample_weight is not None
    answers = ballot.targets[ballot.sample_weight > 0].argmax(1)
    assert float(answers.double().mean()) == pytest.approx(wrong, abs=0.02)
    again = voters({"sigma": 8.0, "sigma_threshold": 4.0, "threshold": 12.0}).vote(ballots([[10, 0]] * n))
    assert again.targets.equal(ballot.targets)  # the noise is that of the named stream


def test_a_budget_stops_the_questions_before_it_is_exceeded() -> None:
    options = {**LOUD, "threshold": 0.0, "epsilon": 8.0}
    weighting, votes = voters(options), Votes(**options)
    for _ in range(3):  # batch after batch
        weighting.vote(ballots([[10, 0]] * 40))
    assert 0 < weighting.spent.asked < 120
    assert weighting.spent.epsilon(votes) <= 8.0
    one_more = Spent(weighting.spent.asked + 1, weighting.spent.answered + 1)
    assert one_more.epsilon(votes) > 8.0
    unlimited = voters(LOUD)
    unlimited.vote(ballots([[10, 0]] * 120))
    assert unlimited.spent.asked == 120


def test_costs_grow_with_sensitivity_and_fall_with_noise() -> None:
    assert gaussian_cost(2.0, 4.0) == pytest.approx(4 * gaussian_cost(1.0, 4.0)) == pytest.approx(gaussian_cost(1.0, 2.0))
    assert spent_epsilon(0.0, 1e-5) == 0.0


# -- fuse -------------------------------------------------------------------------------------------------------------------


def test_fuse_learns_from_answered_samples_and_states_its_epsilon() -> None:
    teachers = [build("mlp", classes=2, shape=(1, 4, 4), seed=k).eval() for k in range(4)]
    x = torch.randn(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"weighting": "private-votes", "weighting_options": QUIET, "distillation": {"steps": 5}}
    fused = fedstill.fuse(teachers, x, build("mlp", classes=2, shape=(1, 4, 4), seed=9), **options)
    told = fused.settings["votes"]
    counts = F.one_hot(torch.stack([t(x).argmax(1) for t in teachers]), 2).sum(0)
    assert told["asked"] == 60
    assert told["answered"] == int((counts.amax(1) >= 3).sum()) == fused.settings["pool"]
    assert told["left_out"] == 60 - told["answered"]
    assert "own" in fused.start
    with pytest.raises(FedstillError, match="puts a teacher's weights"):
        fedstill.fuse(teachers, x, "mlp", start="average", **options)
    with pytest.raises(FedstillError, match=r"privacy\.votes"):
        fedstill.fuse(teachers, x, "mlp", weighting="private-votes")
    deaf = {**options, "weighting_options": {**QUIET, "threshold": 9.0}}
    with pytest.raises(FedstillError, match="no sample was answered"):
        fedstill.fuse(teachers, x, build("mlp", classes=2, shape=(1, 4, 4), seed=9), **deaf)


# -- rounds -----------------------------------------------------------------------------------------------------------------


def tree(**algorithm: Any) -> dict[str, Any]:
    return {
        "rounds": 2,
        "data": {"domains": ["embedded:optdigits"], "limit": 200, "test_limit": 40, "holdout": 0.3},
        "clients": {"per_domain": 4},
        "model": {"name": "mlp"},
        "algorithm": {"name": "feddf", "distillation": {"steps": 5, "start": "previous"}, "line": False, **algorithm},
        "privacy": {"votes": {"sigma": 2.0, "sigma_threshold": 3.0, "threshold": 2.0}},
    }


def test_rounds_compose_and_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    result = fedstill.run(tree(), tmp_path / "whole")
    first, last = (line["votes"] for line in result.history)
    votes = Votes(sigma=2.0, sigma_threshold=3.0, threshold=2.0)
    assert first["asked"] == 60
    assert last["asked"] == 120
    assert first["answered"] + 60 - last["left_out"] == last["answered"]
    assert last["epsilon"] == pytest.approx(Spent(120, last["answered"]).epsilon(votes))
    assert "covers the student" in last["covers"]
    assert result.history[-1]["ensemble_accuracy"] is None  # no question that is not counted
    assert json.loads((tmp_path / "whole" / "summary.json").read_text())["votes"] == last
    fedstill.run({**tree(), "rounds": 1}, tmp_path / "parts")
    again = fedstill.run(tree(), tmp_path / "parts", resume=True)
    assert again.history[-1]["votes"] == last
    assert again.accuracy == result.accuracy


def test_an_average_in_the_student_is_said_not_to_be_covered(tmp_path: Path) -> None:
    found = fedstill.run({**tree(distillation={"steps": 2}), "rounds": 1}, tmp_path / "run").history[-1]["votes"]
    assert "covers the answers about the pool only" in found["covers"]


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"name": "feddf", "weighting": "vote"}, "counts every teacher's vote once"),
        ({"name": "feddf", "distillation": {"fresh": True}}, "asks the teachers in every step"),
        ({"name": "feddf", "source": {"kind": "noise"}}, "source.kind must be 'data', not 'noise'"),
        ({"name": "fedavg"}, "is for feddf"),
    ],
)
def test_what_would_ask_more_of_the_teachers_is_refused(tmp_path: Path, algorithm: dict[str, Any], said: str) -> None:
    with pytest.raises(FedstillError, match=said):
        fedstill.run({**tree(), "algorithm": algorithm}, tmp_path / "run")
