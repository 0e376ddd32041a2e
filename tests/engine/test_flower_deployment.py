"""Real SuperLinks and SuperNodes on loopback: equal to one process, closed to strangers, and hard to bring down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch

pytest.importorskip("flwr", reason="the extra fedstill[flower] is not installed")
pytest.importorskip("psutil", reason="psutil is not installed")

import psutil

from fedstill.config.tables import to_toml
from fedstill.engine.flower.app import write_app
from fedstill.engine.flower.loopback import Loopback
from fedstill.run.history import read_history
from fedstill.run.judging import delivered
from fedstill.run.loop import run
from tests.conftest import tiny_config

pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def pace():
    """Seconds that a client process needs to start here and now; every message starts one."""
    clock = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import fedstill.engine.flower.records"], check=True)
    return time.perf_counter() - clock


def until(ready, patience, what):
    deadline = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < deadline, f"{what} took more than {patience:.0f} s"
        time.sleep(0.2)


def weights(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def assert_equal(one, other):
    # The same processor computes the same sums in the same order, so these are equal bit for bit on one machine; machines with
    # other processors may differ in the last bits, which is why the promise is 1e-5.
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-5)


def config(name, **changes):
    data = {"domains": ["embedded:mnist", "embedded:optdigits"], "server": "embedded:rotated", **changes.pop("data", {})}
    return tiny_config(algorithm={"name": name, **changes.pop("options", {})}, data=data, **changes)


def test_nodes_that_die_hang_or_lie_cost_their_replies(pace, tmp_path):
    setup = config(
        "tests.engine.trouble:Trouble",
        options={"distillation": {"steps": 3}, "line": False},  # the judges would wait for the dead as well
        rounds=3,
        data={"domains": ["embedded:mnist", "embedded:optdigits", "embedded:rotated"]},
        clients={"per_domain": 2, "timeout": max(45.0, 15 * pace)},
        model={"clients": ["mlp", "cnn-small"], "options": {}, "by": "client"},
    )
    out = tmp_path / "out"
    with Loopback(tmp_path / "link") as link:
        nodes = [link.node(f"node-{i}", {"partition-id": i, "num-partitions": 6}) for i in range(6)]
        submitted = link.submit(write_app(tmp_path / "app", setup), {"out": str(out), "nodes": 6})
        until(lambda: len(read_history(out / "history.jsonl")) == 1, 90 + 60 * pace, "the first round")
        os.killpg(nodes[5].pid, signal.SIGKILL)  # the machine of rotated-1 loses power
        submitted.wait(240 + 100 * pace)
        first, second, third = read_history(out / "history.jsonl")
        started = [process.pid for process in link.processes]
    assert not first["dropped"]
    assert set(first["prototypes"]) == {"mlp", "cnn-small"}  # two architectures, both distilled from all
    reasons = {d["client"]: d["reason"] for d in second["dropped"]}
    assert second["clients"] == ["mnist-0", "mnist-1"]
    assert "no reply within" in reasons["optdigits-0"]
    assert "not finite" in reasons["optdigits-1"]
    assert "wrong shape" in reasons["rotated-0"]
    assert "rotated-1" in reasons
    assert {"mnist-0", "mnist-1", "optdigits-1", "rotated-0"} <= set(third["clients"])
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert not [pid for pid in started if psutil.pid_exists(pid)]


def test_a_killed_parent_takes_its_federation_with_it(tmp_path):
    script = f"""
import time, pathlib
from fedstill.engine.flower.loopback import Loopback
with Loopback(pathlib.Path({str(tmp_path)!r})) as link:
    link.node("node", {{"partition-id": 0, "num-partitions": 1}})
    print(*[process.pid for process in link.processes], link.keeper.process.pid, flush=True)
    time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(p or ".").resolve()) for p in sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        family = [psutil.Process(pid) for pid in pids]
        assert len(family) == 3  # the link, its node, the keeper
        parent.kill()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


def test_the_simulation_on_ray_learns_what_one_process_learns(pace, tmp_path):
    setup = config("feddf", options={"distillation": {"steps": 4}}, engine={"threads": 1, "workers": 1})
    (tmp_path / "run.toml").write_text(to_toml(setup))
    command = [sys.executable, "-m", "fedstill", "run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "there")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(p or ".").resolve()) for p in sys.path)}
    done = subprocess.run(
        [*command, "--set", "engine.name=flower-simulation"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60 + 30 * pace,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    here = run(setup, tmp_path / "here")
    assert_equal(delivered(here.server).models["mlp"], weights(tmp_path / "there"))


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
    setup = config("moon", rounds=3)  # whose clients keep their last model between rounds
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
    assert history[-1]["accuracy"] == pytest.approx(here.summary["final_accuracy"])
    assert_equal(delivered(here.server).models["mlp"], weights(out))


def _is_server(process):
    try:
        return any("flwr-serverapp" in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_ctrl_c_stops_everything_that_was_started(pace, tmp_path):
    (tmp_path / "run.toml").write_text(to_toml(config("fedavg", rounds=50)))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {
        **os.environ,
        "TMPDIR": str(scratch),
        "PYTHONPATH": os.pathsep.join(str(Path(p or ".").resolve()) for p in sys.path),
    }
    command = [sys.executable, "-m", "fedstill", "flower", "up", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]
    with open(tmp_path / "said", "wb") as said:
        heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job would be deaf to Ctrl-C
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=said, stderr=said, preexec_fn=heard)
    started: list[psutil.Process] = []
    try:
        until(lambda: len(read_history(tmp_path / "out" / "history.jsonl")) > 0, 90 + 60 * pace, "the first round")
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(30 + 5 * pace) == 130
        _, alive = psutil.wait_procs(started, timeout=5)
    finally:
        for each in [process, *started]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    assert len(started) >= 4  # the link, two nodes, the run
    assert not alive
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(scratch) in " ".join(p.info["cmdline"] or [])]
    assert not list(scratch.glob("fedstill-flower-*"))  # keys and certificates are removed too
    assert "--resume" in (tmp_path / "said").read_text()
