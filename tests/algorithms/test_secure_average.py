"""Secure averages: the model of the plain system, with clients lost in any exchange; what needs more is refused."""

from __future__ import annotations

import contextlib

import pytest
import torch

from fedstill.algorithm import Client, Round
from fedstill.algorithms import algorithms, create
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.engine.exchange import Outcome
from fedstill.engine.inprocess import InProcess
from fedstill.run.loop import drive, run
from fedstill.task import Task
from tests.conftest import tiny_config


class Losing(InProcess):
    """An engine that loses clients in one exchange of each round."""

    def lose(self, phase, clients):
        self.lost = phase, clients
        return self

    def exchange(self, round, phase, messages):
        gone = self.lost[1] if phase == self.lost[0] else ()
        yield from super().exchange(round, phase, [m for m in messages if m[0] not in gone])
        for client, _ in messages:
            if client in gone:
                yield Outcome(client, reason="lost")


def lossy(config, folder, phase, count):
    algorithm = create(Task(config))
    clients = list(algorithm.task.clients)[:count]
    with contextlib.closing(Losing(algorithm, folder).lose(phase, clients)) as engine:
        return drive(algorithm, engine, folder)


def ten(**changes):
    return tiny_config(clients={"per_domain": 5}, rounds=1, **changes)


def difference(one, other):
    return max(
        float((one.server.models[m][k] - t).abs().max()) for m in one.server.models for k, t in other.server.models[m].items()
    )


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavgm", "moon"])
def test_the_model_is_that_of_the_plain_sum(name, tmp_path):
    changes = {"algorithm": {"name": name}, "clients": {"per_domain": 2}}
    plain = run(tiny_config(**changes), tmp_path / "plain")
    safe = run(tiny_config(**changes, privacy={"secure": {}}), tmp_path / "safe")
    assert difference(plain, safe) <= 1e-7  # 64 bits: 4 / 2^41, then float32's own rounding
    assert safe.history[0]["weights"] == plain.history[0]["weights"]
    assert safe.history[0]["secure"] == {"asked": 4, "summed": 4}
    assert not safe.server.values
    assert not [part for part in safe.server.parts if "mask" in part]
    files = [Message.load(path) for path in (tmp_path / "safe" / "clients").rglob("*.safetensors")]
    assert not any({"secrets", "held"} & file.values.keys() or file.group("trained") for file in files)  # all forgotten


@pytest.mark.parametrize(("phase", "lost"), [("mask", 0), ("mask", 1), ("mask", 3), ("share-keys", 3), ("reveal", 3)])
def test_clients_lost_after_the_keys(phase, lost, tmp_path):
    safe = lossy(ten(privacy={"secure": {"bits": 32}}), tmp_path / "safe", phase, lost)
    plain = lossy(ten(), tmp_path / "plain", "train", 0 if phase == "reveal" else lost)  # the models had arrived
    # the error of privacy.secure.bits = 32: K / 2^26 over the shares that are left, plus float32's rounding of weights below 1
    assert difference(safe, plain) <= 10 / 2**26 / 0.5 + 1e-7
    assert safe.history[0]["secure"] == {"asked": 10, "summed": 10 if phase == "reveal" else 10 - lost}
    assert [d["reason"] for d in safe.history[0]["dropped"]] == ["lost"] * lost
    assert sum(safe.history[0]["weights"].values()) == pytest.approx(1, abs=1e-4)


def test_too_many_lost_clients_stop_the_round(tmp_path):
    with pytest.raises(FedstillError, match="6 of 10 clients with mlp are left, fewer than the 7 that privacy.secure.threshold"):
        lossy(ten(privacy={"secure": {}}), tmp_path, "mask", 4)


def test_architectures_hide_among_their_own(tmp_path):
    changes = {"clients": {"per_domain": 2}, "model": {"clients": ["mlp", "lenet"]}, "data": {"image_size": 16}, "rounds": 1}
    plain = run(tiny_config(**changes), tmp_path / "plain")
    safe = run(tiny_config(**changes, privacy={"secure": {}}), tmp_path / "safe")
    assert difference(plain, safe) <= 1e-7
    with pytest.raises(FedstillError, match="only one replied with"):
        run(tiny_config(**{**changes, "clients": {"per_domain": 1}}, privacy={"secure": {}}), tmp_path / "lone")


