"""Robust ensembles: medians are somebody's values, extremes are cut, planted outliers go and clean votes stay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.fusion.weightings.robust import (
    Median,
    Spectral,
    SpectralOptions,
    Trimmed,
    TrimmedOptions,
    spectral_weights,
)


def votes_of(honest, seed=0, spread=0.3, samples=20, classes=5):
    """Logits of teachers that agree on a class a sample, (teachers, samples, classes)."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(classes, (samples,), generator=rng)
    centre = 4 * torch.nn.functional.one_hot(truth, classes).float()
    return centre + spread * torch.randn(honest, samples, classes, generator=rng), truth


@given(st.integers(1, 9), st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_a_median_is_some_teachers_value_and_weights_sum_to_one(teachers, seed):
    logits = torch.randn(teachers, 4, 3, generator=torch.Generator().manual_seed(seed))
    ballot = Median().vote(logits)
    middle = logits.sort(0).values[(teachers - 1) // 2]  # the lower one of two
    assert torch.allclose(ballot.targets, middle.softmax(1))
    assert torch.allclose(ballot.weights.sum(1), torch.ones(4))
    for vote in (Trimmed(), Spectral()):
        assert torch.allclose(vote.vote(logits).weights.sum(1), torch.ones(4), atol=1e-5)


def test_the_trimmed_mean_by_hand():
    logits = torch.tensor([[[-50.0, 1.0]], [[1.0, 2.0]], [[2.0, 3.0]], [[3.0, 4.0]], [[90.0, 99.0]]])
    ballot = Trimmed().vote(logits)  # one of five is cut at either end
    assert torch.allclose(ballot.targets, torch.tensor([[2.0, 3.0]]).softmax(1))
    assert torch.allclose(ballot.weights, torch.tensor([[0.0, 1 / 3, 1 / 3, 1 / 3, 0.0]]))
    assert TrimmedOptions(trim=0.0).trim == 0


def test_the_filter_removes_planted_outliers_and_leaves_clean_votes_alone():
    clean, truth = votes_of(8)
    weights = Spectral().vote(clean).weights
    assert torch.allclose(weights, torch.full_like(weights, 1 / 8))
    lies = 4 * torch.nn.functional.one_hot((truth + 1) % 5, 5).float().expand(2, -1, -1)
    ballot = Spectral().vote(torch.cat([clean, lies]))
    assert not ballot.weights[:, 8:].any()
    assert torch.allclose(ballot.targets, clean.softmax(2).mean(0), atol=0.02)
    assert (torch.cat([clean, lies]).softmax(2).mean(0) - clean.softmax(2).mean(0)).abs().max() > 0.1


def test_with_the_published_scale_the_filter_never_fires():
    # the variance of probabilities is at most a half in any direction, and the filter suspects above 1 + 3 eps log(1/eps)
    worst = torch.eye(2)[[0] * 5 + [1] * 5][None]
    for epsilon in (0.1, 0.2, 0.4):
        bound = 1 + 3 * epsilon * float(torch.tensor(1 / epsilon).log())
        weights = spectral_weights(worst, SpectralOptions(epsilon=epsilon, scale=1.0, bound=bound))
        assert torch.allclose(weights, torch.full((1, 10), 0.1))


def test_both_sides_of_the_eigenproblem_agree():
    logits, _ = votes_of(4, classes=12)
    lies = -logits[:1]
    wide = torch.cat([logits, lies]).softmax(2).transpose(0, 1)  # 5 voters, 12 classes
    narrow = torch.linalg.svd(wide, full_matrices=False)  # the same points in 5 dimensions
    turned = narrow.U * narrow.S[:, None, :]
    options = SpectralOptions()
    assert torch.allclose(spectral_weights(wide, options), spectral_weights(turned, options), atol=1e-4)


def test_at_most_twice_epsilon_go():
    rng = torch.Generator().manual_seed(0)
    votes = torch.randn(6, 10, 4, generator=rng).mul(9).softmax(2)
    left = (spectral_weights(votes, SpectralOptions(epsilon=0.2, scale=0.01)) > 0).sum(1)
    assert bool((left >= 6).all())


@pytest.mark.parametrize("vote", [Median(), Trimmed(), Spectral()])
def test_a_minority_cannot_change_the_label(vote):
    clean, truth = votes_of(8)
    ballot = vote.vote(torch.cat([clean, -10 * clean[:1]]))
    assert torch.equal(ballot.targets.argmax(1), truth)
