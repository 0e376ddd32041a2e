"""Eq. 7 by hand, and Theorem 1: optimal discriminators of known Gaussian domains."""

import math

import pytest
import torch
from torch import nn

from fedstill.algorithm import Reply
from fedstill.core.message import Message
from fedstill.data.samples import Samples
from fedstill.fusion.ensemble import ensemble_table
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.weightings import WeightingContext, make_weighting
from fedstill.fusion.weightings.counts import class_weights
from fedstill.fusion.weightings.discriminator import DiscriminatorOptions, domain_score
from fedstill.local.adversarial import adversarial_loss
from fedstill.models.network import Network


class Plain(Network):
    """Features are the inputs themselves."""

    def __init__(self, width, classes, weight):
        super().__init__()
        self.feature_dim, self.classes = width, classes
        self.head = nn.Linear(width, classes, bias=False)
        self.head.weight.data = torch.as_tensor(weight, dtype=torch.float32)

    def backbone(self, x):
        return x


def teachers(heads, discriminators, counts=None):
    made = []
    for k, (head, (weight, bias)) in enumerate(zip(heads, discriminators, strict=True)):
        network = Plain(len(weight), len(head), head)
        message = Message.of(
            discriminator={"head.weight": torch.tensor([weight]), "head.bias": torch.tensor([bias])},
            counts={"labels": torch.tensor(counts[k] if counts else [1] * len(head))},
            samples=1,
        )
        reply = Reply(str(k), "d", "p", 1, lambda message=message: message)
        made.append(Teacher(str(k), lambda network=network: network, reply))
    return made


def logit(f):
    return math.log(f / (1 - f))


def test_eq7_and_eq8_by_hand():
    # two teachers, one sample x = (1,): f_1 = 0.8, f_2 = 0.2; they say (1/2, 1/2) and (1/4, 3/4)
    heads = [[[0.0], [0.0]], [[0.0], [math.log(3.0)]]]
    both = teachers(heads, [([0.0], logit(0.8)), ([logit(0.2)], 0.0)])
    weighting = make_weighting("discriminator", WeightingContext(both, torch.Generator()))
    table = ensemble_table(both, Samples(torch.ones(1, 1)), weighting, space="probabilities")
    assert table.weights[0].tolist() == pytest.approx([0.8, 0.2], abs=1e-6)
    assert table.targets[0].tolist() == pytest.approx([0.8 * 0.5 + 0.2 * 0.25, 0.8 * 0.5 + 0.2 * 0.75], abs=1e-6)


def test_eq7_divides_by_the_sum_and_not_by_a_softmax():
    both = teachers([[[0.0]], [[0.0]]], [([0.0], logit(0.9)), ([0.0], logit(0.3))])
    weighting = make_weighting("discriminator", WeightingContext(both, torch.Generator()))
    table = ensemble_table(both, Samples(torch.ones(1, 1)), weighting, space="probabilities")
    assert table.weights[0].tolist() == pytest.approx([0.75, 0.25], abs=1e-6)


def test_theorem1_gaussian_domains():
    """Three clients with N(-2, 1), N(0, 1), N(2, 1); the generator is at its optimum, the mixture p. Discriminators with one free
    value a bin, trained by Eq. 2 on samples, give weights near p_k/(p_k + p), normalised."""
    means, edges = (-2.0, 0.0, 2.0), torch.linspace(-4, 4, 17)
    width = len(edges) - 1
    rng = torch.Generator().manual_seed(0)
    onehot = lambda x: nn.functional.one_hot(torch.bucketize(x.clamp(-3.999, 3.999), edges) - 1, width).float()
    n = 30_000
    draws = [torch.randn(n, generator=rng) + mean for mean in means]
    mixture = torch.cat([torch.randn(n, generator=rng) + mean for mean in means])
    discriminators = []
    for own in draws:
        pretended = mixture[torch.randperm(len(mixture), generator=rng)[:n]]  # as many generated samples as real ones
        head = nn.Linear(width, 1)
        solver = torch.optim.LBFGS(head.parameters(), max_iter=200, tolerance_grad=1e-9)
        real, generated = onehot(own), onehot(pretended)

        def closure(head=head, solver=solver, real=real, generated=generated):
            solver.zero_grad()
            loss = adversarial_loss(head(real).squeeze(1), head(generated).squeeze(1))
            loss.backward()
            return loss

        solver.step(closure)
        discriminators.append((head.weight.detach()[0].tolist(), head.bias.item()))
    trio = teachers([torch.zeros(2, width).tolist()] * 3, discriminators)
    weighting = make_weighting("discriminator", WeightingContext(trio, torch.Generator()))
    got = ensemble_table(trio, Samples(torch.eye(width)), weighting, space="probabilities").weights
    cdf = torch.distributions.Normal(torch.tensor(means)[:, None], 1.0).cdf(edges)
    p_k = cdf[:, 1:] - cdf[:, :-1]
    p_k[:, 0] += cdf[:, 0]
    p_k[:, -1] += 1 - cdf[:, -1]
    f = p_k / (p_k + p_k.mean(0))  # Theorem 1
    assert torch.allclose(got.T, f / f.sum(0), atol=0.02)


def test_class_counts_weigh_teachers_by_what_they_know():
    heads = [[[9.0], [0.0]], [[9.0], [0.0]]]  # both are sure of class 0
    both = teachers(heads, [([0.0], 0.0)] * 2, counts=[[30, 5], [10, 95]])
    weighting = make_weighting("counts", WeightingContext(both, torch.Generator()))
    table = ensemble_table(both, Samples(torch.ones(1, 1)), weighting, space="probabilities")
    assert table.weights[0].tolist() == pytest.approx([0.75, 0.25], abs=1e-3)
    assert class_weights(torch.tensor([[30, 5], [10, 95]])).tolist() == [[0.75, pytest.approx(0.05)], [0.25, pytest.approx(0.95)]]


def test_odds_are_the_ratio_of_densities_where_eq7_only_orders_them():
    # Theorem 1: D_k = p_k / (p_k + p), whose odds are p_k / p
    p_k, p = torch.tensor([0.8, 0.1, 0.001]), 0.3
    d = torch.logit(p_k / (p_k + p))
    odds, printed = (domain_score(d, DiscriminatorOptions(score=score)) for score in ("odds", "probability"))
    torch.testing.assert_close(odds / odds.sum(), p_k / p_k.sum(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(printed, p_k / (p_k + p), atol=1e-6, rtol=1e-4)
    # saturated discriminators: Eq. 7 counts them alike, their odds do not
    sure = torch.tensor([9.0, 6.0])
    alike, apart = (domain_score(sure, DiscriminatorOptions(score=score)) for score in ("probability", "odds"))
    assert float(alike[0] / alike.sum()) < 0.501
    assert float(apart[0] / apart.sum()) > 0.9
    assert torch.isfinite(domain_score(torch.tensor([-500.0, 500.0]), DiscriminatorOptions(score="odds"))).all()


def test_temperature_and_floor_by_hand():
    d = torch.tensor([2.0, -4.0])
    warm = domain_score(d, DiscriminatorOptions(temperature=2.0))
    torch.testing.assert_close(warm, torch.sigmoid(torch.tensor([1.0, -2.0])))
    assert domain_score(d, DiscriminatorOptions(floor=0.2)).tolist()[1] == pytest.approx(0.2)
