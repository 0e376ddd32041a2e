"""Mistakes in a configuration: one line that names the key, the value and the nearest valid name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedstill.cli import app, main
from fedstill.config.presets import presets
from fedstill.config.tables import to_toml
from fedstill.core.errors import FedstillError
from fedstill.run.configuration import configuration, from_toml, parse, resolve
from tests.conftest import tiny_tree


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rouns": 3}, "unknown key 'rouns'; did you mean 'rounds'?"),
        (
            {"algorithm": {"name": "feddf", "weighting_options": {"nonsense": 1}}},
            "unknown key 'algorithm.weighting_options.nonsense'",
        ),
        ({"local": {"epoch": 3}}, "unknown key 'local.epoch'; did you mean 'local.epochs'?"),
        ({"local": {"optimizer": {"lrr": 3}}}, "unknown key 'local.optimizer.lrr'; did you mean 'local.optimizer.lr'?"),
        ({"algorithm": {"name": "fedprox", "mue": 1}}, "unknown key 'algorithm.mue'; did you mean 'algorithm.mu'?"),
        ({"algorithm": {"name": "fedagv"}}, "unknown algorithm 'fedagv'; did you mean 'fedavg'?"),
        ({"rounds": 0}, "rounds = 0: Input should be greater than or equal to 1"),
        ({"local": {"optimizer": {"name": "sdg"}}}, "did you mean 'sgd'?"),
        ({"clients": {"fraction": 1.5}}, "clients.fraction = 1.5: Input should be less than or equal to 1"),
        ({"engine": {"workers": 1_000_000_000}}, "engine.workers = 1000000000: Input should be less than or equal to 256"),
        ({"clients": {"partition": {"kind": "dirichlt"}}}, "did you mean 'dirichlet'?"),
        (
            {"algorithm": {"name": "feddf", "distillation": {"step": 1}}},
            "unknown key 'algorithm.distillation.step'; did you mean 'algorithm.distillation.steps'?",
        ),
        ({"data": {"domains": ["embedded:mnist", "embedded:mnist"]}}, "lists a domain twice"),
        ({"algorithm": {}}, "needs a name"),
    ],
)
def test_one_line_that_names_the_mistake(change, text):
    tree = {**tiny_tree(), **change} if "algorithm" in change else tiny_tree(**change)
    with pytest.raises(FedstillError) as error:
        parse(tree)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_does_not_hide_a_preset_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "other").mkdir()
    assert configuration("demo").rounds == 6
    with pytest.raises(FedstillError, match="no such file: other"):
        configuration("other")


def test_the_resolved_configuration_reads_back_the_same():
    for name in presets():
        config = configuration(name)
        assert from_toml(to_toml(config)) == config


def test_a_none_that_no_file_can_say_is_refused_instead_of_replaced_by_the_default():
    tree = {"data": {"domains": ["embedded:mnist"], "holdout": 0.1}, "algorithm": {"name": "feddf"}}
    with pytest.raises(FedstillError, match=r"algorithm.distillation.clip = None would be lost"):
        parse({**tree, "algorithm": {"name": "feddf", "distillation": {"clip": None}}})
    off = parse({**tree, "algorithm": {"name": "feddf", "distillation": {"clip": 0, "averaging": False}}})
    assert off.algorithm["distillation"]["clip"] == 0


def test_another_system_drops_the_options_written_for_the_first_and_takes_its_own():
    raw = {**tiny_tree(), "algorithm": {"name": "fedprox", "mu": 0.5}, "for": {"moon": {"algorithm": {"mu": 7.0}, "rounds": 9}}}
    assert resolve(raw).algorithm["mu"] == 0.5
    plain = resolve(raw, ["algorithm.name=fedavg"]).algorithm
    assert plain["name"] == "fedavg"
    assert "mu" not in plain
    moon = resolve(raw, ["algorithm.name=moon", "rounds=4"])
    assert (moon.algorithm["mu"], moon.rounds) == (7.0, 4)


def leaves(tree, path=()):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        yield (*path, key)


PLACES = list(leaves(configuration("demo", ["algorithm.name=feddf"]).model_dump(mode="json", exclude_none=True)))
FREE = {("seed",), ("data", "root"), ("data", "limit"), ("model", "weights"), ("data", "test_limit")}
bad_values = st.sampled_from([-1, 0, -0.5, 1e9, "", "nonsense", [], ["x"], {"x": 1}, [[1]], float("inf")])


def broken(tree, path, way, value):
    tree = {**tree}
    if len(path) > 1:
        inner = tree.get(path[0])
        tree[path[0]] = broken(inner if isinstance(inner, dict) else {}, path[1:], way, value)
    elif way == "rename":
        tree[path[0] + "x"] = tree.pop(path[0], 1)
    else:
        tree[path[0]] = value
    return tree


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(PLACES), st.sampled_from(["rename", "replace"]), bad_values)
def test_a_hundred_malformed_configurations_end_with_status_2_and_no_traceback(tmp_path_factory, path, way, value):
    folder = tmp_path_factory.mktemp("bad")
    good = configuration("demo", ["algorithm.name=feddf"]).model_dump(mode="json", exclude_none=True)
    tree = broken(good, path, way, value)
    try:
        resolve(tree)
    except FedstillError:
        pass
    else:
        tree = {**tree, "unheard-of": 1}  # the change was a valid one: spoil it another way
    (folder / "bad.toml").write_text(tomli_w.dumps(tree))
    result = CliRunner().invoke(app, ["run", str(folder / "bad.toml"), "--out", str(folder / "out")])
    assert isinstance(result.exception, FedstillError), result.exception  # which main() turns into one line and status 2
    assert "\n" not in str(result.exception)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "dmo"], "unknown preset 'dmo'; did you mean 'demo'?"),
        (["run", "absent.toml"], "no such file: absent.toml"),
        (["run", "demo", "--set", "rounds"], "a setting is key=value"),
        (["run", "demo", "--set", 'data.domains=["embedded:mnits"]'], "mnist"),
        (["run", "demo", "--set", 'data.domains=["no/such/folder"]'], "no/such/folder"),
        (["run", "demo", "--set", "model.name=resnet9"], "resnet8"),
        (["run", "demo", "--set", "clients.per_domain=100000"], "clients"),
        (["compare", "demo", "--seeds", "a"], "--seeds takes whole numbers"),
        (["compare", "demo", "--algorithms", "fedavg,fedprx"], "did you mean 'fedprox'?"),
    ],
)
def test_the_command_line_says_one_line_and_exits_with_2(arguments, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedstill", *arguments, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_a_real_process_ends_with_status_2_and_no_traceback(tmp_path):
    (tmp_path / "bad.toml").write_text("rounds = [")
    done = subprocess.run(
        [sys.executable, "-m", "fedstill", "run", str(tmp_path / "bad.toml")],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 2
    assert "is not TOML" in done.stderr
    assert "Traceback" not in done.stderr