def test_a_resumed_run_learns_the_same(tmp_path):
    config = tiny_config(algorithm={"name": "moon"}, privacy={"secure": {}}, rounds=2)
    whole = run(config, tmp_path / "whole")
    run(config.model_copy(update={"rounds": 1}), tmp_path / "parts")
    resumed = run(config, tmp_path / "parts", resume=True)
    assert all(torch.equal(t, resumed.server.models["mlp"][k]) for k, t in whole.server.models["mlp"].items())


def test_a_client_asked_about_too_few_reveals_nothing():
    algorithm = create(Task(ten(privacy={"secure": {}})))
    name = next(iter(algorithm.task.clients))
    held = Message.of(held='{"a": "00", "b": "00", "c": "00"}', threshold=2)
    for arrived in ('["a"]', '["a", "z"]'):
        with pytest.raises(FedstillError, match="at least 2 clients"):
            algorithm.train(Message.of(arrived=arrived), Client.of(algorithm.task, name, 1, held), "reveal")


def test_faulty_parts_are_named():
    algorithm = create(Task(ten(privacy={"secure": {}})))
    server, name = algorithm.start(), next(iter(algorithm.task.clients))
    assert algorithm.screen(server, name, Message.of(seal_key="1", mask_key="no")) == "no public keys"
    server.values = {"secure": {"mlp": {"seal_key": {"a": "1", "b": "2"}}}}
    for text in ("", "[]", '{"a": "00"}', '{"a": "00", "b": "zz"}', '{"a": "00", "b": 1}', '{"a": "00", "b": "0000"}'):
        assert "boxes" in algorithm.screen(server, name, Message.of(boxes=text))
    assert algorithm.screen(server, name, Message.of(boxes='{"a": "00", "b": "01"}')) is None
    server.values["secure"]["mlp"]["boxes"] = {"a": {}, "b": {}}
    assert "words of 64 bits" in algorithm.screen(server, name, Message.of(masked={"words": torch.zeros(3)}))
    server.values["secure"]["mlp"]["arrived"] = ["a", "b"]
    assert "shares" in algorithm.screen(server, name, Message.of(shares="{"))


def test_what_needs_single_models_is_refused():
    for name, kind in algorithms().items():
        if not kind.sums_models:
            changes = {"data": {"target": "embedded:rotated"}} if "target" in kind.needs else {"data": {"holdout": 0.2}}
            with pytest.raises(FedstillError, match="shows the server only a sum of models") as found:
                create(Task(tiny_config(algorithm={"name": name}, privacy={"secure": {}}, **changes)))
            assert "\n" not in str(found.value)
    for options, words in (({"calibrate": True}, "calibrate"), ({"merge": "matched"}, "merge = 'matched'")):
        with pytest.raises(FedstillError, match=words):
            create(Task(ten(algorithm={"name": "fedavg", **options}, privacy={"secure": {}})))
    for changes in ({"model": {"name": "cnn-small", "buffers": "local"}}, {"data": {"poison": {"kind": "sign-flip"}}}):
        with pytest.raises(FedstillError, match="privacy.secure"):
            create(Task(ten(privacy={"secure": {}}, **changes)))


def test_counters_and_statistics_are_summed_too(tmp_path):
    changes = {"model": {"name": "cnn-small"}, "rounds": 1}
    plain = run(tiny_config(**changes), tmp_path / "plain")
    safe = run(tiny_config(**changes, privacy={"secure": {}}), tmp_path / "safe")
    assert difference(plain, safe) <= 1e-6
    assert all(t.dtype == plain.server.models["cnn-small"][k].dtype for k, t in safe.server.models["cnn-small"].items())
    assert Round(1, 1, 0).phase == algorithms()["fedavg"](Task(tiny_config(privacy={"secure": {}}))).phases(1)[0]
