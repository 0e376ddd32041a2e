"""KL in both directions, against sums written out by hand and torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedstill.fusion.distillation.divergence import divergence, sharpened

P, Q = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.5, 0.5]])


def test_forward_is_teacher_to_student_and_reverse_is_student_to_teacher():
    forward = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    reverse = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert float(divergence(Q.log(), P)) == pytest.approx(forward, abs=1e-6)
    assert float(divergence(Q.log(), P, direction="reverse")) == pytest.approx(reverse, abs=1e-6)
    assert forward != pytest.approx(reverse, abs=1e-3)


@given(seed=st.integers(0, 1000), temperature=st.floats(0.5, 5))
@settings(max_examples=25, deadline=None)
def test_agrees_with_torch(seed, temperature):
    rng = torch.Generator().manual_seed(seed)
    logits, targets = torch.randn(6, 3, generator=rng), torch.randn(6, 3, generator=rng).softmax(1)
    ours = divergence(logits, targets, temperature=temperature)
    theirs = F.kl_div(F.log_softmax(logits / temperature, 1), targets, reduction="batchmean")
    assert float(ours) == pytest.approx(float(theirs), abs=1e-5)
    assert float(ours) >= -1e-6
    assert float(divergence(targets.log(), targets)) == pytest.approx(0, abs=1e-6)


def test_square_reduction_and_sample_weights():
    logits, targets = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    each = [float(divergence(logits[i : i + 1], targets[i : i + 1], temperature=2.0)) for i in range(2)]
    assert float(divergence(logits, targets, temperature=2.0)) == pytest.approx(sum(each) / 2)
    assert float(divergence(logits, targets, temperature=2.0, square=True)) == pytest.approx(4 * sum(each) / 2)
    # "mean" divides by the number of classes as well
    assert float(divergence(logits, targets, temperature=2.0, reduction="mean")) == pytest.approx(sum(each) / 4)
    only_second = divergence(logits, targets, temperature=2.0, weight=torch.tensor([0.0, 1.0]))
    assert float(only_second) == pytest.approx(each[1] / 2)


def test_a_target_of_zero_costs_nothing_forward_and_stays_finite_in_reverse():
    sure = torch.tensor([[1.0, 0.0]])
    assert float(divergence(torch.tensor([[0.0, 0.0]]), sure)) == pytest.approx(math.log(2))
    assert math.isfinite(float(divergence(torch.tensor([[0.0, 0.0]]), sure, direction="reverse")))


def test_sharpening_with_one_half_squares():
    assert sharpened(torch.tensor([[0.8, 0.2]]), 0.5)[0].tolist() == pytest.approx([0.64 / 0.68, 0.04 / 0.68])
    assert sharpened(P, 1.0)[0].tolist() == pytest.approx(P[0].tolist())
