"""Teachers that know different classes: each is silent on those it does not know."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.ensemble import ensemble_table
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.weightings import Ballot, Ready, Voting
from fedstill.fusion.weightings.robust import Median, Trimmed
from fedstill.models.network import Network


class Says(Network):
    """Says the same of every sample."""

    def __init__(self, probabilities: list[float]):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(probabilities).log())

    def forward(self, x: Tensor) -> Tensor:
        return self.bias + x.new_zeros(len(x), 1)


class Given(Ready):
    def __init__(self, *shares: float):
        self.shares = torch.tensor(shares)

    def weights(self, samples: Samples) -> Tensor:
        return self.shares.expand(len(samples), -1)


POOL = Samples(torch.zeros(3, 1))


def teachers() -> list[Teacher]:
    cats_and_dogs, dogs_and_owls = Says([0.8, 0.2]), Says([0.4, 0.6])
    return [
        Teacher("a", lambda: cats_and_dogs, places=(0, 1)),
        Teacher("b", lambda: dogs_and_owls, places=(1, 2)),
    ]


def test_equal_weights_are_the_mean_over_those_who_know() -> None:
    table = ensemble_table(teachers(), POOL, Given(0.5, 0.5), space="probabilities")
    # cat: only a, 0.8; dog: both, (0.2 + 0.4) / 2; owl: only b, 0.6; their sum is 1.7
    assert table.targets[0].tolist() == pytest.approx([0.8 / 1.7, 0.3 / 1.7, 0.6 / 1.7])


def test_weights_still_count_where_only_one_teacher_knows_a_class() -> None:
    table = ensemble_table(teachers(), POOL, Given(0.1, 0.9), space="probabilities")
    raw = [2 * 0.1 * 0.8, 0.1 * 0.2 + 0.9 * 0.4, 2 * 0.9 * 0.6]
    assert table.targets[0].tolist() == pytest.approx([value / sum(raw) for value in raw])


def test_the_same_classes_in_another_order_are_no_silence() -> None:
    one, other = Says([0.8, 0.2]), Says([0.3, 0.7])
    pair = [Teacher("a", lambda: one, places=(0, 1)), Teacher("b", lambda: other, places=(1, 0))]
    table = ensemble_table(pair, POOL, Given(0.5, 0.5), space="probabilities")
    assert table.targets[0].tolist() == pytest.approx([0.75, 0.25])
    logits = ensemble_table(pair, POOL, Given(0.5, 0.5), space="logits")
    assert logits.targets.sum(1).tolist() == pytest.approx([1.0] * 3)


def test_logits_of_different_classes_are_refused() -> None:
    with pytest.raises(FedstillError, match="probabilities"):
        ensemble_table(teachers(), POOL, Given(0.5, 0.5), space="logits")


def test_a_vote_hears_nothing_of_unknown_classes() -> None:
    class Mean(Voting):
        def vote(self, logits: Tensor) -> Ballot:
            spoken = logits.softmax(2)
            return Ballot(spoken.mean(0), torch.full((logits.shape[1], 2), 0.5))

    table = ensemble_table(teachers(), POOL, Mean())
    assert table.targets[0].tolist() == pytest.approx([0.4, 0.3, 0.3])


def test_the_median_is_over_those_who_know() -> None:
    three = [*teachers(), Teacher("c", lambda said=Says([0.5, 0.5]): said, places=(0, 1))]  # type: ignore[misc]
    table = ensemble_table(three, POOL, Median())
    raw = [0.5, 0.4, 0.6]  # cat: the lower of 0.8 and 0.5; dog: the middle of 0.2, 0.4 and 0.5; owl: b alone
    assert table.targets[0].tolist() == pytest.approx([value / sum(raw) for value in raw])


def test_a_trimmed_mean_needs_the_same_classes() -> None:
    with pytest.raises(FedstillError, match="same classes"):
        ensemble_table(teachers(), POOL, Trimmed())
