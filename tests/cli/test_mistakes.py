"""What a user mistypes is told once, in one line, with what would mend it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedstill.cli import main
from fedstill.cli.completion import KEYS, joined_words
from fedstill.config.tables import Config, to_toml
from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write
from fedstill.core.options import table_in
from fedstill.core.scratch import Scratch
from fedstill.run.configuration import configuration, parse
from fedstill.run.loop import run
from tests.conftest import tiny_tree


def said(capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["fedstill", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_key_that_is_missing_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "(--set data.root=FOLDER)" in said(capsys, monkeypatch, "run", "silos")


def test_did_you_mean_is_said_once(capsys, monkeypatch):
    assert said(capsys, monkeypatch, "rn", "demo").lower().count("did you mean") == 1
    assert said(capsys, monkeypatch, "run", "dmo").count("did you mean") == 1
    with pytest.raises(FedstillError, match=r"unknown key 'algorithm.nam'; did you mean 'algorithm.name'\?"):
        configuration("demo", ["algorithm.nam=feddf"])
    with pytest.raises(FedstillError, match=r"unknown key 'data.rot'; did you mean 'data.root'\?"):  # as --set takes it
        configuration("demo", ["data.rot=x"])


@pytest.mark.parametrize("value", ["nan", "inf", "[16, nan]", "{ a = -inf }"])
def test_numbers_that_are_none_are_refused(value):
    with pytest.raises(FedstillError, match=r"model\.options\.hidden.* = -?(nan|inf): numbers must be finite"):
        configuration("demo", ["model.name=mlp", f"model.options.hidden={value}"])


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("line.judge=x", "algorithm.line.judge = \"x\": should be 'auto'"),
        ("line.carry=2", "algorithm.line.carry = 2: Input should be less than or equal to 1; or 'tolerant' or 'delivered'"),
        ("line.points=[0, 2]", "algorithm.line.points.1 = 2: "),
        ("line=true", "algorithm.line = true: should be a table; or false"),
        ("line.juge=x", "unknown key 'algorithm.line.juge'; did you mean 'algorithm.line.judge'?"),
        ("distillation.averaging.every=0", "algorithm.distillation.averaging.every = 0: "),
    ],
)
def test_a_mistake_in_a_choice_between_kinds_is_named_by_its_key_alone(setting, says):
    with pytest.raises(FedstillError) as caught:
        configuration("demo", ["algorithm.name=feddf", f"algorithm.{setting}"])
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize("key", ["data.root", "local.steps", "local.clip", "clients.per_round", "clients.timeout", "data.mean"])
def test_null_is_taken_where_the_page_shows_it(key):
    assert to_toml(configuration("demo", [f"{key}=null"])) == to_toml(configuration("demo", [f"{key}="]))


def test_the_keys_that_the_shell_offers_are_those_that_there_are():
    def keys(kind, prefix=""):
        for name, field in kind.model_fields.items():
            table = table_in(field.annotation)
            if table is not None and not str(field.annotation).startswith("dict"):
                yield from keys(table, f"{prefix}{name}.")
            elif prefix + name != "algorithm":
                yield prefix + name

    assert sorted(set(keys(Config))) == list(KEYS)


@pytest.mark.parametrize(
    ("words", "place", "whole"),
    [
        (["fedstill", "run", "--set", "a", "=", "b"], 5, (["fedstill", "run", "--set", "a=b"], 3, "a=")),
        (["fedstill", "run", "--set", "a", "="], 4, (["fedstill", "run", "--set", "a="], 3, "a=")),
        (["fedstill", "run", "embedded", ":", "mn"], 4, (["fedstill", "run", "embedded:mn"], 2, "embedded:")),
        (["fedstill", "run", "--set", "a", "=", "b", "--o"], 6, (["fedstill", "run", "--set", "a=b", "--o"], 4, "")),
        (["fedstill", "run", ""], 2, (["fedstill", "run", ""], 2, "")),
    ],
)
def test_words_that_bash_breaks_are_joined(words, place, whole):
    assert joined_words(words, place) == whole


BASH = """
eval "$(fedstill --show-completion bash)"
COMP_WORDS=(fedstill run demo --set algorithm.name = fedp)
COMP_CWORD=6
_fedstill_completion fedstill
echo "${COMPREPLY[@]}"
"""


def test_bash_completes_what_stands_behind_the_sign(tmp_path):
    command = tmp_path / "fedstill"
    command.write_text(
        f"#!{sys.executable}\nimport sys; sys.argv[0] = 'fedstill'\nfrom fedstill.cli import main; main()\n", encoding="utf-8"
    )
    command.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", BASH], capture_output=True, text=True, env={**os.environ, "PATH": path}, timeout=120)
    assert done.stdout.strip().splitlines()[-1:] == ["fedprox"], done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [("run", "can be resumed with --resume\n"), ("compare", "the same command resumes it\n"), ("audit", "fedstill: stopped\n")],
)
def test_only_a_command_that_can_be_resumed_says_so(capsys, monkeypatch, command, says):
    def stopped():
        raise SystemExit(130)

    monkeypatch.setattr(sys, "argv", ["fedstill", command, "x"])
    monkeypatch.setattr("fedstill.cli.app", stopped)
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.endswith(says)


# -- full disks and killed processes -------------------------------------------------------------------------------------------


def full(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_named_and_leaves_no_part(monkeypatch, tmp_path):
    atomic_write(tmp_path / "a.txt", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.txt'"):
        atomic_write(tmp_path / "a.txt", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_run_on_a_full_disk_says_so_in_one_line(capsys, monkeypatch, tmp_path):
    (tmp_path / "a.toml").write_text(to_toml(parse(tiny_tree(rounds=1))))
    monkeypatch.setattr(os, "fsync", full)
    text = said(capsys, monkeypatch, "run", tmp_path / "a.toml", "--out", tmp_path / "run")
    assert "No space left on device: " in text
    assert str(tmp_path / "run") in text
    assert "Traceback" not in text
    assert not list(tmp_path.rglob("*.part"))


HELD = """
import time
from fedstill.core.scratch import Scratch
held = Scratch("test")
print(held.folder, flush=True)
time.sleep(600)
"""


def test_folders_of_killed_processes_are_removed_by_the_next(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    processes = [subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    try:
        killed, living = (Path(process.stdout.readline().decode().strip()) for process in processes)
        processes[0].kill()
        processes[0].wait()
        (tmp_path / "fedstill-mine-x").mkdir()  # a folder of this name that no process of ours made
        assert killed.exists()
        assert living.exists()
        with Scratch("test", tmp_path) as own:
            assert own.exists()
            assert not killed.exists()
            assert living.exists()
        assert sorted(tmp_path.iterdir()) == sorted([living, tmp_path / "fedstill-mine-x"])
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def test_what_a_killed_run_had_begun_to_write_is_removed(tiny, tmp_path):
    run(tiny(rounds=1), tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / "checkpoint" / f".round-000002.safetensors.{gone.pid}.part"
    other = tmp_path / f".report.html.{os.getpid()}.part"  # of a process that lives
    left.write_bytes(b"half")
    other.write_bytes(b"half")
    run(tiny(rounds=2), tmp_path, resume=True)
    assert not left.exists()
    assert other.exists()
    assert time.time() - other.stat().st_mtime < 600
