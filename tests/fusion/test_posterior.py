"""Sampled models: their moments by hand, and never a perturbed buffer."""

from __future__ import annotations

import pytest
import torch

from fedstill.algorithm import Reply
from fedstill.core.message import Message
from fedstill.fusion.merges.posterior import (
    dirichlet_sample,
    gaussian_sample,
    moments,
    swag_sample,
    unit_gaussian_sample,
    unit_moments,
)

BASE = {"w": torch.zeros(2), "running_var": torch.ones(2), "count": torch.tensor(7)}


def replies(*weights):
    def one(k, values):
        state = {"w": torch.tensor(values), "running_var": torch.full((2,), 9.0), "count": torch.tensor(100 + k)}
        return Reply(f"c{k}", "d", "m", 10, lambda: Message.of(model=state, samples=10))

    return [one(k, values) for k, values in enumerate(weights)]


def draws(sample, n=3000):
    return torch.stack([sample(torch.Generator().manual_seed(seed))["w"] for seed in range(n)])


CLIENTS = replies([1.0, 0.0], [3.0, 0.0], [5.0, 0.0])


def test_gaussian_has_the_weighted_mean_and_variance_of_the_clients():
    mean, variance = moments(CLIENTS, {"w"}, [0.5, 0.25, 0.25])
    assert mean["w"].tolist() == [2.5, 0.0]
    assert variance["w"].tolist() == [0.5 * 1.5**2 + 0.25 * 0.5**2 + 0.25 * 2.5**2, 0.0]
    drawn = draws(lambda rng: gaussian_sample((mean, variance), BASE, 4.0, rng))
    assert float(drawn[:, 0].mean()) == pytest.approx(2.5, abs=0.2)
    assert float(drawn[:, 0].var()) == pytest.approx(4 * 2.75, rel=0.1)
    assert bool((drawn[:, 1] == 0).all())


def test_unit_gaussian_moves_by_the_mean_length_along_the_mean_direction():
    before = {"w": torch.tensor([1.0, 0.0])}
    pair = replies([4.0, 4.0], [1.0, 1.0])  # updates (3, 4) and (0, 1): lengths 5 and 1
    mean, variance, norm = unit_moments(pair, {"w"}, before)
    assert mean["w"].tolist() == pytest.approx([0.3, 0.9])
    assert variance["w"].tolist() == pytest.approx([0.09, 0.01])  # of (0.6, 0) and of (0.8, 1)
    assert float(norm["w"]) == 3.0
    drawn = draws(lambda rng: unit_gaussian_sample((mean, variance, norm), before, BASE, 0.1, rng))
    assert drawn.mean(0).tolist() == pytest.approx([1 + 3 * 0.3, 3 * 0.9], abs=0.01)
    assert drawn.std(0).tolist() == pytest.approx([3 * 0.1 * 0.3, 3 * 0.1 * 0.1], rel=0.1)


def test_dirichlet_stays_in_the_clients_hull():
    drawn = draws(lambda rng: dirichlet_sample(CLIENTS, {"w"}, BASE, 0.5, rng))
    assert float(drawn[:, 0].min()) >= 1
    assert float(drawn[:, 0].max()) <= 5
    assert float(drawn[:, 0].mean()) == pytest.approx(3, abs=0.1)
    # Var(sum p_k w_k) = Var_k(w) / (K alpha + 1), Var_k over the three values with 1/K
    assert float(drawn[:, 0].var()) == pytest.approx((8 / 3) / 2.5, rel=0.1)


def test_swag_adds_the_deviations_from_the_running_mean():
    around = moments(CLIENTS, {"w"}, [1 / 3] * 3)
    drawn = draws(lambda rng: swag_sample(CLIENTS, around, BASE, 0.5, rng))
    # rows: 1 - 1, 3 - 2, 5 - 3; their squares over m - 1 = 2, plus the variance 8/3, times the scale
    assert float(drawn[:, 0].mean()) == pytest.approx(3, abs=0.1)
    assert float(drawn[:, 0].var()) == pytest.approx(0.5 * (8 / 3 + (0 + 1 + 4) / 2), rel=0.1)


def test_buffers_are_never_sampled():
    rng = torch.Generator().manual_seed(0)
    around = moments(CLIENTS, {"w"}, [1 / 3] * 3)
    for state in (
        gaussian_sample(around, BASE, 1.0, rng),
        dirichlet_sample(CLIENTS, {"w"}, BASE, 0.5, rng),
        swag_sample(CLIENTS, around, BASE, 1.0, rng),
        unit_gaussian_sample(unit_moments(CLIENTS, {"w"}, BASE), BASE, BASE, 0.1, rng),
    ):
        assert list(state) == list(BASE)
        assert torch.equal(state["running_var"], BASE["running_var"])
        assert torch.equal(state["count"], BASE["count"])
        assert all(tensor.dtype == BASE[name].dtype for name, tensor in state.items())
