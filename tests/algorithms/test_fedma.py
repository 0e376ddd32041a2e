"""FedMA: a layer a round, matched layers frozen, honest bytes, own-sized slices, and the one-shot form."""

from __future__ import annotations

import pytest
import torch

from fedstill.algorithm import Client, Reply, Round
from fedstill.algorithms import create
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.fusion.merges.matching import layers_of, slice_of
from fedstill.run.configuration import parse
from fedstill.run.loop import run
from fedstill.task import Task


def config(rounds=3, clients=3, model=None, **algorithm):
    return parse(
        {
            "rounds": rounds,
            "data": {"domains": ["embedded:optdigits"], "limit": 240, "test_limit": 100},
            "clients": {"per_domain": clients},
            "model": model or {"name": "mlp", "options": {"hidden": [16, 12]}},
            "local": {"epochs": 4, "batch_size": 8, "optimizer": {"lr": 0.1}},
            "algorithm": {"name": "fedma", **algorithm},
        }
    )


def reply(client, samples=10, **parts):
    message = Message.of(samples=samples, **parts)
    return Reply(client, "optdigits", "mlp", samples, lambda: message)


def test_a_cycle_sends_a_layer_a_round_and_nothing_more(tmp_path):
    done = run(config(rounds=6), tmp_path)
    assert [line["layer"] for line in done.history] == ["body.0", "body.2", "head"] * 2
    assert done.history[0]["accuracy"] == done.history[1]["accuracy"]  # nothing is whole before the cycle ends
    assert done.history[2]["accuracy"] > 0.3
    wide = done.history[2]["widths"]
    whole = 64 * 16 + 16 + 16 * 12 + 12 + 12 * 10 + 10
    first, second, third = done.history[:3]
    counts = 10 * 8
    assert 0 < first["bytes_down"] - 3 * 4 * whole < 50
    assert 0 < first["bytes_up"] - 3 * 4 * (64 * 16 + 16) < 250  # values as JSON besides
    assert 0 < second["bytes_down"] - 3 * 4 * (wide["body.0"] * 65 + 16) < 50  # the matched layer and 16 places in it
    assert 0 < second["bytes_up"] - 3 * 4 * (12 * wide["body.0"] + 12) < 250
    assert 0 < third["bytes_up"] - 3 * (4 * (10 * wide["body.2"] + 10) + counts) < 250
    assert done.server.models["mlp"]["body.2.weight"].shape == (wide["body.2"], wide["body.0"])


def test_matched_layers_are_frozen_while_the_rest_is_retrained():
    task = Task(config())
    algorithm = create(task)
    server, client = algorithm.start(), Client.of(task, "optdigits-0", 1)
    first = algorithm.train(Message.of(model=server.models["mlp"]), client, "body.0")
    before = client.memory.group("model")
    layer = {"weight": torch.cat([first.group("layer")["weight"], torch.zeros(2, 64)]), "bias": torch.zeros(18)}
    message = Message.of(layer=layer, assignment={"neurons": torch.arange(16, dtype=torch.int32)})
    second = algorithm.train(message, client, "body.2")
    after = client.memory.group("model")
    assert torch.equal(after["body.0.weight"], layer["weight"])
    assert torch.equal(after["body.0.bias"], layer["bias"])
    assert second.group("layer")["weight"].shape == (12, 18)
    assert not second.group("layer")["weight"][:, 16:].any()  # inputs that are always zero learn nothing
    assert not torch.equal(second.group("layer")["weight"][:, :16], before["body.2.weight"])
    assert not torch.equal(after["head.weight"], before["head.weight"])


def test_every_client_gets_its_own_sized_slice_back():
    task = Task(config(rounds=6))
    algorithm = create(task)
    server = algorithm.start()
    wide = {
        "body.0.weight": torch.randn(18, 64),
        "body.0.bias": torch.arange(18.0),
        "body.2.weight": torch.randn(12, 18),
        "body.2.bias": torch.zeros(12),
        "head.weight": torch.randn(10, 12),
        "head.bias": torch.zeros(10),
    }
    held = {"optdigits-0": [list(range(2, 18)), list(range(12))], "optdigits-1": [list(range(1, 17)), list(range(12))]}
    server.models["mlp"], server.values["assignments"] = wide, held
    own = algorithm.instruct(server, "optdigits-0", Round(4, 6, 0, "body.0")).group("model")
    assert own["body.0.bias"].tolist() == list(range(2, 18))
    assert torch.equal(own["body.2.weight"], wide["body.2.weight"][:, 2:])
    stranger = algorithm.instruct(server, "optdigits-2", Round(4, 6, 0, "body.0")).group("model")
    assert stranger["body.0.bias"].tolist() == [1, *range(2, 17)]  # 2 to 16 are in both, then the first of the rest


