"""FADA: who ascends and who descends, what travels, and attention."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fedstill.algorithm import Reply, Round
from fedstill.algorithms.fada import (
    Critics,
    FADAOptions,
    attention,
    critic_loss,
    feature_loss,
    mutual_information,
    within_clusters,
)
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, clone
from fedstill.models.predict import apply
from fedstill.run.loop import run
from tests.algorithms.adaptation import algorithm_of, exchange, tiny

SMALL = {"sync_every": 2, "width": 16, "attended": 64}


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def features() -> tuple[torch.Tensor, torch.Tensor]:
    """Two branches that say the same."""
    torch.manual_seed(0)
    one = torch.randn(256, 4)
    return one, one + 0.1 * torch.randn(256, 4)


def test_the_estimator_ascends_and_finds_the_shared_information():
    torch.manual_seed(0)
    critics, (f_di, f_ds) = Critics(4, 4, 2, 32), features()
    step = torch.optim.Adam(critics.judges(), 5e-3)
    y, found = torch.zeros(256, dtype=torch.long), []
    for _ in range(150):
        found.append(float(mutual_information(critics.information, f_di, f_ds, rng()).detach()))
        step.zero_grad()
        critic_loss(critics, f_di, f_di, f_ds, f_di, y, rng()).backward()
        step.step()
    assert found[0] == pytest.approx(0, abs=0.2)
    assert found[-1] > 1.0  # the two branches are nearly the same


def test_features_descend_the_information_that_the_estimator_found():
    torch.manual_seed(0)
    critics, (f_di, f_ds) = Critics(4, 4, 2, 32), features()
    step = torch.optim.Adam(critics.information.parameters(), 5e-3)
    for _ in range(150):
        step.zero_grad()
        (-mutual_information(critics.information, f_di, f_ds, rng())).backward()
        step.step()
    moving = f_ds.clone().requires_grad_()
    only = FADAOptions(align=0, entropy=0, reconstruction=0, information=1.0)
    loss = feature_loss(critics, f_di, f_di, moving, only, rng())
    before = float(loss.detach())
    [gradient] = torch.autograd.grad(loss, moving)
    after = mutual_information(critics.information, f_di, (moving - 20 * gradient).detach(), rng())
    assert before > 1.0
    assert float(after.detach()) < before


def test_critics_learn_on_features_that_are_not_theirs_to_change():
    torch.manual_seed(0)
    critics, f, y = Critics(4, 4, 2, 8), torch.randn(6, 4), torch.zeros(6, dtype=torch.long)
    critic_loss(critics, f, f, f, f, y, rng()).backward()
    assert all(p.grad is not None for p in critics.judges())
    assert all(p.grad is None for p in critics.helpers())


def test_the_alignment_terms_by_hand():
    critics, f, y = Critics(3, 3, 4, 8), torch.zeros(5, 3), torch.zeros(5, dtype=torch.long)
    for parameter in critics.parameters():
        torch.nn.init.zeros_(parameter)
    log2, log4 = 0.693147, 1.386294
    # an identifier that knows nothing: log 2 for either side; a class identifier that knows nothing: log 4; no information
    assert critic_loss(critics, f, f, f, f, y, rng()).item() == pytest.approx(2 * log2 + log4, abs=1e-5)
    options = FADAOptions(align=1, entropy=1, information=1, reconstruction=1)
    assert feature_loss(critics, f, f, f, options, rng()).item() == pytest.approx(log2 + log4, abs=1e-5)
    assert feature_loss(critics, f + 2, f, f, options, rng()).item() == pytest.approx(log2 + log4 + 4, abs=1e-5)


def test_the_target_is_aligned_as_strongly_as_the_option_says():
    """Fooling the identifiers is weighed against the sources' cross-entropy: twice the weight, twice the way; none, no way."""

    def moved(align: float) -> float:
        algorithm = algorithm_of(tiny("fada", **{**SMALL, "align": align}))
        task = algorithm.task
        network = task.networks.load(algorithm.prototype, task.networks.initial(algorithm.prototype), role="student")
        before = {name: p.detach().clone() for name, p in network.named_parameters()}
        inside = apply(network.backbone, network, task.pool.samples).shape[1]
        identifier = clone(algorithm.critics(network, inside, "a").domain.state_dict())
        reply = Reply("a", "a", algorithm.prototype, 1, lambda: Message.of(domain=identifier))
        algorithm.align(network, [reply], [1.0], Round(1, 2, task.seed, phase="sync-0"))
        return max(float((p.detach() - before[name]).abs().max()) for name, p in network.named_parameters())

    assert moved(0.0) == 0.0
    assert moved(2e-4) == pytest.approx(2 * moved(1e-4), rel=0.05)


