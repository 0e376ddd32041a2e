"""Runs of a study: listed before they start, several at a time, one failure does not stop the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.core.errors import FedstillError
from fedstill.reproduce import STUDIES, Plan, cell, estimate, reproduce, runs_of, study
from fedstill.reproduce.index import write_index
from fedstill.reproduce.running import place

TREE = {
    "rounds": 1,
    "data": {"domains": ["embedded:optdigits"], "limit": 40, "test_limit": 20, "image_size": 8, "channels": 1},
    "clients": {"per_domain": 2},
    "model": {"name": "mlp", "options": {"hidden": [8]}},
    "local": {"epochs": 1, "batch_size": 16},
    "engine": {"threads": 1},
}


@pytest.fixture
def named(monkeypatch):
    """A study of three rows, of which one fails while it runs."""

    def run(plan):
        cells = []
        for row, more in (("good", {}), ("bad", {"clients": {"per_domain": 1000}}), ("also", {"rounds": 2})):
            if plan.wants(row):
                found = runs_of(plan, row, {**TREE, **more})
                cells.append(cell("test-jobs", row, "digits", [one.summary["final_accuracy"] for one in found]))
        return cells

    monkeypatch.setattr(STUDIES, "_members", dict(STUDIES._members))
    study("test-jobs", "Test, Table 1: jobs", small=6, paper=1)(run)
    return "test-jobs"


def test_a_run_that_fails_is_named_and_the_others_are_made(named, tmp_path):
    plan = Plan(tmp_path / named)
    before = estimate(named, plan)
    assert (before.runs, before.finished, before.minutes) == (3, 0, 6)
    result = reproduce(named, plan)
    assert list(result.failed) == ["bad/seed0"]
    assert {c.row: len([v for v in c.ours if v is not None]) for c in result.cells} == {"good": 1, "bad": 0, "also": 1}
    assert "failed" in (tmp_path / named / "table.md").read_text()
    assert "Traceback" in (tmp_path / named / "bad" / "seed0" / "error.txt").read_text()
    after = estimate(named, plan)
    assert (after.finished, after.minutes) == (2, 2)  # a third of six minutes is left
    kept = json.loads((tmp_path / named / "cells.json").read_text())
    assert kept["failed"] == result.failed
    assert kept["command"] == "fedstill reproduce test-jobs --scale small --seeds 0"
    page = write_index(tmp_path).read_text()
    assert "failed: bad/seed0" in page
    assert "not comparable" in page  # claims of studies that were not run


def test_the_command_ends_with_status_one(named, tmp_path):
    done = CliRunner().invoke(app, ["reproduce", named, "--only", "bad,good", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "test-jobs: 2 runs; the rest takes about 4 min" in done.output
    assert "failed: bad/seed0: " in done.output


def test_several_at_a_time_give_the_same_figures(tmp_path):
    sets = ("rounds=1", "data.limit=60", "data.test_limit=30", "local.epochs=1", "engine.threads=1")
    plan = Plan(tmp_path / "one", only=("fedavg",), columns=("none", "flipped labels, 20%"), sets=sets)
    alone = reproduce("poisoning", plan).cells
    said: list[str] = []
    parallel = reproduce("poisoning", replace(plan, out=tmp_path / "two", jobs=2), told=said.append)
    assert parallel.cells == alone
    assert len(said) == 2
    weights = [Path("fedavg-none/seed0/model.safetensors"), Path("fedavg-flipped-labels-20/seed0/model.safetensors")]
    assert all((tmp_path / "one" / w).read_bytes() == (tmp_path / "two" / w).read_bytes() for w in weights)


def test_a_study_without_a_scale_runs_at_the_next_larger(named, tmp_path):
    reproduce(named, Plan(tmp_path, scale="tiny", only=("good",)))
    assert json.loads((tmp_path / "cells.json").read_text())["scale"] == "small"


def test_studies_that_share_their_runs_make_each_once(named, tmp_path):
    """The second study finds the first one's runs by their configuration, whatever it calls its rows."""
    first = reproduce(named, Plan(tmp_path / "first", only=("good",), runs=tmp_path / "runs"))

    def other(plan):
        found = runs_of(plan, "another name", TREE)
        assert found[0].folder == tmp_path / "runs" / "first" / "good" / "seed0" or plan.sets
        return [cell("test-other", "row", "digits", [one.summary["final_accuracy"] for one in found])]

    study("test-other", "Test, Table 2: the same run", small=1, paper=1)(other)
    plan = Plan(tmp_path / "second", runs=tmp_path / "runs")
    assert (estimate("test-other", plan).runs, estimate("test-other", plan).finished) == (1, 1)
    assert reproduce("test-other", plan).cells[0].ours == first.cells[0].ours
    changed = replace(plan, sets=("rounds=2",))
    assert (estimate("test-other", changed).runs, estimate("test-other", changed).finished) == (1, 0)
    assert not (tmp_path / "second" / "another name").exists()


def test_a_mistake_is_said_before_anything_runs(named, tmp_path):
    with pytest.raises(FedstillError, match="has no such row or column: --only nobody$"):
        reproduce(named, Plan(tmp_path, only=("nobody",)))
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):  # one line on the command line, and no estimate without the runs
        estimate(named, Plan(tmp_path, runs=tmp_path / "file"))


def test_shared_runs_of_a_study_in_the_current_folder_stay_below_theirs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place(Plan(Path(), runs=Path("runs")), "row/seed0", "rounds = 1") == Path("runs") / tmp_path.name / "row" / "seed0"
