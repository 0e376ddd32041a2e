"""Eq. 6 of FedD3A: cosines to the clients' subspaces, standardised, softmaxed; and its guards."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.weightings import WeightingContext, make_weighting, report_of, weightings
from fedstill.fusion.weightings.projection import STACK, one_hot_weights, proximity, soft_weights
from fedstill.local.reports.projection import Projection, compress, projection_matrix, subspace

seeds = st.integers(0, 10_000)


def spaces(clients: int, d: int, seed: int, rows: int = 2) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, d, dtype=torch.float64, generator=rng) for _ in range(clients)]


def matrices(rows: list[torch.Tensor], alpha: float = 1e-3) -> list[dict[str, torch.Tensor]]:
    return [{"matrix": projection_matrix(z, alpha)} for z in rows]


def test_eq_6_by_hand():
    # cosines 1, 0.5, 0: mean 0.5, variance 1/6, so the standardised scores are (sqrt 1.5, 0, -sqrt 1.5)
    r = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
    e = math.exp(math.sqrt(1.5))
    wanted = torch.tensor([[e, 1, 1 / e]], dtype=torch.float64) / (e + 1 + 1 / e)
    torch.testing.assert_close(soft_weights(r), wanted)
    e = math.exp(1)  # divided by m - 1 the variance is 1/4: scores (1, 0, -1)
    wanted = torch.tensor([[e, 1, 1 / e]], dtype=torch.float64) / (e + 1 + 1 / e)
    torch.testing.assert_close(soft_weights(r, unbiased=True), wanted)


def test_proximity_is_the_cosine_of_the_feature_and_its_projection():
    z = spaces(1, 5, 0, rows=4)[0]
    sent = matrices(spaces(3, 5, 1), alpha=0.3)
    r = proximity(z, sent)
    for i in range(4):
        for k in range(3):
            u, pu = z[i], sent[k]["matrix"] @ z[i]
            assert r[i, k] == pytest.approx(float(u @ pu / (u.norm() * pu.norm())))


@given(seeds, st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_a_sample_inside_a_subspace_gets_that_client_as_its_largest(seed, clients):
    rows = spaces(clients, 8, seed)
    sent = matrices(rows)
    for k in range(clients):
        inside = torch.tensor([[0.7, -0.4]], dtype=torch.float64) @ rows[k]
        r = proximity(inside, sent)
        assert int(soft_weights(r).argmax()) == k
        assert int(one_hot_weights(r).argmax()) == k


@given(seeds, st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_rows_sum_to_one_and_nothing_is_negative(seed, clients):
    r = proximity(spaces(1, 6, seed, rows=5)[0], matrices(spaces(clients, 6, seed + 1)))
    for weights in (soft_weights(r), soft_weights(r, unbiased=True, temperature=0.3), one_hot_weights(r)):
        assert weights.shape == (5, clients)
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(1), torch.ones(5, dtype=torch.float64))


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_another_client_never_changes_the_order_of_the_others(seed):
    z = spaces(1, 6, seed, rows=5)[0]
    sent = matrices(spaces(4, 6, seed + 1))
    few, more = soft_weights(proximity(z, sent[:3])), soft_weights(proximity(z, sent))[:, :3]
    assert torch.equal(few.argsort(1), more.argsort(1))


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_compression_at_full_rank_changes_no_weight(seed):
    z = spaces(1, 6, seed, rows=5)[0].abs()
    sent = matrices(spaces(3, 6, seed + 1))
    small = [compress(s["matrix"], 2) for s in sent]  # two rows span two directions
    torch.testing.assert_close(soft_weights(proximity(z, small)), soft_weights(proximity(z, sent)), atol=1e-6, rtol=0)


def test_what_compression_does_to_the_weights():
    rng = torch.Generator().manual_seed(0)
    # three domains: positive features around centres of their own, spread along a few directions, as ReLU gives
    base = torch.rand(3, 32, generator=rng)
    data = [(c + 0.5 * torch.randn(300, 4, generator=rng) @ torch.randn(4, 32, generator=rng) / 4).relu() for c in base]
    z = torch.cat([d[:50] for d in data])
    weights = {}
    for rank in ("full", 0.95, 8, 1):
        sent = [subspace(d[50:], Projection(rank=rank, batch_size=8)) for d in data]
        weights[rank] = soft_weights(proximity(z, sent))
    changed = {rank: float((w - weights["full"]).abs().mean()) for rank, w in weights.items()}
    assert changed["full"] == 0
    assert changed[8] < changed[1]
    agree = (weights[0.95].argmax(1) == weights["full"].argmax(1)).double().mean()
    assert agree > 0.9


def test_guards():
    one = torch.rand(4, 1)
    assert soft_weights(one).tolist() == one_hot_weights(one).tolist() == [[1.0]] * 4
    equal = torch.full((2, 3), 0.98)
    torch.testing.assert_close(soft_weights(equal), torch.full((2, 3), 1 / 3))
    torch.testing.assert_close(one_hot_weights(equal), torch.full((2, 3), 1 / 3))
    nearly = equal + torch.tensor([0.0, 6e-8, -6e-8])  # one unit in the last place is not a difference
    torch.testing.assert_close(soft_weights(nearly), torch.full((2, 3), 1 / 3))
    sent = matrices(spaces(3, 4, 0))
    nothing = proximity(torch.zeros(2, 4, dtype=torch.float64), sent)
    torch.testing.assert_close(soft_weights(nothing), torch.full((2, 3), 1 / 3, dtype=torch.float64))
    assert proximity(torch.ones(2, 4), [{"matrix": torch.zeros(4, 4)}]).tolist() == [[0.0], [0.0]]


def test_more_clients_than_one_stack_and_mixed_forms():
    z = spaces(1, 5, 3, rows=4)[0]
    sent = matrices(spaces(STACK + 3, 5, 4))
    whole = proximity(z, sent)
    each = torch.cat([proximity(z, [s]) for s in sent], 1)
    torch.testing.assert_close(whole, each)
    mixed = [compress(s["matrix"], 5) if k % 2 else s for k, s in enumerate(sent)]
    torch.testing.assert_close(proximity(z, mixed), whole, atol=1e-7, rtol=0)


def test_the_members_are_in_the_common_set():
    assert {"soft", "onehot", "projection", "avg", "random"} <= set(weightings())
    assert report_of("soft") == report_of("onehot") == report_of("projection") == "projection"
    assert report_of("avg") is None


def test_without_a_backbone_there_are_no_projection_weights():
    with pytest.raises(FedstillError, match="extracted their features"):
        make_weighting("soft", WeightingContext((), torch.Generator())).weights(Samples(torch.zeros(1, 4)))
