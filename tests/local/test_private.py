"""Sample-level differential privacy: DP-SGD by hand, its ledger over rounds, and what may leave a client."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedstill
from fedstill.algorithm import Client
from fedstill.algorithms import create
from fedstill.core.accounting import SPENT, Ledger
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.local.private import released
from fedstill.local.terms import distil_from, model_contrastive, proximal
from fedstill.models import build
from fedstill.models.network import Network
from fedstill.run.configuration import resolve
from fedstill.task import Task
from fedstill.training.fit import Batch, fit
from fedstill.training.options import Local, Optimizer
from fedstill.training.private import DPSGD, check_network, check_sums, poisson_batches, privatise, with_sample_gradients

SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"domains": ["embedded:mnist"], "limit": 90, "test_limit": 30, "image_size": 12, "holdout": 0.2},
    "clients": {"per_domain": 3},
    "model": {"name": "mlp", "options": {"hidden": [8]}},
    "local": {"batch_size": 8, "steps": 2, "optimizer": {"name": "sgd", "lr": 0.1}},
    "engine": {"threads": 1},
    "privacy": {"sample": {"noise": 1.0}},
}
LOCAL = Local(batch_size=64, steps=1, optimizer=Optimizer(lr=0.5))  # more than there are samples: every batch is all of them


def tree(**changes: Any) -> dict[str, Any]:
    return {**SMALL, **changes}


def pictures(n: int = 6) -> Samples:
    rng = stream(0, "pictures")
    return Samples(torch.randint(0, 255, (n, 1, 8, 8), generator=rng, dtype=torch.uint8), torch.arange(n) % 3)


def network(name: str = "cnn-small", **options: Any) -> Network:
    return build(name, classes=3, shape=(1, 8, 8), norm="batch" if name == "mlp" else "group", seed=1, **options)


def weights(net: Network) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def private(noise: float, norm: float, seed: int = 3) -> DPSGD:
    return DPSGD(noise, norm, stream(seed, "noise"))


def hand_worked(net: Network, data: Samples, norm: float) -> torch.Tensor:
    """The sum over the samples of g_i min(1, C / |g_i|), one backward pass at a time."""
    assert data.y is not None
    total = torch.zeros_like(weights(net))
    for x, y in zip(net.normalise(data.x), data.y, strict=True):
        slopes = torch.autograd.grad(F.cross_entropy(net(x[None]), y[None]), list(net.parameters()))
        g = torch.cat([slope.flatten() for slope in slopes])
        total += g * min(1.0, norm / float(g.norm()))
    return total


@pytest.mark.parametrize("norm", [0.05, 1e6])
@pytest.mark.parametrize("name", ["cnn-small", "resnet8", "mlp"])
def test_a_step_is_the_clipped_sum_by_hand(name: str, norm: float) -> None:
    """Eq. 1 without noise. With cnn and resnet this fails if Opacus reads activations in the wrong memory order."""
    net, data = network(name), pictures()
    before, expected = weights(net), hand_worked(net, data, norm)
    done = fit(net, data, LOCAL, rng=stream(0, "fit"), private=private(0.0, norm))
    assert done.steps == 1
    assert torch.allclose(weights(net), before - 0.5 * expected / len(data), atol=1e-6)


class Sequences(nn.Module):
    """A linear layer on every position of a sequence, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.twice, self.out = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.twice(torch.tanh(self.twice(torch.tanh(self.each(x)).mean(1)))))  # type: ignore[no-any-return]


def test_linear_layers_by_hand() -> None:
    """On sequences, used twice, and with gradients kept as factors: the clipped sum is that of one sample after the other."""
    torch.manual_seed(0)
    net, x, y = Sequences(), torch.randn(7, 3, 4), torch.arange(7) % 2
    named = list(net.named_parameters())
    expected = [torch.zeros_like(p) for _, p in named]
    for one, label in zip(x, y, strict=True):
        slopes = torch.autograd.grad(F.cross_entropy(net(one[None]), label[None]), list(net.parameters()))
        size = math.sqrt(sum(float(slope.square().sum()) for slope in slopes))
        expected = [total + slope * min(1.0, 0.3 / size) for total, slope in zip(expected, slopes, strict=True)]
    with with_sample_gradients(net):
        F.cross_entropy(net(x), y).backward()
        check_sums(named, len(x))
        privatise(list(net.parameters()), private(0.0, 0.3), 2.0)
    for (_, parameter), total in zip(named, expected, strict=True):
        torch.testing.assert_close(parameter.grad, total / 2.0)


