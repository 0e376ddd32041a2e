"""KD3A: its weights, what is shared and what stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedstill.algorithm import Round
from fedstill.algorithms.kd3a import KD3AOptions, domain_weights, smoothed
from fedstill.core.errors import FedstillError
from fedstill.fusion.distillation.distil import mixed
from fedstill.fusion.vote_norm import by_batch_statistics
from fedstill.models.predict import accuracy
from fedstill.run.loop import run
from tests.algorithms.adaptation import algorithm_of, exchange, tiny

OPEN = {"gate": {"start": 0.0, "end": 0.0}, "variant": "kd3a", "method": "shapley"}


def test_domain_weights_by_hand():
    sources, target = domain_weights(torch.tensor([6.0, 2.0, 0.0]), known=0.8)
    assert target == pytest.approx(0.8 / 4)
    assert sources.tolist() == pytest.approx([0.8 * 0.75, 0.8 * 0.25, 0.0])
    sources, target = domain_weights(torch.zeros(3), known=0.0)  # nobody is confident of anything
    assert (sources.tolist(), target) == (pytest.approx([1 / 3] * 3), 0.0)
    sources, _ = domain_weights(torch.tensor([1.0, 1.0]), 0.0, examples=[30, 10])
    assert sources.tolist() == pytest.approx([0.75, 0.25])


def test_weights_move_slowly_and_sum_to_one():
    assert smoothed({"a": 0.9, "b": 0.1}, None, 0.9) == pytest.approx({"a": 0.9, "b": 0.1})
    assert smoothed({"a": 0.9, "b": 0.1}, {"a": 0.5, "b": 0.5}, 0.9) == pytest.approx({"a": 0.54, "b": 0.46})
    assert sum(smoothed({"a": 0.9}, {"a": 0.5, "b": 0.5}, 0.9).values()) == pytest.approx(1)  # b did not come


@pytest.mark.parametrize("vote_norm", ["own", "pool"])
def test_backbones_become_their_weighted_sum_and_classifiers_stay(vote_norm: str):
    algorithm = algorithm_of(tiny("kd3a", epochs=4, contributions=OPEN, vote_norm=vote_norm))
    server, round, memories = algorithm.start(), Round(1, 2, 0), {}
    assert not any(name.startswith("model/head.") for name in algorithm.instruct(server, "mnist-0", round).tensors)
    replies = exchange(algorithm, server, round, memories)
    heads = [memories[reply.client].group("own")["head.weight"] for reply in replies]
    assert not torch.equal(*heads)  # every source has its own classifier, from its own start
    assert memories["mnist-0"].group("optimizer")
    fused = algorithm.fuse(server, replies, round)
    [model], [before] = fused.models.values(), server.models.values()
    weights = round.notes["weights"]
    assert set(weights) == {"optdigits-0", "mnist-0", "target"}
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["target"] == pytest.approx(round.notes["known"] / 3)
    assert not torch.equal(model["head.weight"], before["head.weight"])  # the target's own, trained on the votes
    trained, _ = algorithm.learn(server, *_table(algorithm, replies, round), round)
    [test] = algorithm.task.tests.values()
    own = algorithm.task.networks.load("cnn-small", trained, role="student")
    assert round.notes["target_accuracy"] == accuracy(own, test)  # before the merge
    assert round.notes["confident"] == {"share": 1.0, "accuracy": round.notes["ensemble_accuracy"]}  # nothing is below this gate
    expected = weights["target"] * trained["fc.0.weight"] + sum(weights[r.client] * r.model["fc.0.weight"] for r in replies)
    torch.testing.assert_close(model["fc.0.weight"], expected, atol=1e-6, rtol=1e-5)
    stats = weights["target"] * trained["body.2.running_mean"]
    stats = stats + sum(weights[r.client] * r.model["body.2.running_mean"] for r in replies)
    # sources that label with the target's batch statistics drift to them, and the merge takes what they drifted to
    assert torch.allclose(model["body.2.running_mean"], stats, atol=1e-6) == (vote_norm == "own")


def _table(algorithm, replies, round):
    from fedstill.fusion.teacher import teachers_of

    pool = algorithm.task.pool.samples
    return algorithm.vote(teachers_of(algorithm.task, replies), pool, 0.0, round)[0], pool


def test_statistics_can_stay_with_their_owners():
    algorithm = algorithm_of(tiny("kd3a", contributions=OPEN, batchnorm="own"))
    server, round, memories = algorithm.start(), Round(1, 2, 0), {}
    assert not any("running" in name for name in algorithm.instruct(server, "mnist-0", round).tensors)
    replies = exchange(algorithm, server, round, memories)
    assert "body.2.running_mean" in memories["mnist-0"].group("own")
    algorithm.fuse(server, replies, round)
    again = exchange(algorithm, server, Round(2, 2, 0), memories)
    assert int(again[0].model["body.2.num_batches_tracked"]) == 6  # three batches a round, counted on


def test_batch_statistics_are_those_of_training_mode_and_drift():
    algorithm = algorithm_of(tiny("kd3a"))
    task = algorithm.task
    network, pool = task.networks.get("cnn-small"), task.pool.samples
    before = network.body[2].running_mean.clone()
    found = by_batch_statistics(network, pool, len(pool), torch.Generator().manual_seed(0))
    assert not torch.equal(network.body[2].running_mean, before)
    network.train()
    with torch.no_grad():
        torch.testing.assert_close(found, network(network.normalise(pool.x)), atol=1e-4, rtol=1e-4)


def test_mixup_mixes_inputs_and_targets_alike():
    x, targets = torch.arange(6.0)[:, None], torch.eye(6)
    mixed_x, mixed_targets = mixed(x, targets, 2.0, torch.Generator().manual_seed(1))
    torch.testing.assert_close(mixed_targets @ torch.arange(6.0), mixed_x[:, 0])
    torch.testing.assert_close(mixed_targets.sum(1), torch.ones(6))


def test_the_switches_of_the_paper_run(tmp_path: Path):
    written = {
        "contributions": {**OPEN, "method": "leave-one-out"},
        "knowledge": "soft",
        "count": "support",
        "mixup": None,
        "vote_norm": "own",
        "classifiers": "merge",
        "by_examples": True,
        "keep_momentum": False,
        "smoothing": 0.0,
    }
    history = run(tiny("kd3a", epochs=3, **{k: v for k, v in written.items() if v is not None}), tmp_path).history
    assert len(history) == 2
    assert history[-1]["known"] == 1.0  # nothing is below this gate


def test_the_forms_of_the_text_are_a_preset():
    options = KD3AOptions.model_validate({"preset": "paper", "count": "mask"})
    assert (options.contributions.method, options.contributions.gate.start, options.knowledge) == ("leave-one-out", 0.9, "soft")
    assert options.count == "mask"  # what is given wins
    assert KD3AOptions().contributions.method == "shapley"


def test_one_architecture_only():
    with pytest.raises(FedstillError, match="one architecture"):
        algorithm_of(tiny("kd3a", model={"clients": ["cnn-small", "cnn"]}))


@pytest.mark.parametrize("knowledge", ["hard", "soft"])
@pytest.mark.parametrize("count", ["mask", "support"])
def test_what_a_vote_teaches_and_how_often_it_counts(knowledge: str, count: str):
    algorithm = algorithm_of(tiny("kd3a", epochs=2, contributions=OPEN, knowledge=knowledge, count=count))
    server, round = algorithm.start(), Round(1, 2, 0)
    table, _ = _table(algorithm, exchange(algorithm, server, round, {}), round)
    surest = table.targets.max(1).values
    assert bool((surest == 1).all()) == (knowledge == "hard")
    supporters = table.weights.gt(0).sum(1).to(table.sample_weight.dtype)
    assert set(supporters.tolist()) == {1.0, 2.0}
    torch.testing.assert_close(table.sample_weight, supporters if count == "support" else torch.ones_like(supporters))


@pytest.mark.parametrize("by_examples", [False, True])
def test_focus_is_weighed_by_examples_where_asked_for(by_examples: bool):
    algorithm = algorithm_of(tiny("kd3a", epochs=4, contributions=OPEN, by_examples=by_examples))
    server, round = algorithm.start(), Round(1, 2, 0)
    replies = [replace(r, samples=n) for r, n in zip(exchange(algorithm, server, round, {}), (10, 90), strict=True)]
    algorithm.fuse(server, replies, round)
    focus = torch.tensor([round.notes["contributions"][reply.client] for reply in replies])
    expected, _ = domain_weights(focus, round.notes["known"], [10, 90] if by_examples else None)
    assert [round.notes["weights"][reply.client] for reply in replies] == pytest.approx(expected.tolist(), rel=1e-5)
