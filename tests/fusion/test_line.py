"""Points between average and student, who judges them, and what false verdicts can do."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.core.options import validated
from fedstill.data.samples import Samples
from fedstill.fusion.judges import Verdict, agreements, fault, judged, right_answers
from fedstill.fusion.line import Line, candidates, carried_point, cautious_scores, delivered_point, is_full, point
from fedstill.models import build
from tests.conftest import tiny_config

POINTS = [0.0, 0.25, 0.5, 0.75, 1.0]


def test_the_ends_are_what_they_are_and_counters_stay_whole() -> None:
    average, student = {"w": torch.tensor([0.1]), "n": torch.tensor(3)}, {"w": torch.tensor([0.3]), "n": torch.tensor(6)}
    assert point(average, student, 0.0) is average
    assert point(average, student, 1.0) is student
    middle = point(average, student, 0.5)
    assert middle["w"].item() == pytest.approx(0.2)
    assert middle["n"].dtype == torch.int64


@given(st.lists(st.floats(0, 1), min_size=5, max_size=5), st.floats(0, 0.2))
def test_what_is_carried_costs_at_most_the_tolerance(scores: list[float], tolerance: float) -> None:
    line = Line(tolerance=tolerance)
    carried, best = carried_point(POINTS, scores, line), delivered_point(POINTS, scores)
    score = dict(zip(POINTS, scores, strict=True))
    assert score[carried] >= scores[0] - tolerance
    assert all(score[t] < scores[0] - tolerance for t in POINTS if carried < t <= line.reach)
    assert score[best] == max(scores)


def test_a_fixed_share_needs_no_judge() -> None:
    assert carried_point(POINTS, None, Line(carry=0.75)) == 0.75
    assert carried_point(POINTS, [0.9, 0.1, 0.1, 0.1, 0.1], Line(carry=1)) == 1.0


@pytest.mark.parametrize("points", [[0.0, 0.5], [0.5, 1.0], [0.0, 0.5, 0.5, 1.0], [0.0]])
def test_points_run_from_the_average_to_the_student(points: list[float]) -> None:
    with pytest.raises(FedstillError, match="points"):
        validated(Line, {"points": points})


@pytest.mark.parametrize(
    ("rounds", "full_rounds", "full"),
    [(6, 1, [6]), (6, 2, [5, 6]), (6, 0, []), (2, 1, [2]), (1, 1, []), (3, 9, [2, 3])],  # the first round is always judged
)
def test_the_last_rounds_train_on_everything(rounds: int, full_rounds: int, full: list[int]) -> None:
    config, line = tiny_config(rounds=rounds), Line(full_rounds=full_rounds)
    assert [number for number in range(1, rounds + 1) if is_full(line, config, number)] == full
    other = Line(full_rounds=full_rounds, judge="pool")  # nobody else holds out what clients could train on
    assert not any(is_full(other, config, number) for number in range(1, rounds + 1))


def test_what_was_once_worse_than_the_average_is_not_preferred_to_it() -> None:
    """Hand-worked: the smallest gains are 0, +0.01 and -0.04, though the student has the best mean and the best last round."""
    rounds = [[0.70, 0.72, 0.66], [0.74, 0.75, 0.80], [0.75, 0.76, 0.82]]
    assert cautious_scores(rounds) == pytest.approx([0.73, 0.74, 0.69])
    assert delivered_point([0.0, 0.5, 1.0], cautious_scores(rounds)) == 0.5
    assert delivered_point([0.0, 0.5, 1.0], rounds[-1]) == 1.0
    assert delivered_point([0.0, 0.5, 1.0], cautious_scores([[0.7, 0.71, 0.8], [0.7, 0.69, 0.6]])) == 0.0
    assert cautious_scores(rounds[:1]) == pytest.approx(rounds[0])  # a single round is taken at its word


@given(st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=1, max_size=4))
def test_a_point_chosen_unseen_was_better_than_the_average_in_every_round(rounds: list[list[float]]) -> None:
    chosen = POINTS.index(delivered_point(POINTS, cautious_scores(rounds)))
    assert chosen == 0 or all(scores[chosen] > scores[0] for scores in rounds)


def test_right_answers_are_counted_at_every_point() -> None:
    """The average says class 0 of everything, the student class 1: three of four labels are 1."""
    network = build("mlp", classes=2, shape=(1, 2, 2), hidden=[3], seed=0)
    zero = {name: torch.zeros_like(tensor) for name, tensor in network.state_dict().items()}
    average, student = ({**zero, "head.bias": torch.tensor(bias)} for bias in ([1.0, 0.0], [0.0, 1.0]))
    samples = Samples(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([1, 1, 0, 1]))
    assert right_answers(network, candidates(average, student, [0.0, 0.25, 1.0]), samples).tolist() == [1, 1, 3]


def test_agreement_is_one_where_point_and_ensemble_say_the_same() -> None:
    network = build("mlp", classes=2, shape=(1, 2, 2), hidden=[3], seed=0)
    zero = {name: torch.zeros_like(tensor) for name, tensor in network.state_dict().items()}
    agreeing = {**zero, "head.bias": torch.tensor([0.8, 0.2]).log()}
    samples, targets = Samples(torch.zeros(2, 1, 2, 2, dtype=torch.uint8)), torch.tensor([[0.8, 0.2], [0.8, 0.2]])
    apart = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)  # KL to what the average says, one half of each
    assert agreements(network, candidates(zero, agreeing, [0.0, 1.0]), samples, targets) == pytest.approx([math.exp(-apart), 1.0])


# -- verdicts ----------------------------------------------------------------------------------------------------------------


def honest(count: int, gain: int, domain: str = "a") -> list[Verdict]:
    return [Verdict(domain, torch.tensor([500 + i, 500 + i + gain]), 1000) for i in range(count)]


def test_domains_count_alike_and_clients_by_their_samples() -> None:
    large, small = Verdict("a", torch.tensor([90]), 100), Verdict("a", torch.tensor([0]), 50)
    other = Verdict("b", torch.tensor([3]), 10)
    assert judged([large, small, other], 0.0) == pytest.approx([(0.6 + 0.3) / 2])


@pytest.mark.parametrize("clients", [5, 10, 20])
@pytest.mark.parametrize("gain", [-40, 40])
def test_a_fifth_of_false_verdicts_moves_nothing(clients: int, gain: int) -> None:
    """Whoever calls the worse point the best of all is cut off, however loud."""
    liars = clients // 5
    false = [Verdict("a", torch.tensor([1000, 0] if gain > 0 else [0, 1000]), 1000) for _ in range(liars)]
    scores = judged([*honest(clients - liars, gain), *false], 0.2)
    assert scores[1] - scores[0] == pytest.approx(gain / 1000)
    plain = judged([*honest(clients - liars, gain), *false], 0.0)
    assert (plain[1] - plain[0]) * gain < 0  # without trimming they decide


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message.of(right={"counts": torch.tensor([1, 2])}, samples=0), "held out no samples"),
        (Message.of(right={"counts": torch.tensor([1, 2])}, samples=99), "at most 10"),
        (Message.of(right={"counts": torch.tensor([1, 2, 3])}, samples=5), "not 2 counts"),
        (Message.of(right={"counts": torch.tensor([1.0, 2.0])}, samples=5), "not 2 counts"),
        (Message.of(right={"counts": torch.tensor([1, -2])}, samples=5), "not 2 counts"),
        (Message.of(right={"counts": torch.tensor([1, 6])}, samples=5), "more right answers"),
        (Message.of(samples=5), "not 2 counts"),
    ],
)
def test_a_verdict_is_checked_before_it_counts(message: Message, reason: str) -> None:
    assert reason in (fault(message, 2, 10) or "")
    assert fault(Message.of(right={"counts": torch.tensor([0, 5])}, samples=5), 2, 10) is None
