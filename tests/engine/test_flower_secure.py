"""Real SuperLinks and SuperNodes on loopback with certificates and keys: equal to one process, closed to strangers, resumed."""

from __future__ import annotations

import json
import os
import signal

import pytest

pytest.importorskip("flwr", reason="the extra fedstill[flower] is not installed")
pytest.importorskip("psutil", reason="psutil is not installed")
pytest.importorskip("opacus", reason="the extra fedstill[privacy] is not installed")

import psutil

from fedstill.engine.flower.app import write_app
from fedstill.engine.flower.loopback import Loopback
from fedstill.run.history import read_history
from fedstill.run.judging import delivered
from fedstill.run.loop import run
from tests.engine.federations import assert_equal, config, until, weights

pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A federation with TLS: two nodes whose keys are registered, and one whose key is not."""
    folder = tmp_path_factory.mktemp("secure")
    with Loopback(folder / "link", tls=True) as link:
        link.node("stranger", {"partition-id": 1, "num-partitions": 2}, registered=False)
        for i in range(2):
            link.node(f"node-{i}", {"partition-id": i, "num-partitions": 2, "memory": str(folder / f"memory-{i}")})
        yield link
    assert not link.processes


def test_two_nodes_with_tls_learn_what_one_process_learns(secure, pace, tmp_path):
    setup = config("fedd3a", rounds=2)
    app = write_app(tmp_path / "app", setup)
    submitted = secure.submit(app, {"out": str(tmp_path / "there"), "nodes": 2}, name="equal")
    submitted.wait(60 + 60 * pace)
    history = read_history(tmp_path / "there" / "history.jsonl")
    assert len(history) == 2, secure.problem("equal")
    assert not any(line["dropped"] for line in history)
    here = run(setup, tmp_path / "here")
    assert_equal(delivered(here.server).models["mlp"], weights(tmp_path / "there"))
    assert [line["accuracy"] for line in history] == pytest.approx([line["accuracy"] for line in here.history])


def test_an_unregistered_key_is_refused_and_sees_nothing(secure, pace):
    def online():
        listed = json.loads(secure.flwr("supernode", "list", "loopback", "--format", "json").stdout)
        return [node["status"] for node in listed["nodes"]] == ["online", "online"]

    until(online, 60 + 20 * pace, "the registered nodes")
    until(lambda: "failed" in secure.log("stranger").read_text(), 60 + 20 * pace, "the stranger")  # it keeps knocking
    assert online()
    log = secure.log("stranger").read_text()
    assert "Received" not in log
    assert not list((secure.folder / "flwr").rglob("*stranger*"))


def test_a_killed_server_goes_on_from_its_checkpoint(secure, pace, tmp_path):
    # clients keep their last model between rounds, and what they have spent
    setup = config("moon", rounds=3, privacy={"sample": {"noise": 1.0}})
    app = write_app(tmp_path / "app", setup)
    out = tmp_path / "there"
    first = secure.submit(app, {"out": str(out), "nodes": 2}, name="killed")
    until(lambda: len(read_history(out / "history.jsonl")) == 1, 60 + 40 * pace, "the first round")
    servers = [p for p in psutil.Process(secure.processes[0].pid).children(recursive=True) if _is_server(p)]
    assert servers
    for process in servers:
        process.kill()
    os.killpg(first.pid, signal.SIGTERM)  # the log that nobody writes any more
    second = secure.submit(app, {"out": str(out), "nodes": 2, "resume": True}, name="resumed")
    second.wait(60 + 60 * pace)
    history = read_history(out / "history.jsonl")
    assert [line["round"] for line in history] == [1, 2, 3], secure.problem("resumed")
    here = run(setup, tmp_path / "here")
    assert [line["privacy"] for line in history] == [line["privacy"] for line in here.history]
    assert history[-1]["accuracy"] == pytest.approx(here.summary["final_accuracy"])
    assert_equal(delivered(here.server).models["mlp"], weights(out))


def _is_server(process):
    try:
        return any("flwr-serverapp" in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False
