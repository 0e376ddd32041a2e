import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstill.core.errors import FedstillError
from fedstill.data.partition import Partition, Shares, _client_prior, _dirichlet, _level, partition

VARIANTS = ["plain", "balanced", "equal", "client-prior"]


def check(labels, shares, clients, least, complete=True):
    assert len(shares) == clients
    joined = np.concatenate(shares)
    assert len(np.unique(joined)) == len(joined), "somebody holds another's sample"
    assert all((np.diff(share) > 0).all() for share in shares)
    assert min(len(share) for share in shares) >= least
    if complete:
        assert len(joined) == len(labels)


@settings(max_examples=150, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    clients=st.integers(1, 60),
    alpha=st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 1e6]),
    variant=st.sampled_from(VARIANTS),
    least=st.integers(0, 4),
    seed=st.integers(0, 5),
)
def test_dirichlet_ends_with_a_true_split_or_a_clear_refusal(labels, clients, alpha, variant, least, seed):
    spec = Partition(kind="dirichlet", alpha=alpha, variant=variant, min_samples=least, redraws=3)
    values = np.array(labels)
    if clients > len(labels) or least * clients > len(labels):
        with pytest.raises(FedstillError, match="cannot"):
            partition(values, clients, spec, np.random.default_rng(seed))
    else:
        check(values, partition(values, clients, spec, np.random.default_rng(seed)), clients, least)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_thousand_clients_with_a_tiny_alpha(variant):
    labels = np.random.default_rng(0).integers(0, 10, 10_000)
    spec = Partition(kind="dirichlet", alpha=1e-3, variant=variant, min_samples=10)
    check(labels, partition(labels, 1000, spec, np.random.default_rng(1)), 1000, 10)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 3))
def test_classes_gives_nobody_a_class_too_many(clients, per_client, seed):
    labels = np.repeat(np.arange(5), 30)
    shares = partition(labels, clients, Partition(kind="classes", classes_per_client=per_client), np.random.default_rng(seed))
    check(labels, shares, clients, 1, complete=clients * per_client >= 5)
    assert all(len(np.unique(labels[share])) == per_client for share in shares)


def test_iid_shares_are_equal_and_mixed():
    labels = np.repeat(np.arange(4), 100)
    shares = partition(labels, 5, Partition(), np.random.default_rng(0))
    check(labels, shares, 5, 80)
    assert all(np.bincount(labels[share], minlength=4).min() >= 8 for share in shares)


