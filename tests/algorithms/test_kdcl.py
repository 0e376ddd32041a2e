"""KDCL, Algorithm 1."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fedstill.algorithm import Round
from fedstill.core.errors import FedstillError
from fedstill.local.terms import contrastive_loss
from fedstill.run.loop import run
from tests.algorithms.adaptation import algorithm_of, exchange, tiny


def test_contrastive_loss_at_known_values():
    z = torch.eye(3)
    assert float(contrastive_loss(z, z, [z], 0.5)) == pytest.approx(math.log(2))  # equal similarities
    # z on the global model's features (similarity 1), the previous model's orthogonal (0): -log(e^2 / (e^2 + 1))
    away = torch.roll(z, 1, 0)
    assert float(contrastive_loss(z, z, [away], 0.5)) == pytest.approx(math.log(1 + math.exp(-2)))
    assert float(contrastive_loss(z, away, [z], 0.5)) == pytest.approx(math.log(1 + math.exp(2)))


def test_the_target_model_is_the_sum_of_the_sources_weighed_by_contribution():
    algorithm = algorithm_of(tiny("kdcl", epochs=6, contributions={"gate": {"start": 0.0, "end": 0.0}}))
    server, round = algorithm.start(), Round(1, 2, 0)
    replies = exchange(algorithm, server, round, {})
    fused = algorithm.fuse(server, replies, round)
    weights = round.notes["weights"]
    assert sum(weights.values()) == pytest.approx(1)
    assert len(set(weights.values())) == 2  # no uniform weights by accident
    [model] = fused.models.values()
    for name in ("head.weight", "body.2.running_var"):
        expected = sum(weights[reply.client] * reply.model[name].double() for reply in replies)
        torch.testing.assert_close(model[name].double(), expected, atol=1e-6, rtol=1e-5)


def test_the_contrastive_term_starts_in_the_second_round():
    with_term, without = algorithm_of(tiny("kdcl")), algorithm_of(tiny("kdcl", contrastive={"mu": 0.0}))
    memories: dict = {}
    server = with_term.start()
    first, plain = exchange(with_term, server, Round(1, 2, 0), memories), exchange(without, server, Round(1, 2, 0), {})
    assert all(torch.equal(a.model["head.weight"], b.model["head.weight"]) for a, b in zip(first, plain, strict=True))
    assert set(memories["mnist-0"].groups()) == {"previous"}
    second, plain = exchange(with_term, server, Round(2, 2, 0), memories), exchange(without, server, Round(2, 2, 0), {})
    assert not any(torch.equal(a.model["head.weight"], b.model["head.weight"]) for a, b in zip(second, plain, strict=True))


def test_training_a_target_model_on_the_votes_is_an_option(tmp_path: Path):
    open_gate = {"gate": {"start": 0.0, "end": 0.0}}
    distillation = {"epochs": 1, "batch_size": 32, "optimizer": {"lr": 0.05}, "student_norm": "train"}
    config = tiny("kdcl", rounds=1, contributions=open_gate, train_target=True, distillation=distillation)
    [line] = run(config, tmp_path).history
    assert line["distillation"]["cnn-small"]["steps"] == 3
    assert line["weights"] == line["merge_weights"]


def test_a_source_with_false_labels_loses_weight(tmp_path: Path):
    weights = {}
    for name, poison in (("honest", None), ("poisoned", {"clients": ["rotated"], "level": 1.0})):
        data = {
            "domains": ["embedded:optdigits", "embedded:mnist", "embedded:rotated"],
            "target": "embedded:blended",
            "limit": 400,
        }
        config = tiny("kdcl", rounds=2, epochs=3, data=data | ({"poison": poison} if poison else {}))
        weights[name] = sum(line["weights"]["rotated-0"] for line in run(config, tmp_path / name).history)
    assert weights["poisoned"] < weights["honest"]


def test_it_needs_a_target():
    with pytest.raises(FedstillError, match=r"set data\.target"):
        algorithm_of(tiny("kdcl", data={"target": None, "server": "embedded:blended"}))


def test_the_gate_moves_with_the_rounds():
    algorithm = algorithm_of(tiny("kdcl", epochs=6, contributions={"gate": {"start": 0.0, "end": 0.9}}))
    server = algorithm.start()
    replies = exchange(algorithm, server, Round(1, 2, 0), {})
    found = []
    for number in (1, 2):
        round = Round(number, 2, 0)
        algorithm.merge(server, replies, round)
        found.append((round.notes["gate"], round.notes["quality"]))
    (first, more), (last, less) = found
    assert (first, last) == (algorithm.options.contributions.gate.at(1, 2), algorithm.options.contributions.gate.at(2, 2))
    assert first < last
    assert less < more  # fewer samples have a vote


def test_the_history_has_the_share_above_the_gate_and_its_accuracy(tmp_path: Path):
    gate = {"gate": {"start": 0.0, "end": 0.9, "reach": True}}
    opened, closed = run(tiny("kdcl", epochs=3, contributions=gate), tmp_path).history
    assert opened["confident"] == {"share": 1.0, "accuracy": opened["ensemble_accuracy"]}
    assert closed["confident"]["share"] < 1
    assert closed["confident"]["accuracy"] != closed["ensemble_accuracy"]


def test_what_is_measured_is_what_is_taught():
    voting = {"gate": {"start": 0.3, "end": 0.4}, "variant": "kd3a"}
    algorithm = algorithm_of(tiny("kdcl", contributions=voting))
    assert algorithm.settings["variant"] == "kd3a"
    assert (algorithm.settings["gate"]["start"], algorithm.settings["gate"]["end"]) == (0.3, 0.4)
    other = {"gate": {"start": 0.5, "end": 0.5}}
    apart = algorithm_of(tiny("kdcl", contributions=voting, weighting_options=other))  # unless it is said otherwise
    assert (apart.settings["gate"]["start"], apart.settings["variant"]) == (0.5, "kd3a")
    assert algorithm_of(tiny("kdcl", contributions=voting, weighting="uniform")).settings == {}
