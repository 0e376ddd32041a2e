"""The commands leave the files that the documentation promises, and say what they did."""

from __future__ import annotations

import json
import tomllib

import pytest
import safetensors.torch
from typer.testing import CliRunner

from fedstill.algorithms import algorithms
from fedstill.cli import app, main
from fedstill.config.tables import to_toml
from fedstill.core.errors import FedstillError
from fedstill.run.configuration import from_toml

FIELDS = {
    "round",
    "accuracy",
    "domains",
    "merged_accuracy",
    "ensemble_accuracy",
    "bytes_down",
    "bytes_up",
    "seconds",
    "clients",
    "dropped",
}
SUMMARY = {"algorithm", "seed", "rounds", "final_accuracy", "best_accuracy", "best_round", "rounds_to", "bytes_total", "versions"}
SMALL = ["data.limit=100", "data.test_limit=40", "data.image_size=16", "local.steps=3", "rounds=2"]


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def settings(*assignments):
    return [word for assignment in assignments for word in ("--set", assignment)]


@pytest.fixture
def config(tiny, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(tiny(evaluation={"targets": [0.1, 0.99]})))
    return path


def test_run_leaves_the_promised_folder(config, tmp_path):
    said = invoke("run", config, "--out", tmp_path / "run")
    assert said.exit_code == 0
    assert "optdigits-0" in said.output  # who holds what
    assert "round   2/2" in said.output
    folder = tmp_path / "run"
    resolved = from_toml((folder / "config.toml").read_text())
    assert resolved.algorithm["name"] == "fedavg"
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    for line in lines:
        assert line.keys() >= FIELDS
        assert line["seconds"].keys() == {"train", "fuse", "evaluate"}
        assert line["accuracy"] == pytest.approx(sum(line["domains"].values()) / len(line["domains"]))
        assert line["bytes_down"] > 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.keys() >= SUMMARY
    assert summary["final_accuracy"] == lines[-1]["accuracy"]
    assert summary["rounds_to"] == {"0.1": 1, "0.99": None}
    assert summary["bytes_total"] == sum(line["bytes_down"] + line["bytes_up"] for line in lines)
    assert safetensors.torch.load_file(folder / "model.safetensors")
    assert list((folder / "checkpoint").iterdir())


def test_several_prototypes_are_several_files(tmp_path, tiny):
    (tmp_path / "two.toml").write_text(to_toml(tiny(rounds=1, model={"clients": ["mlp", "text"]})).replace('"text"', '"lenet"'))
    tree = tomllib.loads((tmp_path / "two.toml").read_text())
    assert tree["model"]["clients"] == ["mlp", "lenet"]
    done = invoke("run", tmp_path / "two.toml", *settings("model.options={}", "data.image_size=16"), "--out", tmp_path / "run")
    assert done.exit_code == 0
    assert {path.name for path in (tmp_path / "run" / "models").iterdir()} == {"mlp.safetensors", "lenet.safetensors"}
    line = json.loads((tmp_path / "run" / "history.jsonl").read_text())
    assert line["prototypes"].keys() == {"mlp", "lenet"}


def test_compare_writes_a_table_and_keeps_what_is_done(config, tmp_path):
    arguments = ("compare", config, "--algorithms", "fedavg,fedprox", "--seeds", "0,1", "--out", tmp_path / "all")
    first = invoke(*arguments)
    assert first.exit_code == 0
    told = [line for line in first.output.splitlines() if "95 % interval" in line]
    assert len(told) == 1, "the verdict, in one line"
    assert "2 seeds)" in told[0]
    table = (tmp_path / "all" / "table.md").read_text()
    assert "fedavg" in table
    assert "±" in table
    assert len(json.loads((tmp_path / "all" / "summary.json").read_text())) == 4
    assert (tmp_path / "all" / "report.html").stat().st_size > 1000
    again = invoke(*arguments)
    assert again.output.count("already there") == 4
    other = CliRunner().invoke(app, [*map(str, arguments), "--set", "local.epochs=2"])
    assert "another configuration" in str(other.exception)


def test_listings():
    named = json.loads(invoke("algorithms", "--json").output)
    assert named.keys() == algorithms().keys()
    assert named["fedprox"]["options"]["mu"] == 0.01
    assert "fedprox" in invoke("algorithms").output
    assert "demo" in invoke("presets").output
    assert invoke("--version").output.startswith("fedstill ")


@pytest.mark.parametrize("name", algorithms())
def test_every_system_runs_on_the_demo_s_domains(name, tmp_path):
    done = invoke("run", "demo", *settings(f"algorithm.name={name}", *SMALL), "--out", tmp_path / "run")
    assert done.exit_code == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert all(line.keys() >= FIELDS and not line["dropped"] for line in lines)
    assert 0 <= lines[-1]["accuracy"] <= 1


def test_the_demo_replaces_its_own_runs_and_nothing_else(tmp_path, monkeypatch):
    out = tmp_path / "demo"
    own = out / "fedavg" / "seed0"
    own.mkdir(parents=True)
    for path in (own / "history.jsonl", out / "report.html", out / "thesis.tex"):
        path.write_text("")
    with pytest.raises(FedstillError, match="rounds"):
        invoke("demo", "--out", out, "--set", "rounds=abc")
    assert own.exists()  # a mistake costs nothing
    monkeypatch.setattr("fedstill.cli.demo.compare_shown", lambda *_: None)
    assert invoke("demo", "--out", out).exit_code == 0
    assert not own.exists()
    assert (out / "thesis.tex").exists()


def test_a_comparison_says_what_cannot_run_before_the_first_one_trains(config, tmp_path):
    with pytest.raises(FedstillError, match=r"data\.target"):
        invoke("compare", config, "--algorithms", "fedavg,kdcl", "--seeds", "0", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--out", "FILE"], "File exists"),
        (["--set", "seed=-1"], "seed = -1"),
        (["--set", "engine.device=foo"], "engine.device = 'foo' is not a device"),
        (["--set", "when=2020-01-01"], "unknown key 'when'"),
    ],
)
def test_mistakes_are_one_line_and_status_2(config, tmp_path, monkeypatch, capsys, arguments, text):
    (tmp_path / "file").write_text("")
    given = [str(tmp_path / "file") if word == "FILE" else word for word in arguments]
    monkeypatch.setattr("sys.argv", ["fedstill", "run", str(config), "--out", str(tmp_path / "run"), *given])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("fedstill: ")
    assert text in said
    assert said.count("\n") == 1


def test_a_study_without_such_a_row_is_refused(tmp_path):
    with pytest.raises(FedstillError, match="no such row or column"):
        invoke("reproduce", "feddf-table5", "--only", "nosuch", "--data", tmp_path, "--out", tmp_path / "out")
