"""``fedstill flower``: what it writes, and what it says when asked for the impossible."""

from __future__ import annotations

import tomllib

import pytest
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.core.errors import FedstillError
from fedstill.run.configuration import from_toml


def call(*arguments):
    return CliRunner().invoke(app, ["flower", *arguments], catch_exceptions=False)


def test_init_writes_an_app_for_the_configuration(tmp_path):
    folder = tmp_path / "app"
    done = call("init", str(folder), "demo", "--set", "rounds=7", "--nodes", "3")
    assert done.exit_code == 0
    project = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert project["components"] == {"serverapp": "federation.server_app:app", "clientapp": "federation.client_app:app"}
    assert project["config"]["nodes"] == 3
    assert from_toml((folder / "federation" / "config.toml").read_text()).rounds == 7


def test_init_does_not_write_over_anything(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FedstillError, match="is not empty"):
        call("init", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["demo", "--clients", "4"], "4 clients cannot be divided evenly among 3 domains"),
        (["demo", "--data", "/a/x", "--data", "/b/x"], "two nodes would be called 'x'"),
        (["nothing"], "unknown preset 'nothing'"),
    ],
)
def test_up_says_what_is_wrong_before_it_starts_anything(arguments, text):
    pytest.importorskip("flwr", reason="the extra fedstill[flower] is not installed")
    with pytest.raises(FedstillError, match=text):
        call("up", *arguments)


def test_up_does_not_write_over_a_run(tmp_path):
    pytest.importorskip("flwr", reason="the extra fedstill[flower] is not installed")
    (tmp_path / "history.jsonl").write_text("{}\n")
    with pytest.raises(FedstillError, match="already holds a run"):
        call("up", "demo", "--clients", "2", "--out", str(tmp_path))
