"""Membership inference finds the members of an overfitted model, and none where there are none."""

from __future__ import annotations

import math

import pytest
import torch

from fedstill.audit.membership import lira_attack, lira_scores, loss_attack, matched
from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.models import build
from fedstill.models.network import Network
from fedstill.training.fit import fit
from fedstill.training.options import Local, Optimizer

LOCAL = Local(epochs=60, batch_size=16, optimizer=Optimizer(lr=0.1, momentum=0.9))


def random_samples(count: int, seed: int) -> Samples:
    """Inputs whose labels mean nothing: a model can only learn them by heart."""
    rng = torch.Generator().manual_seed(seed)
    return Samples(torch.randn(count, 1, 4, 4, generator=rng), torch.arange(count) % 2)


def fresh(seed: int) -> Network:
    return build("mlp", classes=2, shape=(1, 4, 4), seed=seed)


def trained(samples: Samples) -> Network:
    network = fresh(7)
    fit(network, samples, LOCAL, rng=torch.Generator().manual_seed(0))
    return network.eval()


def test_members_of_an_overfitted_model_are_recognised() -> None:
    members, others = matched(random_samples(40, 0), random_samples(40, 1), 100, 0)
    network = trained(members)
    loss = loss_attack(network, members, others)
    ratio = lira_attack(network, members, others, fresh, LOCAL, shadows=4)
    assert loss.auc > 0.7
    assert loss.recognises
    assert ratio.auc > 0.7
    assert ratio.recognises
    again = lira_attack(network, members, others, fresh, LOCAL, shadows=4)
    assert again.members.equal(ratio.members)
    assert again.others.equal(ratio.others)


def test_a_model_trained_on_other_data_has_no_members_here() -> None:
    members, others = matched(random_samples(200, 0), random_samples(200, 1), 400, 0)
    network = trained(random_samples(40, 2))
    loss = loss_attack(network, members, others)
    assert abs(loss.auc - 0.5) < 3 * loss.error
    assert loss.error < 0.03


def test_the_likelihood_ratio_is_that_of_two_normal_distributions() -> None:
    """Two shadows a side and sample: means 3 and 1 (seen), 0 and -1 (not); pooled variances 2 and 0.5, of two samples each."""
    inside = torch.tensor([[True, True], [True, True], [False, False], [False, False]])
    shadows = torch.tensor([[4.0, 2.0], [2.0, 0.0], [0.5, -0.5], [-0.5, -1.5]], dtype=torch.float64)
    target = torch.tensor([3.0, -1.0], dtype=torch.float64)
    seen = torch.distributions.Normal(torch.tensor([3.0, 1.0], dtype=torch.float64), math.sqrt(2.0))
    unseen = torch.distributions.Normal(torch.tensor([0.0, -1.0], dtype=torch.float64), math.sqrt(0.5))
    torch.testing.assert_close(lira_scores(target, shadows, inside), seen.log_prob(target) - unseen.log_prob(target))


def test_too_few_samples_and_odd_shadows_are_refused_in_one_line() -> None:
    few = random_samples(4, 0)
    with pytest.raises(FedstillError, match="at least 10 are needed"):
        matched(few, few, 100, 0)
    some = random_samples(20, 0)
    with pytest.raises(FedstillError, match="come in pairs"):
        lira_attack(fresh(0), some, some, fresh, LOCAL, shadows=3)
