"""SHOT: its losses by hand, a classifier that stays frozen, several sources."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fedstill.algorithm import Client, Round, Server
from fedstill.algorithms import create
from fedstill.algorithms.shot import SHOTOptions, adapt, information_loss, pseudo_labels
from fedstill.core.errors import FedstillError
from fedstill.core.message import clone
from fedstill.models.predict import accuracy, predict_logits
from fedstill.run.loop import run
from tests.algorithms.adaptation import algorithm_of, tiny

SMALL = {"epochs": 1, "backbone_rate": 1.0}


def test_information_loss_by_hand():
    p = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    entropy = [-(0.9 * math.log(0.9) + 0.1 * math.log(0.1)), math.log(2)]
    together = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
    assert float(information_loss(p.log())) == pytest.approx(sum(entropy) / 2 - together, abs=1e-4)


def test_pseudo_labels_by_hand():
    # two clusters along the axes; the classifier is wrong about the third sample, which lies with the first two
    features = torch.tensor([[3.0, 0.0], [2.9, 0.1], [2.8, 0.0], [0.0, 3.0], [0.1, 3.0]])
    spoken = torch.tensor([[0.8, 0.2, 0.0], [0.9, 0.1, 0.0], [0.3, 0.7, 0.0], [0.1, 0.9, 0.0], [0.1, 0.8, 0.1]])
    assert pseudo_labels(features, spoken).tolist() == [0, 0, 0, 1, 1]


def test_a_class_that_nobody_predicts_is_never_assigned():
    rng = torch.Generator().manual_seed(0)
    features, spoken = torch.randn(40, 4, generator=rng), torch.rand(40, 3, generator=rng)
    spoken[:, 2] = 0.0
    assert set(pseudo_labels(features, spoken / spoken.sum(1, keepdim=True)).tolist()) == {0, 1}
    few = torch.tensor([[0.9, 0.1]] * 9 + [[0.1, 0.9]])
    assert pseudo_labels(features[:10], few, threshold=1).tolist() == [0] * 10


def test_the_classifier_stays_frozen_and_the_rest_learns():
    algorithm = algorithm_of(tiny("shot", model={"name": "cnn-small", "options": {"bottleneck": 16}}))
    task = algorithm.task
    network = task.networks.get("cnn-small")
    before = clone(network.state_dict())
    adapt(network, task.pool.samples, SHOTOptions(epochs=2), rng=torch.Generator().manual_seed(0))
    after = network.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("head."))
    assert not torch.equal(after["neck.0.weight"], before["neck.0.weight"])
    assert not torch.equal(after["body.0.weight"], before["body.0.weight"])


def test_a_frozen_backbone_leaves_the_bottleneck_to_adapt():
    frozen = {"name": "resnet8", "train": "head", "options": {"bottleneck": 16}}
    task = algorithm_of(tiny("shot", model=frozen)).task
    network = task.networks.get("resnet8")
    before = clone(network.state_dict())
    adapt(network, task.pool.samples, SHOTOptions(epochs=1), rng=torch.Generator().manual_seed(0))
    assert {name.split(".")[0] for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])} == {
        "neck"
    }
    bare = algorithm_of(tiny("shot", model={"name": "resnet8", "train": "head"})).task
    with pytest.raises(FedstillError, match="all of it is frozen: set model.options.bottleneck"):
        adapt(bare.networks.get("resnet8"), bare.pool.samples, SHOTOptions(epochs=1), rng=torch.Generator().manual_seed(0))


def test_adaptation_lowers_its_own_objective():
    task = algorithm_of(tiny("shot")).task
    network, pool = task.networks.get("cnn-small"), task.pool.samples

    def objective() -> float:
        network.train()  # the running statistics of an untrained network are no statistics
        with torch.no_grad():
            return float(information_loss(network(network.normalise(pool.x))))

    before = objective()
    adapt(network, pool, SHOTOptions(epochs=5, backbone_rate=1.0), rng=torch.Generator().manual_seed(0))
    assert objective() < before


def test_several_sources_are_a_sum_of_softmaxes(tmp_path: Path):
    done = run(tiny("shot", **SMALL), tmp_path)
    [test] = done.task.tests.values()
    total = torch.zeros(len(test), 10)
    assert set(done.server.parts) == {"source optdigits-0", "source mnist-0"}
    for state in done.server.parts.values():
        network = done.task.networks.load("cnn-small", state).eval()
        with torch.no_grad():
            total += network(network.normalise(test.x)).softmax(1)
    assert done.accuracy == pytest.approx(float((total.argmax(1) == test.y).double().mean()))
    assert [line["bytes_up"] > 1000 for line in done.history] == [True, False]  # models go up while sources train, then nothing


def test_rounds_are_source_training_then_adaptation():
    algorithm = algorithm_of(tiny("shot", rounds=5))
    assert [algorithm.phases(r)[0] for r in range(1, 6)] == ["source", "source", "adapt", "adapt", "adapt"]
    late = algorithm_of(tiny("shot", rounds=5, source_rounds=5))
    assert {late.phases(r)[0] for r in range(1, 6)} == {"source"}


def test_sources_never_hear_of_each_other():
    algorithm = algorithm_of(tiny("shot", rounds=5))
    first = algorithm.start()
    other = {name: tensor + 1 for name, tensor in first.models["cnn-small"].items()}
    server = Server({"cnn-small": other}, {"source optdigits-0": other})  # mnist-0 failed in round 1
    assert algorithm.instruct(server, "optdigits-0", Round(2, 5, 0, "source")).tensors == {}
    told = algorithm.instruct(server, "mnist-0", Round(2, 5, 0, "source")).group("model")
    assert all(torch.equal(told[name], tensor) for name, tensor in first.models["cnn-small"].items())


def test_an_ensemble_leaves_its_members_and_says_what_their_average_has(tmp_path: Path):
    done = run(tiny("shot", **SMALL), tmp_path)
    assert sorted(path.stem for path in (tmp_path / "models").glob("*.safetensors")) == ["mnist-0", "optdigits-0"]
    assert not (tmp_path / "model.safetensors").exists()
    [test] = done.task.tests.values()
    merged = accuracy(done.task.networks.load("cnn-small", done.server.models["cnn-small"]), test)
    assert done.history[-1]["merged_accuracy"] == pytest.approx(merged)


def test_a_source_sends_the_best_of_its_rounds_on_held_out_data():
    algorithm = algorithm_of(tiny("shot", rounds=2))
    client = Client.of(algorithm.task, "mnist-0", 1)
    message = algorithm.instruct(algorithm.start(), "mnist-0", Round(1, 2, 0, "source"))
    reply = algorithm.train(message, client, "source")
    assert reply.values["samples"] == 86  # a tenth of 96 is held out
    best = {name: tensor + 1 for name, tensor in reply.group("model").items()}
    later = Client.of(algorithm.task, "mnist-0", 2, client.memory.with_parts(best=best, score=2.0))
    assert torch.equal(algorithm.train(message, later, "source").group("model")["head.bias"], best["head.bias"])
    assert not torch.equal(
        later.memory.group("model")["head.bias"], best["head.bias"]
    )  # training goes on from the last, not the best


def test_the_merged_variant_adapts_the_average(tmp_path: Path):
    done = run(tiny("shot", multi="merged", **SMALL), tmp_path)
    assert not done.server.parts
    assert len(done.history) == 2


PLAIN = {"optimizer": {"lr": 0.01, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}, "backbone_rate": 1.0}


def adapted(options: SHOTOptions) -> tuple[dict, dict, int]:
    """The weights before and after, and how many batches an epoch has."""
    task = algorithm_of(tiny("shot")).task
    network = task.networks.get("cnn-small")
    before = clone(network.state_dict())
    adapt(network, task.pool.samples, options, rng=torch.Generator().manual_seed(0))
    return before, clone(network.state_dict()), -(-len(task.pool) // options.batch_size)


def test_the_rate_falls_as_the_paper_has_it():
    decay = {**PLAIN, "optimizer": {**PLAIN["optimizer"], "weight_decay": 1.0}}
    before, after, batches = adapted(SHOTOptions(epochs=3, information=0.0, pseudo=0.0, **decay))
    steps = 3 * batches
    left = math.prod(1 - 0.01 * (1 + 10 * step / steps) ** -0.75 for step in range(1, steps + 1))
    torch.testing.assert_close(after["body.0.weight"], left * before["body.0.weight"], rtol=1e-4, atol=1e-6)


def test_pseudo_labels_count_as_much_as_the_option_says():
    def moved(pseudo: float) -> torch.Tensor:
        before, after, batches = adapted(SHOTOptions(epochs=1, batch_size=1000, information=0.0, pseudo=pseudo, **PLAIN))
        assert batches == 1
        return after["body.0.weight"] - before["body.0.weight"]

    torch.testing.assert_close(moved(0.6), 2 * moved(0.3), rtol=1e-3, atol=1e-7)
    assert float(moved(0.3).abs().max()) > 1e-6


def test_sources_learn_smoothed_labels():
    config = tiny("shot", smoothing=0.5, holdout=0.0)
    algorithm = algorithm_of(config.model_copy(update={"local": config.local.model_copy(update={"batch_size": 1000})}))
    task = algorithm.task
    client = Client.of(task, "mnist-0", 1, None)
    start = task.networks.initial("cnn-small")
    network = task.networks.load("cnn-small", start, role="apart").train()
    spoken = network(network.normalise(client.data.x))
    wanted = torch.nn.functional.cross_entropy(spoken, client.data.y, label_smoothing=0.5)
    reply = algorithm.train(algorithm.instruct(algorithm.start(), "mnist-0", Round(1, 2, 0, "source")), client, "source")
    assert reply.values["loss"] == pytest.approx(float(wanted.detach()), rel=1e-4)


def test_what_is_evaluated_is_what_is_saved(tmp_path: Path):
    """Of 1-bit sources the server's members have full precision."""
    result = run(tiny("shot", model={"name": "resnet8-binary"}, backbone_rate=1.0), tmp_path)
    test = next(iter(result.task.tests.values()))
    spoken = [
        predict_logits(result.task.networks.load(kind, state, role="student"), test).softmax(1)
        for kind, state in create(result.task).products(result.server).values()
    ]
    assert result.history[-1]["accuracy"] == pytest.approx(float((sum(spoken).argmax(1) == test.y).double().mean()))
