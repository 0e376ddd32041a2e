"""Qualities, contributions and weights, by hand and by their definitions."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch

from fedstill.fusion.merges.contributions import (
    contribution_weights,
    leave_one_out,
    qualities,
    shapley,
    shapley_sampled,
)
from fedstill.fusion.vote import knowledge_vote

# three sources, three samples, two classes, gate 0.8
Q = torch.tensor(
    [
        [[0.9, 0.1], [0.1, 0.9], [0.6, 0.4]],
        [[0.8, 0.2], [0.95, 0.05], [0.5, 0.5]],
        [[0.6, 0.4], [0.2, 0.8], [0.3, 0.7]],
    ]
)


def value(members: torch.Tensor) -> torch.Tensor:
    return qualities([Q], 0.8, members)


def test_three_samples_by_hand():
    # all: sample 1 has supporters 1, 2 (0.9 + 0.8); sample 2 sums to (1.25, 1.75): class 1, supporters 1, 3 (0.9 + 0.8);
    # sample 3 has none
    everyone = value(torch.tensor([[True, True, True]]))
    assert everyone.item() == pytest.approx(1.7 + 1.7)
    focus = leave_one_out(value, 3)
    # without 1: 0.8 + [sums (1.15, 0.85): class 0, supporter 2] 0.95; without 2: 0.9 + 1.7; without 3: 1.7 + [(1.05, 0.95)] 0.95
    assert focus.values.tolist() == pytest.approx([3.4 - 1.75, 3.4 - 2.6, 3.4 - 2.65])
    assert focus.quality == pytest.approx(3.4)
    weights = contribution_weights(focus.values)
    assert weights.tolist() == pytest.approx([1.65 / 3.2, 0.8 / 3.2, 0.75 / 3.2])


def test_a_contribution_can_be_negative_and_then_counts_nothing():
    # the third source's leftovers turn the consensus from class 0, which two support, to class 2, which nobody does
    q = torch.tensor(
        [[[0.60, 0.00, 0.40]], [[0.60, 0.00, 0.40]], [[0.00, 0.55, 0.45]]],
    )
    focus = leave_one_out(lambda m: qualities([q], 0.55, m), 3)
    assert focus.values[2] < 0  # with it, class 2 wins (1.25 against 1.2) and nobody has 0.55 there
    assert focus.quality == 0.0
    assert contribution_weights(focus.values).tolist() == pytest.approx([1 / 3] * 3)  # nobody contributes: all alike
    assert contribution_weights(torch.tensor([-1.0, 2.0, 2.0])).tolist() == [0.0, 0.5, 0.5]


def test_slices_add_up():
    members = torch.tensor([[True, True, False], [True, True, True]])
    torch.testing.assert_close(qualities([Q[:, :1], Q[:, 1:]], 0.8, members), value(members))


@pytest.mark.parametrize("variant", ["kdcl", "kd3a"])
@pytest.mark.parametrize("sources", [5, 13])  # from 13 on, samples are not grouped by who is heard
def test_the_quality_of_every_subset_is_that_of_its_own_vote(variant: str, sources: int):
    rng = torch.Generator().manual_seed(4)
    q = (3 * torch.randn(sources, 120, 4, generator=rng)).softmax(2)
    q[0, :3] = torch.tensor([0.75, 0.25, 0.0, 0.0])  # exactly the gate: heard by kdcl, not by kd3a
    q[:, 3] = 0.25  # nobody is sure
    members = torch.rand(40, sources, generator=rng) < 0.6
    members[:2] = torch.tensor([[False], [True]])
    expected = [knowledge_vote(q[m], 0.75, variant=variant).quality.double().sum() if m.any() else 0.0 for m in members]
    found = qualities([q], 0.75, members, variant)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)  # float32 sums


def test_shapley_is_the_mean_over_all_orders_and_efficient():
    expected = torch.zeros(3, dtype=torch.float64)
    for order in permutations(range(3)):
        inside = torch.zeros(1, 3, dtype=torch.bool)
        for k in order:
            before = value(inside)
            inside = inside.clone()
            inside[0, k] = True
            expected[k] += (value(inside) - before).item() / 6
    focus = shapley(value, 3)
    torch.testing.assert_close(focus.values, expected)
    assert focus.values.sum().item() == pytest.approx(focus.quality)


def test_shapley_of_kd3a_is_never_negative():
    q = (3 * torch.randn(4, 200, 5, generator=torch.Generator().manual_seed(1))).softmax(2)
    assert bool((shapley(lambda m: qualities([q], 0.7, m, "kd3a"), 4).values >= 0).all())


def test_sampled_shapley_is_within_its_stated_error():
    q = (3 * torch.randn(6, 100, 4, generator=torch.Generator().manual_seed(2))).softmax(2)

    def worth(members: torch.Tensor) -> torch.Tensor:
        return qualities([q], 0.7, members)

    exact = shapley(worth, 6)
    sampled = shapley_sampled(worth, 6, 400, torch.Generator().manual_seed(3))
    assert sampled.error is not None
    assert bool((sampled.error > 0).all())
    assert bool(((sampled.values - exact.values).abs() <= 4 * sampled.error).all())
    assert sampled.values.sum().item() == pytest.approx(exact.quality)  # every order is efficient
    more = shapley_sampled(worth, 6, 1600, torch.Generator().manual_seed(3))
    assert more.error is not None
    assert float(more.error.mean() / sampled.error.mean()) == pytest.approx(0.5, rel=0.2)  # falls with the square root


def test_contributions_are_a_merge_for_systems_that_distil(tmp_path: Path):
    from fedstill.run.configuration import parse
    from fedstill.run.loop import run

    tree = {
        "rounds": 1,
        "data": {
            "domains": ["embedded:optdigits", "embedded:mnist"],
            "target": "embedded:rotated",
            "image_size": 8,
            "limit": 80,
            "test_limit": 40,
        },
        "model": {"name": "mlp", "options": {"hidden": [16]}},
        "algorithm": {
            "name": "feddf",
            "merge": "shapley",
            "weighting": "vote",
            "weighting_options": {"gate": {"start": 0.2}},
            "distillation": {"steps": 3},
        },
    }
    [line] = run(parse(tree), tmp_path).history
    assert set(line["merge_weights"]) == {"optdigits-0", "mnist-0"}
    assert sum(line["merge_weights"].values()) == pytest.approx(1)
    assert sum(line["contributions"].values()) == pytest.approx(line["quality"])