def test_a_synchronisation_does_not_interrupt_momentum(tmp_path: Path):
    """Batches that are synchronised one by one are steps of one training, not as many first steps."""
    ends = []
    for momentum in (0.0, 0.9):
        config = tiny("fada", rounds=1, **{**SMALL, "sync_every": 1})
        local = config.local.model_copy(update={"optimizer": config.local.optimizer.model_copy(update={"momentum": momentum})})
        done = run(config.model_copy(update={"local": local}), tmp_path / str(momentum))
        ends.append(done.server.models["cnn-small"]["head.weight"])
    assert not torch.equal(*ends)


@pytest.mark.parametrize(("name", "remembers"), [("sgd", {"momentum_buffer"}), ("adam", {"exp_avg", "exp_avg_sq", "step"})])
def test_a_source_keeps_all_that_its_optimiser_remembers(name: str, remembers: set[str]):
    config = tiny("fada", rounds=1, **{**SMALL, "sync_every": 1})
    changed = config.local.optimizer.model_copy(update={"name": name, "momentum": 0.9})
    algorithm = algorithm_of(config.model_copy(update={"local": config.local.model_copy(update={"optimizer": changed})}))
    memories: dict[str, Message] = {}
    exchange(algorithm, algorithm.start(), Round(1, 2, 0, phase="sync-0"), memories)
    [first, *_] = memories.values()
    assert {key.split(" ")[0] for key in first.group("optimizer")} == remembers


def test_attention_prefers_the_source_that_tightens_clusters():
    torch.manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]).repeat_interleave(20, 0)
    loose, tight = centres + torch.randn(60, 2), centres + 0.1 * torch.randn(60, 2)
    spreads = [within_clusters(x, 3, rng()) for x in (loose, tight)]
    assert spreads[1] == pytest.approx(
        float(sum((tight[i : i + 20] - tight[i : i + 20].mean(0)).square().sum() for i in (0, 20, 40))), rel=1e-3
    )
    weights = attention(spreads[0], [spreads[0], spreads[1]])
    assert weights[1] > 0.9
    assert float(weights.sum()) == pytest.approx(1)


def test_synchronisation_every_n_batches():
    algorithm = algorithm_of(tiny("fada", **{**SMALL, "sync_every": 2}))
    assert list(algorithm.phases(1)) == ["sync-0", "sync-1"]  # 96 samples in batches of 32
    assert [algorithm.steps(phase) for phase in algorithm.phases(1)] == [2, 1]
    assert len(algorithm_of(tiny("fada")).phases(1)) == 3  # the paper: every batch


def test_only_features_of_the_target_travel():
    algorithm = algorithm_of(tiny("fada", **SMALL))
    server, round = algorithm.start(), Round(1, 1, 0, "sync-0")
    message = algorithm.instruct(server, "mnist-0", round)
    assert message.groups() == ["model", "target"]
    assert message.group("target")["features"].shape == (64, 64)  # two batches of 32, the backbone's width
    [reply, _] = exchange(algorithm, server, round, {})
    assert reply.message.groups() == ["model", "domain"]  # the critics but the domain identifier stay


