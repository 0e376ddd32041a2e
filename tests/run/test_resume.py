"""A run killed at any moment and resumed ends with the weights of one that was left alone, bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from fedstill.config.tables import to_toml
from fedstill.core.errors import FedstillError
from fedstill.run.checkpoint import load_checkpoint
from fedstill.run.folder import folder_lock
from fedstill.run.listener import Listener
from fedstill.run.loop import run

ROUNDS = 50


def command(config, out, *more):
    return [sys.executable, "-m", "fedstill", "run", str(config), "--out", str(out), *more]


def test_killed_three_times_and_resumed_is_bitwise_the_same(tiny, tmp_path):
    settings = tiny(rounds=ROUNDS, clients={"per_domain": 3, "fraction": 0.5}, algorithm={"name": "moon"})
    config = tmp_path / "config.toml"
    config.write_text(to_toml(settings))
    whole = run(settings, tmp_path / "whole")
    out, environment = tmp_path / "killed", {**os.environ, "OMP_NUM_THREADS": "1"}
    chance = random.Random(5)
    kills = 0
    for _ in range(40):
        more = ["--resume"] if (out / "history.jsonl").exists() else []
        process = subprocess.Popen(command(config, out, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        if kills == 3:
            break
        # wait for a round that this attempt made, then kill at a random moment of the next ones
        before = rounds(out)
        while rounds(out) <= before and process.poll() is None:
            time.sleep(0.005)
        time.sleep(chance.random() * 0.08)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        if (out / "summary.json").exists():
            break
    _, error = process.communicate()
    assert kills == 3, "the run ended before it could be killed three times; give it more rounds"
    assert process.returncode == 0, error.decode()
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert rounds(out) == len(whole.history) == ROUNDS


def rounds(out):
    path = out / "history.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(tiny, tmp_path):
    settings = tiny(rounds=3)
    whole = run(settings, tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoint").iterdir())
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    warnings = []
    found = load_checkpoint(tmp_path / "run" / "checkpoint", warnings.append)
    assert found is not None
    assert found[0] == 2
    assert "damaged" in warnings[0]
    again = run(settings, tmp_path / "run", resume=True)
    assert [line["round"] for line in again.history] == [1, 2, 3]
    assert again.history[-1]["accuracy"] == whole.history[-1]["accuracy"]


def test_all_checkpoints_damaged_is_a_clear_error(tiny, tmp_path):
    run(tiny(rounds=1), tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoint").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(FedstillError, match=r"every checkpoint .* is damaged"):
        load_checkpoint(tmp_path / "run" / "checkpoint", lambda text: None)


def test_resume_refuses_another_configuration_but_takes_more_rounds(tiny, tmp_path):
    run(tiny(rounds=1), tmp_path / "run")
    with pytest.raises(FedstillError, match="already holds a run"):
        run(tiny(rounds=1), tmp_path / "run")
    with pytest.raises(FedstillError, match="differs from this configuration"):
        run(tiny(rounds=1, seed=4), tmp_path / "run", resume=True)
    changed = tiny(rounds=1, data={"limit": None})
    with pytest.raises(FedstillError, match=r"configuration in data.limit \(120 then, unset now\): continuing"):
        run(changed, tmp_path / "run", resume=True)
    longer = run(tiny(rounds=2), tmp_path / "run", resume=True)
    straight = run(tiny(rounds=2), tmp_path / "straight")
    assert longer.history[-1]["accuracy"] == straight.history[-1]["accuracy"]


def test_a_crash_between_the_line_and_its_checkpoint_repeats_the_round(tiny, tmp_path, monkeypatch):
    settings = tiny(rounds=3)
    whole = run(settings, tmp_path / "whole")
    import fedstill.run.loop as loop

    real, calls = loop.save_checkpoint, []

    def failing(folder, number, server):
        if number == 2 and not calls:
            calls.append(number)
            raise KeyboardInterrupt
        return real(folder, number, server)

    monkeypatch.setattr(loop, "save_checkpoint", failing)
    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "run")
    assert rounds(tmp_path / "run") == 2
    again = run(settings, tmp_path / "run", resume=True)
    assert [line["round"] for line in again.history] == [1, 2, 3]
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert whole.history[-1]["accuracy"] == again.history[-1]["accuracy"]


class Warned(Listener):
    """What a run warned of."""

    def __init__(self):
        self.texts = []

    def warn(self, text):
        self.texts.append(text)


def test_a_damaged_line_costs_itself_and_nothing_else(tiny, tmp_path):
    run(tiny(rounds=3), tmp_path)
    path = tmp_path / "history.jsonl"
    first, _, third = path.read_text().splitlines()
    damaged = f"{first}\n{{cut o\n{third}\n3\n{{}}\n"
    path.write_text(damaged)
    warned = Warned()
    again = run(tiny(rounds=4), tmp_path, resume=True, listeners=[warned])
    assert [line["round"] for line in again.history] == [1, 3, 4]
    assert again.summary["rounds"] == 4
    assert (tmp_path / "history.damaged.jsonl").read_text() == damaged
    assert any("2 of the 3 rounds" in text for text in warned.texts)


def test_finished_rounds_are_not_lost_to_a_missing_checkpoint_or_configuration(tiny, tmp_path):
    run(tiny(rounds=2), tmp_path)
    before = (tmp_path / "history.jsonl").read_text()
    kept = (tmp_path / "config.toml").read_text()
    (tmp_path / "config.toml").unlink()
    with pytest.raises(FedstillError, match=r"config\.toml is missing"):
        run(tiny(rounds=3, seed=7), tmp_path, resume=True)
    (tmp_path / "config.toml").write_text(kept[: len(kept) // 2] + "\n[half")
    with pytest.raises(FedstillError, match="is not TOML"):
        run(tiny(rounds=3), tmp_path, resume=True)
    (tmp_path / "config.toml").write_text(kept)
    with pytest.raises(FedstillError, match="already has 2 rounds, but rounds = 1"):
        run(tiny(rounds=1), tmp_path, resume=True)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(FedstillError, match="no checkpoint to resume from"):
        run(tiny(rounds=3), tmp_path, resume=True)
    assert (tmp_path / "history.jsonl").read_text() == before


def test_a_folder_of_something_else_is_left_alone(tiny, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"somebody's")
    for resume in (False, True):
        with pytest.raises(FedstillError, match="choose another folder"):
            run(tiny(rounds=1), tmp_path, resume=resume)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("model.safetensors", b"somebody's")]


def test_a_run_whose_first_round_failed_can_be_begun_anew(tiny, tmp_path):
    broken = tiny(rounds=1, local={"optimizer": {"lr": 1e30}})
    with pytest.raises(FedstillError, match="usable replies") as error:
        run(broken, tmp_path)
    assert "can be resumed" not in str(error.value)
    assert len(run(tiny(rounds=1), tmp_path).history) == 1


def test_one_process_at_a_time_writes_to_a_folder(tiny, tmp_path):
    with folder_lock(tmp_path), pytest.raises(FedstillError, match="another process is writing"):
        run(tiny(rounds=1), tmp_path)
    assert len(run(tiny(rounds=1), tmp_path).history) == 1


def test_more_rounds_than_planned_are_warned_of(tiny, tmp_path):
    run(tiny(rounds=1), tmp_path)
    warned = Warned()
    run(tiny(rounds=2), tmp_path, resume=True, listeners=[warned])
    assert warned.texts == ["rounds were 1 and are now 2: schedules continue with the new number"]