def test_the_same_stream_gives_the_same_split():
    labels = np.random.default_rng(0).integers(0, 10, 500)
    spec = Partition(kind="dirichlet", alpha=0.3)
    one, two = (partition(labels, 7, spec, np.random.default_rng(3)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(("variant", "spread"), [("equal", 1), ("client-prior", 1)])
def test_equal_and_client_prior_have_equal_sizes(variant, spread):
    labels = np.random.default_rng(0).integers(0, 10, 1003)
    spec = Partition(kind="dirichlet", alpha=0.1, variant=variant)
    sizes = [len(share) for share in partition(labels, 25, spec, np.random.default_rng(0))]
    assert max(sizes) - min(sizes) <= spread


def test_balanced_gives_nothing_to_a_client_that_has_its_share():
    # Two classes of 100, two clients, alpha near 0: whoever takes all of class 0 is full, so the other takes class 1.
    labels = np.repeat([0, 1], 100)
    for seed in range(10):
        shares = _dirichlet(labels, np.arange(200), 2, 1e-6, True, np.random.default_rng(seed))
        assert sorted(len(share) for share in shares) == [100, 100]
        assert {tuple(np.unique(labels[share])) for share in shares} == {(0,), (1,)}
    plain = [_dirichlet(labels, np.arange(200), 2, 1e-6, False, np.random.default_rng(seed)) for seed in range(10)]
    assert any(len(shares[0]) in (0, 200) for shares in plain)


def test_equal_cuts_across_the_borders_of_groups_of_ten():
    # With 20 clients there are two groups, each with half of the data; sizes are equal although Dir(0.05) is not.
    labels = np.random.default_rng(0).integers(0, 5, 2000)
    shares = partition(labels, 20, Partition(kind="dirichlet", alpha=0.05, variant="equal"), np.random.default_rng(0))
    assert [len(share) for share in shares] == [100] * 20
    assert np.mean([len(np.unique(labels[share])) for share in shares]) < 4


def test_client_prior_follows_the_dirichlet_of_the_classes():
    # E[p_c^2] = (alpha + 1) / (C (C alpha + 1)) for Dir(alpha 1_C); with stock to spare the shares have that moment.
    alpha, classes, clients = 0.5, 4, 400
    labels = np.tile(np.arange(classes), 20_000)
    shares = _client_prior(labels, clients, alpha, np.random.default_rng(0))
    p = np.stack([np.bincount(labels[share], minlength=classes) / len(share) for share in shares])
    assert (p**2).mean() == pytest.approx((alpha + 1) / (classes * (classes * alpha + 1)), rel=0.1)


def test_dirichlet_shares_have_the_moments_of_the_dirichlet():
    # Over clients, E[p_k^2] = (alpha + 1) / (K (K alpha + 1)).
    alpha, clients = 0.5, 5
    labels = np.repeat(np.arange(400), 100)
    shares = _dirichlet(labels, np.arange(len(labels)), clients, alpha, False, np.random.default_rng(0))
    p = np.stack([np.bincount(labels[share], minlength=400) / 100 for share in shares])
    assert p.mean() == pytest.approx(1 / clients)
    assert (p**2).mean() == pytest.approx((alpha + 1) / (clients * (clients * alpha + 1)), rel=0.1)


@pytest.mark.parametrize("balanced", [True, False])
def test_a_share_is_what_one_client_after_the_other_is_given_of_each_class(balanced):
    labels, clients, alpha = np.random.default_rng(0).integers(0, 4, 300), 7, 0.3
    held = [[] for _ in range(clients)]
    rng = np.random.default_rng(5)
    for label in range(4):
        members = rng.permutation(np.flatnonzero(labels == label))
        share = rng.dirichlet(np.full(clients, alpha))
        if balanced:
            share = np.where([len(own) < len(labels) / clients for own in held], share, 0.0)
            share /= share.sum()
        cuts = np.floor(np.cumsum(share) * len(members) + 1e-9).astype(int)[:-1]
        for own, part in zip(held, np.split(members, cuts), strict=True):
            own.extend(part.tolist())
    shares = _dirichlet(labels, np.arange(300), clients, alpha, balanced, np.random.default_rng(5))
    assert [share.tolist() for share in shares] == held


def test_a_repair_takes_from_whoever_is_largest_at_the_time():
    shares = Shares(np.arange(12), np.array([6, 6, 11, 12]))  # of 6, 0, 5 and 1 samples
    levelled = _level(shares, 2, np.random.default_rng(0))
    assert levelled.sizes.tolist() == [4, 2, 4, 2]
    shares = Shares(np.arange(12), np.array([6, 6, 11, 12]))
    rng = np.random.default_rng(0)
    mixed = [rng.permutation(share).tolist() for share in shares]
    mixed[1] += [mixed[0].pop(), mixed[0].pop()]  # clients 0 and 2 are as large after one: the first of them gives
    mixed[3] += [mixed[2].pop()]
    assert [sorted(share) for share in levelled] == [sorted(own) for own in mixed]


def test_shares_of_many_clients_take_little_more_than_their_positions():
    labels = np.zeros(100_000, dtype=int)
    tracemalloc.start()
    shares = partition(labels, 50_000, Partition(), np.random.default_rng(0))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1_500_000  # 12 bytes a position; an array object for each share would be six million more
    assert [share.tolist() for share in (shares[0], shares[-1])] == [list(share) for share in shares][:: len(shares) - 1]
    with pytest.raises(IndexError):
        shares[50_000]


def test_an_unlucky_draw_is_repaired_by_single_samples():
    labels = np.zeros(100, dtype=int)  # one class and alpha near 0: one client draws everything
    shares = partition(
        labels, 4, Partition(kind="dirichlet", alpha=1e-6, variant="plain", min_samples=5), np.random.default_rng(0)
    )
    assert sorted(len(share) for share in shares) == [5, 5, 5, 85]


@pytest.mark.parametrize("kind", ["shards", "linear", "square", "exponential"])
def test_flower_partitioners(kind):
    labels = np.repeat(np.arange(10), 60)
    shares = partition(labels, 6, Partition(kind=kind), np.random.default_rng(0))
    check(labels, shares, 6, 1)
    sizes = [len(share) for share in shares]
    if kind == "shards":
        assert sizes == [100] * 6
        assert max(len(np.unique(labels[share])) for share in shares) <= 4  # two shards of 50, two classes each at most
    else:
        assert sizes == sorted(sizes)
        assert sizes[0] < sizes[-1]


@pytest.mark.parametrize(
    ("clients", "spec", "message"),
    [
        (0, {}, "among 0 clients"),
        (31, {}, "30 samples among 31 clients"),
        (4, {"min_samples": 8}, "at least 8 samples each"),
        (3, {"kind": "classes", "classes_per_client": 4}, "4 classes: there are only 3"),
        (20, {"kind": "shards"}, "20 x 2 shards"),
        (4, {"kind": "shards", "min_samples": 7}, "'shards' hands out only 24 of 30"),
        (25, {"kind": "exponential"}, "leave some of 25 clients none"),
        (9, {"kind": "classes", "min_samples": 4, "classes_per_client": 1}, "cannot"),
    ],
)
def test_impossible_requests_are_refused_at_once(clients, spec, message):
    labels = np.repeat(np.arange(3), 10)
    with pytest.raises(FedstillError, match=message):
        partition(labels, clients, Partition(**spec), np.random.default_rng(0))


def test_a_classes_split_that_cannot_be_repaired_is_refused():
    labels = np.repeat([0, 1], [98, 2])  # both samples of class 1 cannot serve two clients with two samples each
    with pytest.raises(FedstillError, match="smaller min_samples"):
        partition(labels, 4, Partition(kind="classes", classes_per_client=1, min_samples=2), np.random.default_rng(0))


def test_bad_options_name_their_key():
    with pytest.raises(ValidationError, match="alpha"):
        Partition(alpha=0)
    with pytest.raises(ValidationError, match="beta"):
        Partition.model_validate({"kind": "iid", "beta": 1})