def test_rows_that_are_not_samples_are_refused() -> None:
    """Their gradients add up, but what is clipped would be a part of a sample."""
    net, x = nn.Linear(4, 2), torch.randn(3, 5, 4)
    with with_sample_gradients(net):
        net(x.flatten(0, 1)).square().sum(1).mean().backward()
        with pytest.raises(FedstillError, match="15 rows of 3 samples"):
            check_sums(list(net.named_parameters()), len(x))


def test_a_step_adds_noise_of_the_stated_size() -> None:
    """Eq. 1: the noise is the stream's, times noise and C, divided by the expected size of a batch."""
    data, noise, norm = pictures(), 2.0, 0.05
    net = network("mlp", hidden=[5])
    before, expected = weights(net), hand_worked(net, data, norm)
    fit(net, data, LOCAL, rng=stream(0, "fit"), private=private(noise, norm))
    rng = stream(3, "noise")
    torch.rand(len(data), generator=rng, dtype=torch.float64)  # who is in the batch
    drawn = torch.cat([torch.randn(p.shape, generator=rng).flatten() for p in net.parameters()])
    assert torch.allclose(weights(net), before - 0.5 * (expected + noise * norm * drawn) / len(data), atol=1e-6)


def test_without_noise_and_clipping_it_is_plain_training() -> None:
    local = Local(batch_size=64, steps=5, optimizer=Optimizer(lr=0.1, momentum=0.9, weight_decay=0.01))
    plain, noised = network(), network()
    fit(plain, pictures(), local, rng=stream(0, "fit"))
    fit(noised, pictures(), local, rng=stream(0, "fit"), private=private(0.0, 1e9))
    assert torch.allclose(weights(plain), weights(noised), atol=1e-5)
    for module in noised.modules():  # nothing is left behind in a network that is used again
        assert not module._forward_hooks
        assert "activations" not in vars(module)


def test_terms_of_the_objective() -> None:
    """Per-sample terms are clipped with the loss, data-free ones are added outside, and all agree with plain training."""
    data, local = pictures(), Local(batch_size=64, steps=2, optimizer=Optimizer(lr=0.1))
    other, third = network(), build("cnn-small", classes=3, shape=(1, 8, 8), norm="group", seed=5)
    anchor = {name: p.detach() + 0.1 for name, p in network().named_parameters()}
    made = lambda: [proximal(anchor, 0.7), model_contrastive(other, [third], 0.5, 0.5), distil_from(third, 0.3)]
    plain, noised = network(), network()
    fit(plain, data, local, rng=stream(0, "fit"), terms=made())
    fit(noised, data, local, rng=stream(0, "fit"), terms=made(), private=private(0.0, 1e9))
    assert torch.allclose(weights(plain), weights(noised), atol=1e-5)
    # with gradients clipped to almost nothing, the proximal term alone moves the weights: w - lr mu (w - anchor)
    pulled = network()
    start = weights(pulled)
    fit(pulled, data, LOCAL, rng=stream(0, "fit"), terms=[proximal(anchor, 0.7)], private=private(0.0, 1e-9))
    assert torch.allclose(weights(pulled), start + 0.5 * 0.7 * 0.1, atol=1e-6)


def test_terms_that_couple_samples_are_refused() -> None:
    def coupled(batch: Batch) -> torch.Tensor:
        return batch.logits.var()

    with pytest.raises(FedstillError, match="couples samples"):
        fit(network(), pictures(), LOCAL, rng=stream(0, "fit"), terms=[coupled], private=private(1.0, 1.0))
    with pytest.raises(FedstillError, match="another loss"):
        fit(network(), pictures(), LOCAL, rng=stream(0, "fit"), base_loss=F.l1_loss, private=private(1.0, 1.0))


def test_poisson_batches_take_each_sample_with_the_rate() -> None:
    found = list(poisson_batches(50, 10, 2000, stream(0, "poisson")))
    sizes = torch.tensor([len(index) for index in found], dtype=torch.float64)
    assert float(sizes.mean()) == pytest.approx(10, abs=0.3)
    assert float(sizes.var()) == pytest.approx(50 * 0.2 * 0.8, rel=0.15)  # binomial, not fixed
    often = torch.bincount(torch.cat(found), minlength=50) / 2000
    assert float((often - 0.2).abs().max()) < 0.05


def test_an_empty_batch_takes_a_step_of_noise() -> None:
    net, local = network("mlp", hidden=[5]), Local(batch_size=1, steps=1, optimizer=Optimizer(lr=0.5))
    before, rng = weights(net), stream(8, "noise")
    assert not bool((torch.rand(200, generator=rng, dtype=torch.float64) < 1 / 200).any())  # nobody is in the batch
    fit(net, pictures(200), local, rng=stream(0, "fit"), private=private(2.0, 0.3, seed=8))
    drawn = torch.cat([torch.randn(p.shape, generator=rng).flatten() for p in net.parameters()])
    assert torch.allclose(weights(net), before - 0.5 * 2.0 * 0.3 * drawn, atol=1e-6)  # one sample is expected


