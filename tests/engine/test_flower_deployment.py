"""Real SuperLinks and SuperNodes on loopback: equal to one process, closed to strangers, and hard to bring down."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra fedstill[flower] is not installed")
pytest.importorskip("psutil", reason="psutil is not installed")

import psutil

from fedstill.config.tables import to_toml
from fedstill.engine.flower.app import write_app
from fedstill.engine.flower.loopback import Loopback
from fedstill.run.history import read_history
from fedstill.run.judging import delivered
from fedstill.run.loop import run
from tests.engine.federations import assert_equal, config, until, weights

pytestmark = pytest.mark.deployment


def test_nodes_that_die_hang_or_lie_cost_their_replies(pace, tmp_path):
    setup = config(
        "tests.engine.trouble:Trouble",
        options={"distillation": {"steps": 3}, "line": False},  # the judges would wait for the dead as well
        rounds=3,
        clients={"per_domain": 2, "timeout": max(60.0, 20 * pace)},
        model={"clients": ["mlp", "cnn-small"], "options": {}, "by": "client"},
    )
    out = tmp_path / "out"
    with Loopback(tmp_path / "link") as link:
        nodes = [link.node(f"node-{i}", {"partition-id": i, "num-partitions": 4}) for i in range(4)]
        submitted = link.submit(write_app(tmp_path / "app", setup), {"out": str(out), "nodes": 4})
        until(lambda: len(read_history(out / "history.jsonl")) == 1, 120 + 60 * pace, "the first round")
        os.killpg(nodes[3].pid, signal.SIGKILL)  # the machine of optdigits-1 loses power
        submitted.wait(240 + 100 * pace)
        first, second, third = read_history(out / "history.jsonl")
        started = [process.pid for process in link.processes]
    assert not first["dropped"]
    assert set(first["prototypes"]) == {"mlp", "cnn-small"}  # two architectures, both distilled from all
    reasons = {d["client"]: d["reason"] for d in second["dropped"]}
    assert second["clients"] == ["mnist-0"]
    assert "not finite" in reasons["mnist-1"]
    assert "no reply within" in reasons["optdigits-0"]
    assert "optdigits-1" in reasons
    assert "mnist-1" in third["clients"]  # forgiven
    assert "wrong shape" in {d["client"]: d["reason"] for d in third["dropped"]}["mnist-0"]
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
