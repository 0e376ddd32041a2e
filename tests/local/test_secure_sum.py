"""Sums with drop-outs: right within the stated error, and what one client sends is uniform whatever it hides."""

from __future__ import annotations

import json

import pytest
import torch
from scipy import stats

from fedstill.core.errors import FedstillError
from fedstill.local.masking import FixedPoint
from fedstill.local.secure_sum import (
    combine,
    hidden,
    new_secrets,
    opened,
    recovered_sum,
    revealed,
    sealed,
    split,
    threshold_of,
)

POINTS = {64: FixedPoint(), 32: FixedPoint(32, 32.0)}


class Federation:
    """Ten clients after the exchange of keys and shares."""

    def __init__(self, count=10, fraction=0.6):
        self.names = [f"c{i}" for i in range(count)]
        self.threshold = threshold_of(fraction, count)
        self.secrets = {name: new_secrets() for name in self.names}
        self.seals, self.masks = ({name: s.keys[i] for name, s in self.secrets.items()} for i in (0, 1))
        self.boxes = {n: sealed(n, s, self.seals, self.threshold, "r") for n, s in self.secrets.items()}
        self.held = {n: opened(n, s, self.seals, {k: b[n] for k, b in self.boxes.items()}, "r") for n, s in self.secrets.items()}

    def words(self, name, values, point):
        return hidden(values, name, self.secrets[name], self.masks, "r", point)

    def sum(self, values, arrived, tellers, point):
        total = torch.stack([self.words(name, values[name], point) for name in sorted(arrived)]).sum(0, dtype=point.dtype)
        told = {name: revealed(self.held[name], arrived) for name in tellers}
        return recovered_sum(total, arrived, self.masks, told, self.names, self.threshold, "r", point)


@pytest.fixture(scope="module")
def ten():
    return Federation()


@pytest.mark.parametrize("bits", POINTS)
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_sum_is_right_within_its_error_though_clients_are_lost(ten, lost, bits):
    point = POINTS[bits]
    values = {name: torch.randn(200, dtype=torch.double) for name in ten.names}
    arrived = set(ten.names) - set(ten.names[2 : 2 + lost])
    plain = torch.stack([values[name] for name in arrived]).sum(0)
    worst = (ten.sum(values, arrived, arrived, point) - plain).abs().max()
    assert worst <= point.error(len(arrived))
    assert worst > point.error(len(arrived)) / 1000  # the bound is that of this rounding, not of another


def test_clients_may_also_be_lost_after_their_numbers_arrived(ten):
    values = {name: torch.ones(3) for name in ten.names}
    arrived = set(ten.names[1:])
    assert ten.sum(values, arrived, ten.names[3:], POINTS[64]).tolist() == [9, 9, 9]
    with pytest.raises(FedstillError, match="6 clients revealed their shares of c0's masks, 7 are needed"):
        ten.sum(values, arrived, ten.names[4:], POINTS[64])


@pytest.mark.parametrize("bits", POINTS)
def test_the_servers_view_of_a_client_is_uniform(ten, bits):
    """Whatever is hidden; also of a client whose pairwise masks the server has removed, because it was called lost."""
    point = POINTS[bits]
    for values in (torch.zeros(20000), torch.ones(20000), torch.randn(20000)):
        words = ten.words("c4", values, point).long()
        for shift in range(0, bits, 8):  # each byte of each word
            counts = torch.bincount((words >> shift) & 0xFF, minlength=256)
            assert stats.chisquare(counts.numpy()).pvalue > 1e-6
        assert stats.kstest(words.double().numpy() / 2.0**bits + 0.5, "uniform").pvalue > 1e-6
    lone = Federation(2).words("c0", torch.zeros(20000), point).long()
    assert stats.kstest(lone.double().numpy() / 2.0**bits + 0.5, "uniform").pvalue > 1e-6
    plain = point.words(torch.randn(20000)).long()  # the tests see what is not masked
    assert stats.kstest(plain.double().numpy() / 2.0**bits + 0.5, "uniform").pvalue < 1e-6


def test_without_its_own_mask_a_client_called_lost_would_be_bare(ten):
    """The reason for two masks: with the pairwise seeds alone, the server still sees uniform words."""
    name, others = "c0", set(ten.names[1:])
    words = ten.words(name, torch.zeros(1000), POINTS[64])
    told = {n: revealed(ten.held[n], others) for n in others}
    nothing = torch.zeros(1000, dtype=torch.int64)
    # what the server adds back when c0 is lost is minus what c0's masks put on the sum of the others
    pairs = recovered_sum(nothing, others, ten.masks, told, ten.names, ten.threshold, "r", FixedPoint(64, 2.0**62))
    own = recovered_sum(nothing, others, {n: ten.masks[n] for n in others}, told, ten.names, 7, "r", FixedPoint(64, 2.0**62))
    left = words + (pairs - own).to(torch.int64)
    assert len(left.unique()) > 990  # zeros are not seen


def test_one_share_of_each_client_and_never_both(ten):
    told = revealed(ten.held["c1"], {"c0", "c1"})
    assert told["c0"] == ten.held["c1"]["c0"][32:]  # arrived: its own mask
    assert told["c2"] == ten.held["c1"]["c2"][:32]  # lost: its pairwise masks
    assert all(len(share) == 32 for share in told.values())


def test_shares_below_the_threshold_say_nothing_and_enough_say_all():
    seed = bytes(range(16))
    shares = dict(enumerate(split(seed, 3, 5), 1))
    assert combine({k: shares[k] for k in (1, 3, 5)}) == combine({k: shares[k] for k in (2, 4, 5)}) == seed
    assert combine({k: shares[k] for k in (1, 3)}) != seed


def test_a_changed_share_is_noticed(ten):
    box = ten.boxes["c0"]["c1"]
    wrong = f"{int(box, 16) ^ 1:0{len(box)}x}"
    with pytest.raises(FedstillError, match="the share that c0 sent to c1 was changed on its way"):
        opened("c1", ten.secrets["c1"], ten.seals, {"c0": wrong}, "r")
    with pytest.raises(FedstillError, match="changed"):  # sealed for somebody else
        opened("c2", ten.secrets["c2"], ten.seals, {"c0": box}, "r")


def test_false_shares_of_a_lost_client_are_noticed(ten):
    arrived = set(ten.names[1:])
    told = {name: revealed(ten.held[name], arrived) for name in arrived}
    told["c1"] = {**told["c1"], "c0": "00" * 16}
    with pytest.raises(FedstillError, match="the shares of c0's masks are wrong"):
        recovered_sum(torch.zeros(3, dtype=torch.int64), arrived, ten.masks, told, ten.names, 7, "r", POINTS[64])


def test_a_number_that_does_not_fit_is_refused():
    for value in (32.0, float("nan"), float("inf")):
        with pytest.raises(FedstillError, match="not finite or not below 32"):
            POINTS[32].words(torch.tensor([value]))
    assert json.dumps(POINTS[32].words(torch.tensor([-1.5])).tolist()) == str([-1.5 * 2**25]).replace(".0", "")
