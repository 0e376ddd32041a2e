"""Sums under pairwise masks: they come out exactly, and what one party sends says nothing."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.local.masking import FixedPoint, expanded, key_pair, masked, public_key, unmasked_sum

SCALE = FixedPoint().scale


def everyone(names):
    pairs = {name: key_pair() for name in names}
    return {n: s for n, (s, _) in pairs.items()}, {n: p for n, (_, p) in pairs.items()}


def test_keys_and_streams_are_those_of_the_standards():
    once = public_key(9).to_bytes(32, "little")  # RFC 7748, 5.2: one iteration
    assert once.hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    stream = expanded(bytes(32), (2,)).numpy().tobytes()  # RFC 8439, A.1, test vector 1
    assert stream.hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_masks_cancel_exactly_for_any_number_of_clients():
    for count in (2, 3, 5):
        names = [f"c{i}" for i in range(count)]
        secrets, publics = everyone(names)
        values = {n: torch.rand(7, 3, dtype=torch.double) for n in names}
        total = unmasked_sum(masked(values[n], n, secrets[n], publics, "r") for n in names)
        assert torch.allclose(total, sum(values.values()), atol=count / SCALE, rtol=0)


def test_a_missing_part_leaves_noise():
    names = ["a", "b", "c"]
    secrets, publics = everyone(names)
    parts = [masked(torch.ones(50), n, secrets[n], publics, "r") for n in names]
    assert (unmasked_sum(parts[:2]) - 2).abs().min() > 1


def test_masks_are_new_in_every_context():
    secrets, publics = everyone(["a", "b"])
    one, two = (masked(torch.zeros(50), "a", secrets["a"], publics, context) for context in ("round 1", "round 2"))
    assert not (one == two).any()


def test_any_other_values_with_the_same_sum_explain_what_the_server_sees():
    """The one-time pad: for every claim about client a there are masks under which the same messages would have been sent."""
    secrets, publics = everyone(["a", "b"])
    true = {"a": torch.tensor([0.875, 0.125]), "b": torch.tensor([0.25, 0.375])}
    seen = {n: masked(true[n], n, secrets[n], publics, "r") for n in true}
    claimed = {"a": torch.tensor([0.25, 0.5]), "b": torch.tensor([0.875, 0.0])}  # another story, the same sums
    as_integers = {n: (v.double() * SCALE).round().to(torch.int64) for n, v in claimed.items()}
    mask = seen["a"] - as_integers["a"]  # what a and b would have to share for the story to be true
    assert torch.equal(as_integers["b"] - mask, seen["b"])


def test_what_a_client_sends_is_uniform_whatever_it_hides():
    secrets, publics = everyone(["a", "b"])
    for value in (0.0, 1.0):
        sent = masked(torch.full((4096,), value), "a", secrets["a"], publics, f"r{value}")
        top = (sent >> 56) & 0xFF  # the highest byte of each number
        counts = torch.bincount(top, minlength=256).double()
        chi2 = ((counts - 16).square() / 16).sum()  # 255 degrees of freedom: 99.9999% below 380
        assert chi2 < 380


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=2, max_size=4))
@settings(max_examples=20, deadline=None)
def test_any_sums_come_out(rows):
    names = [f"c{i}" for i in range(len(rows))]
    secrets, publics = everyone(names)
    values = torch.tensor(rows, dtype=torch.double)
    total = unmasked_sum(masked(v, n, secrets[n], publics, "r") for v, n in zip(values, names, strict=True))
    assert torch.allclose(total, values.sum(0), atol=1e-9)