def test_one_shot_matching_of_permuted_clients_is_the_original(tmp_path):
    task = Task(config(form="one-shot", matching={"gamma": 0.1}))
    algorithm = create(task)
    server = algorithm.start()
    state, layers = server.models["mlp"], layers_of(task.networks.get("mlp"))
    rng = torch.Generator().manual_seed(0)
    replies = [
        reply(
            f"optdigits-{i}",
            model=slice_of(layers, state, [torch.randperm(16, generator=rng), torch.randperm(12, generator=rng)]),
            counts={"labels": torch.arange(10) + i},
        )
        for i in range(3)
    ]
    assert algorithm.screen(server, "optdigits-0", replies[0].message) is None
    after = algorithm.fuse(server, replies, Round(1, 1, 0))
    x = torch.randn(4, 1, 8, 8, generator=rng)
    with torch.no_grad():
        assert torch.allclose(algorithm.loaded("mlp", after.models["mlp"])(x), task.networks.load("mlp", state)(x), atol=1e-5)


def test_a_layer_of_the_wrong_size_and_a_client_that_missed_one_are_left_out():
    task = Task(config())
    algorithm = create(task)
    server = algorithm.start()
    wrong = Message.of(layer={"weight": torch.zeros(16, 63), "bias": torch.zeros(16)}, samples=3)
    assert "should have shape (16, 64)" in str(algorithm.screen(server, "optdigits-0", wrong))
    negative = Message.of(counts={"labels": torch.tensor([-1] * 10)}, samples=3)
    assert "wrong counts" in str(algorithm.screen(server, "optdigits-0", negative))
    rows = [torch.randn(16, 64, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    replies = [reply(f"optdigits-{i}", layer={"weight": w, "bias": torch.zeros(16)}) for i, w in enumerate(rows)]
    server = algorithm.fuse(server, replies, Round(1, 3, 0, "body.0"))
    late = algorithm.instruct(server, "optdigits-2", Round(2, 3, 0, "body.2"))
    with pytest.raises(FedstillError, match="missed the matching of layer 'body.0'"):
        algorithm.train(late, Client.of(task, "optdigits-2", 2), "body.2")


def test_clients_are_drawn_for_a_whole_cycle():
    algorithm = create(Task(config(rounds=6)))
    assert [algorithm.cohort(number) for number in range(1, 7)] == [1, 1, 1, 4, 4, 4]


def test_rounds_that_end_within_a_cycle_warn(tmp_path):
    task = Task(config(rounds=4))
    algorithm, context = create(task), Round(1, 4, 0, "body.0")
    layer = {"weight": torch.ones(16, 64), "bias": torch.zeros(16)}
    algorithm.fuse(algorithm.start(), [reply("optdigits-0", layer=layer)], context)
    assert "the last 1 have no effect" in context.notes["warnings"][0]


def test_several_architectures_are_refused():
    with pytest.raises(FedstillError, match="one architecture"):
        create(Task(config(model={"clients": ["mlp", "lenet"]})))


def test_feddf_may_start_its_student_from_the_matched_average(tmp_path):
    tree = {
        "rounds": 1,
        "data": {"domains": ["embedded:optdigits"], "limit": 200, "test_limit": 100, "holdout": 0.3},
        "clients": {"per_domain": 2},
        "model": {"name": "mlp", "options": {"hidden": [16]}},
        "algorithm": {"name": "feddf", "merge": "matched", "distillation": {"steps": 5}},
    }
    done = run(parse(tree), tmp_path)
    assert done.server.models["mlp"]["body.0.weight"].shape == (16, 64)  # it does not grow
    with pytest.raises(FedstillError, match="norm layer"):
        run(parse({**tree, "model": {"name": "cnn-small"}}), tmp_path / "norm")


def test_a_run_resumed_within_a_cycle_is_the_same_run(tmp_path):
    whole = run(config(rounds=3), tmp_path / "whole")
    run(config(rounds=1), tmp_path / "part")
    resumed = run(config(rounds=3), tmp_path / "part", resume=True)
    assert all(torch.equal(tensor, whole.server.models["mlp"][name]) for name, tensor in resumed.server.models["mlp"].items())