def test_a_malformed_identifier_is_refused():
    algorithm = algorithm_of(tiny("fada", **SMALL))
    server, round = algorithm.start(), Round(1, 1, 0, "sync-0")
    [reply, _] = exchange(algorithm, server, round, {})
    assert algorithm.screen(server, "optdigits-0", reply.message) is None
    assert "wrong shape" in str(
        algorithm.screen(server, "optdigits-0", reply.message.with_parts(domain={"0.bias": torch.ones(3)}))
    )


def test_it_runs(tmp_path: Path):
    history = run(tiny("fada", model={"name": "cnn-small", "options": {"bottleneck": 16}}, **SMALL), tmp_path).history
    assert len(history) == 2
    assert sum(history[-1]["weights"].values()) == pytest.approx(1)


def test_who_fools_whom_has_its_sign():
    """DI says how surely features are a source's. Sources want to be taken for the target, the target for a source."""
    critics, y = Critics(3, 3, 4, 8), torch.zeros(5, dtype=torch.long)
    for parameter in critics.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():  # the log-odds are the first feature
        critics.domain[0].weight[0, 0] = critics.domain[2].weight[0, 0] = 1.0
    source, target, zero = torch.full((5, 3), 2.0), torch.full((5, 3), 5.0), torch.zeros(5, 3)
    softplus = lambda z: math.log(1 + math.exp(z))
    told = critic_loss(critics, source, zero, zero, target, y, rng()).item()
    assert told == pytest.approx(softplus(-2) + softplus(5) + math.log(4), abs=1e-5)
    only = FADAOptions(align=1, entropy=0, information=0, reconstruction=0)
    assert feature_loss(critics, source, zero, zero, only, rng()).item() == pytest.approx(softplus(2), abs=1e-5)

    algorithm = algorithm_of(tiny("fada", **{**SMALL, "align": 1.0}))
    task = algorithm.task
    network = task.networks.load(algorithm.prototype, task.networks.initial(algorithm.prototype), role="student")
    identifier = algorithm.critics(network, algorithm.backbone_width, "a").domain

    def taken_for_a_source() -> float:
        network.train()
        with torch.no_grad():
            return float(identifier(network.backbone(network.normalise(task.pool.samples.x))).mean())

    before = taken_for_a_source()
    reply = Reply("a", "a", algorithm.prototype, 1, lambda: Message.of(domain=clone(identifier.state_dict())))
    algorithm.align(network, [reply], [1.0], Round(1, 2, task.seed, phase="sync-0"))
    assert taken_for_a_source() > before + 0.01


def test_an_identifier_for_other_features_is_refused():
    algorithm = algorithm_of(tiny("fada", **SMALL))
    server = algorithm.start()
    [reply, _] = exchange(algorithm, server, Round(1, 1, 0, "sync-0"), {})
    for weight in (torch.ones(16, 3), torch.tensor(1.0)):
        other = {**reply.part("domain"), "0.weight": weight}
        assert "wrong shape" in str(algorithm.screen(server, "optdigits-0", reply.message.with_parts(domain=other)))


def test_features_of_the_target_are_taken_without_dropout():
    algorithm = algorithm_of(tiny("fada", **SMALL))
    server, round = algorithm.start(), Round(1, 2, 0, phase="sync-0")
    plain = algorithm.instruct(server, "mnist-0", round).group("target")["features"]
    algorithm.task.networks.load("cnn-small", server.models["cnn-small"], role="student").fc.append(torch.nn.Dropout(0.5))
    assert torch.equal(algorithm.instruct(server, "mnist-0", round).group("target")["features"], plain)


def test_a_frozen_backbone_is_refused_in_one_line(tmp_path: Path):
    with pytest.raises(FedstillError, match='all of it is frozen: set model.train = "last:2" or "all"'):
        run(tiny("fada", model={"name": "resnet8", "train": "head"}, **SMALL), tmp_path)
