"""The embedded engine: the same result for any number of workers, and a failing client costs only its reply."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from fedstill.algorithms import create
from fedstill.algorithms.fedavg import FedAvg
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.engine.inprocess import InProcess
from fedstill.engine.memory import Memory
from fedstill.run.configuration import parse
from fedstill.run.history import read_history
from fedstill.run.loop import drive, run
from fedstill.task import Task
from tests.conftest import tiny_tree


def lines(folder):
    found = read_history(folder / "history.jsonl")
    for line in found:
        line.pop("seconds")
    return found


def test_any_number_of_workers_gives_the_same_history(tmp_path):
    folders = [tmp_path / str(workers) for workers in (0, 1, 2)]
    for workers, folder in enumerate(folders):
        tree = tiny_tree(clients={"per_domain": 2}, algorithm={"name": "moon"}, engine={"workers": workers})
        run(parse({**tree, "model": {"name": "cnn-small"}}), folder)
    assert lines(folders[0]) == lines(folders[1]) == lines(folders[2])
    models = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert models[0] == models[1] == models[2]


class Odd(FedAvg):
    """FedAvg with clients that misbehave in every way there is."""

    name = "odd"

    def train(self, message, client, phase="train"):
        reply = super().train(message, client, phase)
        model = reply.group("model")
        key = next(iter(model))
        ways = {
            "optdigits-0": lambda: reply,
            "optdigits-1": lambda: Message.of(model={**model, key: torch.full_like(model[key], float("nan"))}, samples=3),
            "optdigits-2": lambda: Message.of(model={**model, key: model[key][:1]}, samples=3),
            "optdigits-3": lambda: Message.of(model={**model, key: model[key].double()}, samples=3),
            "optdigits-4": lambda: Message.of(model={k: v for k, v in model.items() if k != key}, samples=3),
            "optdigits-5": lambda: Message.of(model={**model, "extra": model[key]}, samples=3),
            "optdigits-6": lambda: Message.of(model=model, samples=0),
            "optdigits-7": lambda: 1 / 0,
        }
        return ways[client.id]()


REASONS = {
    "optdigits-1": "not finite",
    "optdigits-2": "wrong shape",
    "optdigits-3": "wrong type",
    "optdigits-4": "missing tensor",
    "optdigits-5": "unknown tensor",
    "optdigits-6": "no samples",
    "optdigits-7": "ZeroDivisionError: division by zero",
}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_reply_is_dropped_with_its_reason(tiny, tmp_path, workers):
    config = tiny(
        rounds=1,
        data={"domains": ["embedded:optdigits"]},
        clients={"per_domain": 8},
        algorithm={"name": "tests.engine.test_inprocess:Odd"},
        engine={"workers": workers},
    )
    result = run(config, tmp_path / "run")
    line = result.history[0]
    assert line["clients"] == ["optdigits-0"]
    dropped = {d["client"]: d["reason"] for d in line["dropped"]}
    assert dropped.keys() == REASONS.keys()
    for client, reason in REASONS.items():
        assert reason in dropped[client]
    assert "ZeroDivisionError" in (tmp_path / "run" / "errors.log").read_text()


def test_too_few_replies_stop_the_run_with_a_usable_checkpoint(tiny, tmp_path):
    changes = {"data": {"domains": ["embedded:optdigits"]}, "clients": {"per_domain": 8, "min_replies": 2}}
    config = tiny(algorithm={"name": "tests.engine.test_inprocess:Odd"}, **changes)
    with pytest.raises(FedstillError, match="round 1 has 1 usable replies, fewer than min_replies = 2"):
        run(config, tmp_path / "run")


class Killer(FedAvg):
    """One client takes its process down, another sleeps too long."""

    name = "killer"

    def train(self, message, client, phase="train"):
        if client.id == "optdigits-1":
            os.kill(os.getpid(), signal.SIGKILL)
        if client.id == "optdigits-2" and client.task.config.clients.timeout and client.round == 1:
            import time

            time.sleep(120)
        return super().train(message, client, phase)


def test_a_worker_that_dies_or_hangs_costs_its_reply(tiny, tmp_path):
    changes = {"data": {"domains": ["embedded:optdigits"]}, "algorithm": {"name": "tests.engine.test_inprocess:Killer"}}
    result = run(tiny(rounds=1, clients={"per_domain": 4}, engine={"workers": 2}, **changes), tmp_path / "dies")
    for line in result.history:
        assert line["clients"] == ["optdigits-0", "optdigits-2", "optdigits-3"]
        assert line["dropped"] == [{"client": "optdigits-1", "reason": "its worker process ended with status -9"}]
    config = tiny(rounds=2, clients={"per_domain": 4, "timeout": 25}, engine={"workers": 2}, **changes)
    first, second = run(config, tmp_path / "hangs").history
    assert {d["client"]: d["reason"] for d in first["dropped"]}["optdigits-2"] == "no reply within 25 s"
    assert "optdigits-0" in first["clients"]
    assert [d["client"] for d in second["dropped"]] == ["optdigits-1"]  # nobody pays for the round before


def test_private_state_is_that_of_before_the_round(tmp_path):
    memory = Memory(tmp_path)
    for number in range(1, 7):
        memory.write("a/b", number, Message.of(round=number))
    assert memory.read("a/b", 6).values == {"round": 5}
    assert memory.read("a/b", 5).values == {"round": 4}
    assert len(list(tmp_path.rglob("*.safetensors"))) == 4


def test_many_large_replies_are_spooled_to_disk(tiny, tmp_path):
    config = tiny(rounds=1)
    algorithm = create(Task(config))
    engine = InProcess(algorithm, tmp_path)
    engine.spool.most = 0
    spooled = drive(algorithm, engine, tmp_path)
    assert list(engine.spool.folder.glob("1-reply-*.safetensors"))
    engine.close()
    assert not engine.spool.folder.exists()
    kept = run(config, tmp_path / "memory")
    assert all(torch.equal(spooled.server.models["mlp"][k], t) for k, t in kept.server.models["mlp"].items())
