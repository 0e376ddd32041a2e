"""``fedstill parts`` finds every registry and every member, built in or offered by an installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.cli.completion import SYSTEMS
from fedstill.cli.parts import KINDS, registry_of
from fedstill.core.errors import FedstillError
from fedstill.core.registry import Registry

MODULES = {
    "plugged_system": '''
from fedstill import Algorithm

class Loud(Algorithm):
    """Everybody at once.

    And more on it."""

    name, title, paper = "loud", "Loud", "nobody, 2020"
''',
    "plugged_weighting": """
from fedstill.fusion.weightings import weighting

@weighting("loudest", summary="who shouts")
def loudest(context): ...
""",
    "plugged_study": """
from fedstill.reproduce import Cell, study

@study("louder-table1", "Louder, Table 1", small=1, paper=2)
def table1(plan):
    return [Cell("row", "column", (0.5,))]
""",
    "plugged_taken": """
from fedstill.reproduce import study

@study("poisoning", "a name that is taken", small=1, paper=2)
def taken(plan): ...
""",
    "plugged_broken": "import no_such_module",
}
POINTS = """\
[fedstill.algorithms]
loud = plugged_system:Loud
[fedstill.weightings]
loudest = plugged_weighting:loudest
[fedstill.merges]
broken = plugged_broken:merge
[fedstill.studies]
louder-table1 = plugged_study:table1
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder that looks like an installed package with parts of its own."""
    folder = tmp_path_factory.mktemp("site")
    about = folder / "louder-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: louder\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(POINTS)
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def fedstill(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "fedstill", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"})


def test_every_registry_is_listed() -> None:
    listed = [registry_of(kind) for kind in KINDS]
    ours = [registry for registry in Registry.everywhere if registry.group.startswith("fedstill.")]
    assert {registry.group for registry in listed} == {registry.group for registry in ours}


def test_every_member_has_a_line(tmp_path: Path) -> None:
    tree = json.loads(fedstill(tmp_path, "parts", "--json").stdout)
    assert tree.keys() == KINDS.keys()
    assert set(tree["algorithms"]) == set(SYSTEMS)
    for kind, some in tree.items():
        assert all(part["origin"] == "fedstill" and part["summary"] for part in some.values()), kind
        assert some or kind == "loaders"
    lines = fedstill(tmp_path, "parts", "merges").stdout.splitlines()
    assert lines[0].startswith("merges")
    assert [line.split()[:2] for line in lines[1:]] == [[name, "fedstill"] for name in tree["merges"]]


def test_an_unknown_kind_is_told_with_the_nearest() -> None:
    with pytest.raises(FedstillError, match="did you mean 'merges'"):
        CliRunner().invoke(app, ["parts", "merge"], catch_exceptions=False)


def test_parts_of_an_installed_package_say_where_they_come_from(installed: Path) -> None:
    tree = json.loads(fedstill(installed, "parts", "--json").stdout)
    assert tree["algorithms"]["loud"] == {"origin": "louder 1.2", "summary": "Loud: Everybody at once."}
    assert tree["weightings"]["loudest"] == {"origin": "louder 1.2", "summary": "who shouts"}
    assert tree["studies"]["louder-table1"] == {"origin": "louder 1.2", "summary": "Louder, Table 1"}
    broken = tree["merges"]["broken"]  # one that cannot be loaded hides no other
    assert broken["origin"] == "louder 1.2"
    assert "No module named 'no_such_module'" in broken["summary"]
    systems = json.loads(fedstill(installed, "algorithms", "--json").stdout)
    assert (systems["loud"]["origin"], systems["fedavg"]["origin"]) == ("louder 1.2", "fedstill")
    assert "from louder 1.2" in fedstill(installed, "algorithms").stdout


def test_a_study_of_an_installed_package_is_listed_and_run(installed: Path, tmp_path: Path) -> None:
    assert "louder-table1" in fedstill(installed, "reproduce", "--list").stdout
    done = fedstill(installed, "reproduce", "louder-table1", "--out", str(tmp_path))
    assert not done.returncode, done.stderr
    assert "0.500 (1)" in (tmp_path / "table.md").read_text()


def test_a_study_does_not_take_the_name_of_another(installed: Path) -> None:
    done = fedstill(installed, "reproduce", "plugged_taken:taken")
    assert done.returncode == 2
    assert "there is a study 'poisoning' already" in done.stderr


def test_a_member_is_found_without_importing_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "shapes_at_home"
    home.mkdir()
    (home / "__init__.py").write_text("")
    for name in ("circle", "square"):
        (home / f"{name}.py").write_text(f"from test_shapes import SHAPES\ndef {name}(): ...\nSHAPES.add('{name}', {name})\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Registry, "everywhere", [])
    shapes: Registry[object] = Registry("shape", group="test.shapes", home="shapes_at_home")
    monkeypatch.setitem(sys.modules, "test_shapes", SimpleNamespace(SHAPES=shapes))
    assert shapes.get("square").__name__ == "square"  # type: ignore[attr-defined]
    assert "shapes_at_home.circle" not in sys.modules
    assert shapes.names() == ["circle", "square"], "the order does not tell which was asked for first"

    again: Registry[object] = Registry("shape", group="test.shapes", home="shapes_at_home")
    monkeypatch.setitem(sys.modules, "test_shapes", SimpleNamespace(SHAPES=again))
    for name in ("", ".circle", ".square"):
        monkeypatch.delitem(sys.modules, f"shapes_at_home{name}")
    again.add("square", print)  # a stranger's; the built-in one is still refused beside it
    with pytest.raises(FedstillError, match="there is a shape 'square' already"):
        again.get("square")
