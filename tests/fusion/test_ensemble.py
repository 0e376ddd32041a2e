"""What teachers say together: hand-worked cases, and the streamed table against the ensemble held in memory."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.divergence import divergence
from fedstill.fusion.ensemble import ensemble_table
from fedstill.fusion.weightings import Ballot, Scored, Voting, WeightingContext, make_weighting, weightings
from fedstill.models import build
from fedstill.models.predict import predict_logits

from .speakers import Given, Linear, Reads, pool, teach


def test_avglogits_of_two_teachers_by_hand():
    # logits (2, 0) and (0, 4): their mean is (1, 2), so the target is softmax(1, 2), not the mean of the two softmaxes
    samples = Samples(torch.tensor([[2.0, 0.0]]))
    first = Reads()
    second = Reads(0.0)
    second.forward = lambda x: torch.tensor([[0.0, 4.0]]).expand(len(x), -1)  # type: ignore[method-assign]
    table = ensemble_table(teach([first, second]), samples, Given(0.5, 0.5))
    wanted = [math.exp(1) / (math.exp(1) + math.exp(2)), math.exp(2) / (math.exp(1) + math.exp(2))]
    assert table.targets[0].tolist() == pytest.approx(wanted)
    mixed = ensemble_table(teach([first, second]), samples, Given(0.5, 0.5), space="probabilities").targets[0, 0]
    assert float(mixed) == pytest.approx((1 / (1 + math.exp(-2)) + 1 / (1 + math.exp(4))) / 2)


def test_temperature_softens_the_mean_of_logits_and_each_softmax():
    samples = Samples(torch.tensor([[3.0, 0.0]]))
    logits = ensemble_table(teach([Reads(1.0), Reads(3.0)]), samples, Given(0.5, 0.5), temperature=2.0)
    assert float(logits.targets[0, 0]) == pytest.approx(1 / (1 + math.exp(-6 / 2)))
    spoken = ensemble_table(teach([Reads(1.0), Reads(3.0)]), samples, Given(0.5, 0.5), space="probabilities", temperature=2.0)
    assert float(spoken.targets[0, 0]) == pytest.approx((1 / (1 + math.exp(-1.5)) + 1 / (1 + math.exp(-4.5))) / 2)


@given(seed=st.integers(0, 200), count=st.integers(1, 6), space=st.sampled_from(["logits", "probabilities"]))
@settings(max_examples=20, deadline=None)
def test_the_streamed_table_is_the_ensemble_in_memory(seed, count, space):
    networks = [Linear(4, 3, seed=seed + k, batch_norm=k % 2 == 0) for k in range(count)]
    rng = torch.Generator().manual_seed(seed)
    weights = torch.rand(count, generator=rng)
    weights = weights / weights.sum()
    samples = pool(23)
    table = ensemble_table(teach(networks), samples, Given(*weights.tolist()), space=space, batch_size=5)
    together = torch.stack([predict_logits(network, samples) for network in networks])  # all at once
    if space == "logits":
        wanted = (weights[:, None, None] * together).sum(0).softmax(1)
    else:
        wanted = (weights[:, None, None] * together.softmax(2)).sum(0)
    assert torch.allclose(table.targets, wanted, atol=1e-6)
    assert torch.allclose(table.weights, weights.expand(23, -1), atol=1e-6)


@pytest.mark.parametrize("space", ["logits", "probabilities", "losses"])
def test_weights_that_pick_one_teacher_reproduce_it(space):
    networks = [Linear(4, 3, seed=k) for k in range(3)]
    table = ensemble_table(teach(networks), pool(), Given(0.0, 1.0, 0.0), space=space)
    assert torch.allclose(table.targets, predict_logits(networks[1], pool()).softmax(1), atol=1e-6)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_losses_has_the_gradient_of_the_mean_of_the_teachers_own_divergences(direction):
    networks, samples, shares = [Linear(4, 3, seed=k) for k in range(3)], pool(), [0.2, 0.3, 0.5]
    logits = torch.randn(len(samples), 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
    table = ensemble_table(teach(networks), samples, Given(*shares), space="losses", direction=direction, temperature=2.0)
    (short,) = torch.autograd.grad(divergence(logits, table.targets, direction=direction, temperature=2.0), logits)
    spoken = [(predict_logits(network, samples) / 2).softmax(1) for network in networks]
    apart = [share * divergence(logits, p, direction=direction, temperature=2.0) for share, p in zip(shares, spoken, strict=True)]
    (long,) = torch.autograd.grad(torch.stack(apart).sum(), logits)
    assert torch.allclose(short, long, atol=1e-6)


class ByFeature(Scored):
    """A teacher's score is the sample's feature of its own number, where positive."""

    def score(self, k, network, x, features):
        return features[:, k].clamp_min(0)


def test_scores_are_normalised_over_the_teachers_and_a_sample_nobody_knows_counts_for_nothing():
    networks = [Linear(4, 3, seed=k) for k in range(2)]
    samples = Samples(torch.tensor([[1.0, 3.0, 0.0, 0.0], [-1.0, -1.0, 0.0, 0.0], [2.0, -1.0, 0.0, 0.0]]))
    table = ensemble_table(teach(networks), samples, ByFeature(), space="probabilities")
    first, second = (predict_logits(network, samples).softmax(1) for network in networks)
    assert table.weights.tolist() == [[0.25, 0.75], [0.0, 0.0], [1.0, 0.0]]
    assert torch.allclose(table.targets[0], 0.25 * first[0] + 0.75 * second[0], atol=1e-6)
    assert torch.allclose(table.targets[2], first[2], atol=1e-6)
    assert table.sample_weight is not None
    assert table.sample_weight.tolist() == [1.0, 0.0, 1.0]
    assert bool(torch.isfinite(table.targets).all())
    with pytest.raises(FedstillError, match="every sample"):
        ensemble_table(teach(networks), Samples(torch.full((2, 4), -1.0)), ByFeature())


class Louder(Voting):
    """The teacher with the largest logit wins the sample."""

    def vote(self, logits):
        best = logits.amax(2).argmax(0)
        chosen = torch.stack([logits[int(k), i] for i, k in enumerate(best)])
        return Ballot(chosen.softmax(1), torch.nn.functional.one_hot(best, len(logits)).float(), chosen.amax(1))


def test_a_vote_sees_every_teacher_and_is_joined_from_slices():
    networks, samples = [Linear(4, 3, seed=k) for k in range(3)], pool(11)
    together = torch.stack([predict_logits(network, samples) for network in networks]) / 2.0
    wanted = Louder().vote(together)
    table = ensemble_table(teach(networks), samples, Louder(), temperature=2.0, batch_size=4)
    assert torch.allclose(table.targets, wanted.targets, atol=1e-6)
    assert torch.equal(table.weights, wanted.weights)
    assert wanted.sample_weight is not None
    assert table.sample_weight is not None
    assert torch.allclose(table.sample_weight, wanted.sample_weight)


def test_the_ensemble_knows_its_own_accuracy():
    samples = Samples(torch.tensor([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0], [3.0, 0.0]]))
    table = ensemble_table(teach([Reads()]), samples, Given(1.0))
    assert table.accuracy(torch.tensor([0, 1, 1, 0])) == 0.75


def test_uniform_and_random_weights():
    scene = WeightingContext(teach([Reads(), Reads(), Reads()]), torch.Generator().manual_seed(0))
    assert torch.allclose(make_weighting("uniform", scene).weights(pool(5)), torch.full((5, 3), 1 / 3))
    drawn = make_weighting("random", scene).weights(pool(2000))
    assert torch.allclose(drawn.sum(1), torch.ones(2000), atol=1e-5)
    assert torch.allclose(drawn.mean(0), torch.full((3,), 1 / 3), atol=0.02)
    assert float(drawn.std()) > 0.1
    assert {"uniform", "random", "examples"} <= set(weightings())
    with pytest.raises(FedstillError, match="did you mean 'uniform'"):
        make_weighting("unifrom", scene)


def test_equal_weights_take_no_memory():
    """Two hundred teachers over a large pool: the weights are one number, not one for each teacher and sample."""
    samples = Samples(torch.zeros(1, 2).expand(1000, 2))
    table = ensemble_table(
        teach([Reads()] * 20), samples, make_weighting("uniform", WeightingContext(teach([Reads()] * 20), torch.Generator()))
    )
    assert table.weights.shape == (1000, 20)
    assert table.weights.unique().tolist() == pytest.approx([1 / 20])
    assert table.weights.untyped_storage().nbytes() == 4


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_the_memory_of_predictions_does_not_grow_with_the_pool():
    """Small results among large temporaries once kept the allocator from using their memory again: 130 MB for this pool."""

    def resident() -> float:
        return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))

    network = build("mlp", classes=10, shape=(3, 32, 32), seed=0)
    samples = Samples(torch.zeros(1, 3, 32, 32, dtype=torch.uint8).expand(40_000, -1, -1, -1))
    predict_logits(network, Samples(samples.x[:640]))
    before = resident()
    assert predict_logits(network, samples).shape == (40_000, 10)
    assert resident() - before < 40