def test_a_broken_gradient_is_left_out() -> None:
    data = Samples(torch.tensor([[1.0, 2.0], [math.inf, 1.0], [0.5, 1.0]]), torch.tensor([0, 1, 1]))
    net = build("mlp", classes=2, shape=(2,), hidden=[4], seed=0)
    fit(net, data, LOCAL, rng=stream(0, "fit"), private=private(0.0, 1.0))
    assert bool(torch.isfinite(weights(net)).all())


def test_a_network_whose_samples_are_mixed_is_refused() -> None:
    images = pictures(2).x
    with pytest.raises(FedstillError, match='BatchNorm.*set model.norm = "group"') as found:
        check_network(build("cnn-small", classes=3, shape=(1, 8, 8), norm="batch", seed=0), "cnn-small", images)
    assert found.value.setting == 'model.norm="group"'
    texts = torch.ones(2, 6, dtype=torch.int64)
    with pytest.raises(FedstillError, match="dropout = 0"):
        check_network(build("text-small", classes=3, shape=(6,), norm="batch", seed=0), "text-small", texts)


# -- runs ------------------------------------------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {"distillation": {"steps": 2}}
RUNS = ["fedavg", "fedprox", "fedavgm", "moon", "feddf", "fedbe", "fedrad", "fedmd", "cronus", "dafkd"]
REFUSED = {
    "fedd3a": "'projection'",
    "fedvirtual": "'statistics'",
    "fedftg": "'counts'",
    "fedma": "'counts'",
    "fedgen": "'counts'",
    "fd": "is not for fd",
    "ceiling": "is not for",
}


def options(name: str) -> dict[str, Any]:
    return {"name": name, **(SHORT if name in ("feddf", "fedbe", "fedrad", "dafkd") else {})}


@pytest.mark.parametrize("name", RUNS)
def test_systems_that_train_privately(name: str, tmp_path: Path) -> None:
    result = fedstill.run(tree(algorithm=options(name)), tmp_path)
    told = result.history[-1]["privacy"]["sample"]
    sizes = {info.id: info.samples for info in result.task.clients.values()}
    for client, epsilon in told["clients"].items():
        spent = Ledger().gaussian(1.0, 8 / sizes[client], 2 * 2)  # two rounds of two steps
        assert epsilon == pytest.approx(spent.epsilon(1e-5))
    assert told["epsilon"] == max(told["clients"].values())
    assert result.summary["privacy"]["sample"] == told
    assert all("loss" not in line["sent"] for line in result.history)


@pytest.mark.parametrize("name", ["kd3a", "kdcl"])
def test_systems_with_a_target_train_privately(name: str, tmp_path: Path) -> None:
    data = {**SMALL["data"], "holdout": 0.0, "target": "embedded:noisy"}
    result = fedstill.run(tree(algorithm={"name": name}, data=data, rounds=1), tmp_path)
    assert result.summary["privacy"]["sample"]["epsilon"] > 0


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_systems_that_are_refused(name: str, why: str) -> None:
    with pytest.raises(FedstillError, match=why):
        create(Task(resolve(tree(algorithm={"name": name}))))


@pytest.mark.parametrize("name", ["shot", "fada"])
def test_systems_with_a_target_that_are_refused(name: str) -> None:
    data = {**SMALL["data"], "holdout": 0.0, "target": "embedded:noisy"}
    with pytest.raises(FedstillError, match=f"is not for {name}"):
        create(Task(resolve(tree(algorithm={"name": name}, data=data))))


def test_noised_reports_share_the_budget(tmp_path: Path) -> None:
    """With both, the ledger holds steps and reports, and a stated epsilon is for the two together."""
    mechanisms = {"sample": {"epsilon": 6.0}, "reports": {"noise": 8.0}}
    chosen = {"name": "fedd3a", "line": False, "distillation": {"steps": 2}}
    result = fedstill.run(tree(algorithm=chosen, privacy=mechanisms), tmp_path)
    told = result.summary["privacy"]["sample"]["clients"]
    assert all(5.9 < epsilon <= 6.0 for epsilon in told.values())


def test_a_budget_holds_and_a_resume_is_exact(tmp_path: Path) -> None:
    budget = tree(rounds=3, privacy={"sample": {"epsilon": 4.0}}, algorithm={"name": "moon"})
    whole = fedstill.run(budget, tmp_path / "whole")
    epsilons = [line["privacy"]["sample"]["epsilon"] for line in whole.history]
    assert sorted(epsilons) == epsilons
    assert 3.9 < epsilons[-1] <= 4.0

    class Stopped(Exception):
        pass

    class Stop(fedstill.run.listener.Listener):  # type: ignore[name-defined,misc]
        def round(self, line: Any) -> None:
            if line["round"] == 2:
                raise Stopped

    with pytest.raises(Stopped):
        fedstill.run(budget, tmp_path / "parts", listeners=[Stop()])
    again = fedstill.run(budget, tmp_path / "parts", resume=True)
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True))
    assert again.summary["privacy"] == whole.summary["privacy"]


def test_a_spent_budget_stops_the_client_and_not_the_run(tmp_path: Path) -> None:
    """Noise and budget are both set. When the last client has stopped, the model stays as it is."""
    config = tree(rounds=4, privacy={"sample": {"noise": 1.0, "epsilon": 7.0}})
    result = fedstill.run(config, tmp_path)
    assert len(result.history) == 4
    reasons = [dropped["reason"] for line in result.history for dropped in line["dropped"]]
    assert reasons
    assert all(SPENT in reason for reason in reasons)
    assert result.summary["privacy"]["sample"]["epsilon"] <= 7.0
    assert result.history[-1]["accuracy"] is not None


def test_mistakes_are_one_line() -> None:
    for changes, why in [
        ({"privacy": {"sample": {}}}, "set epsilon, or noise"),
        ({"privacy": {"sample": {"epsilon": 0.01}}}, "no noise keeps"),
        ({"model": {"name": "cnn-small"}}, "BatchNorm"),
        ({"algorithm": {"name": "feddf", "line": {"judge": "clients"}}}, "verdicts on held-out samples"),
        ({"algorithm": {"name": "fedavg", "calibrate": True}}, "'statistics'"),
    ]:
        with pytest.raises(FedstillError, match=why):
            create(Task(resolve(tree(**changes))))


def test_the_gate_lets_nothing_else_out() -> None:
    system = create(Task(resolve(tree(algorithm={"name": "fedavg"}))))
    client = Client.of(system.task, next(iter(system.task.clients)), 1)
    model = {"w": torch.zeros(2)}
    with pytest.raises(FedstillError, match="not trained by DP-SGD"):
        released(system, client, Message.of(model=model, samples=3), Ledger())
    client.ledger = Ledger().gaussian(1.0)
    reply = released(system, client, Message.of(model=model, samples=3, loss=0.5), Ledger())
    assert reply.values == {"samples": 3, "epsilon": client.ledger.epsilon(1e-5)}
    with pytest.raises(FedstillError, match="'counts'"):
        released(system, client, Message.of(model=model, counts=model, samples=3), Ledger())
    with pytest.raises(FedstillError, match="'hardest'"):
        released(system, client, Message.of(model=model, samples=3, hardest=7), Ledger())


def test_secret_noise_differs_and_seeded_noise_repeats(tmp_path: Path) -> None:
    one = lambda name, **more: fedstill.run(tree(rounds=1, privacy={"sample": {"noise": 1.0, **more}}), tmp_path / name).model
    same = [torch.equal(a, b) for a, b in zip(one("a").parameters(), one("b").parameters(), strict=True)]
    other = [
        torch.equal(a, b) for a, b in zip(one("c", secret=True).parameters(), one("d", secret=True).parameters(), strict=True)
    ]
    assert all(same)
    assert not all(other)


def test_the_history_and_the_audit_state_epsilon(tmp_path: Path) -> None:
    from fedstill.audit.report import audit

    fedstill.run(tree(rounds=1), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    found = audit(tmp_path, attacks=())
    assert found.private
    assert f"{summary['privacy']['sample']['epsilon']:.3g}" in found.words[0]


@pytest.mark.parametrize("name", ["fedftg", "fedgen", "fedma", "fedvirtual"])
def test_systems_that_need_noised_reports_as_well(name: str, tmp_path: Path) -> None:
    mechanisms = {"sample": {"noise": 1.0}, "reports": {"noise": 5.0}}
    more: dict[str, Any] = {
        "fedftg": {"iterations": 1},
        "fedgen": {"steps": 2},
        "fedma": {"form": "one-shot"},
        "fedvirtual": SHORT,
    }[name]
    result = fedstill.run(tree(rounds=1, algorithm={"name": name, **more}, privacy=mechanisms), tmp_path)
    info = next(iter(result.task.clients.values()))
    spent = Ledger().gaussian(1.0, 8 / info.samples, 2).gaussian(5.0)  # two steps and one report
    assert result.summary["privacy"]["sample"]["clients"][info.id] == pytest.approx(spent.epsilon(1e-5))
