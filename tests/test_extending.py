"""docs/extending.md, followed: parts from the current folder and from an installed package, on every engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedstill.core.errors import FedstillError
from fedstill.core.registry import Registry

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
FILES = dict(re.findall(r"<!-- file: ([\w.]+) -->\n```\w+\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's files."""
    place = tmp_path_factory.mktemp("extending")
    for name, text in FILES.items():
        (place / name).write_text(text)
    return place


@pytest.fixture(scope="module")
def installed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's package, installed with pip into a folder of its own."""
    place = tmp_path_factory.mktemp("site")
    package = tmp_path_factory.mktemp("package")
    for name in FILES:
        (package / name).write_text(FILES[name])
    words = ["-q", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(place), str(package)]
    subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True)
    return place


def fedstill(*words: object, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    # the console script does not look where it is started, unlike python -m
    code = "import sys; sys.path.remove(''); from fedstill.cli import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def model(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    first, second = model(one), model(other)
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def last_line(folder: Path) -> dict:
    return json.loads((folder / "history.jsonl").read_text().splitlines()[-1])


def test_parts_of_the_current_folder(folder: Path) -> None:
    for workers in (0, 1):
        fedstill("run", "here.toml", "--out", f"here{workers}", "--workers", workers, cwd=folder)
    assert same(folder / "here0", folder / "here1")
    line = last_line(folder / "here0")
    assert line["dropped"] == []
    assert sum(line["weights"].values()) == pytest.approx(1, abs=1e-3)
    assert line["weights"]["north-0"] != pytest.approx(0.5, abs=1e-4)  # the weighting weighs


def test_parts_of_an_installed_package(folder: Path, installed: Path, tmp_path: Path) -> None:
    (tmp_path / "installed.toml").write_text(FILES["installed.toml"])
    fedstill("run", "installed.toml", "--out", "run", "--workers", 1, cwd=tmp_path, path=installed)
    assert last_line(tmp_path / "run")["dropped"] == []
    listed = fedstill("parts", "weightings", cwd=tmp_path, path=installed).stdout
    assert "fedstill-example 1.0" in next(line for line in listed.splitlines() if "loudest" in line)
    assert "median-start" in fedstill("algorithms", "--json", cwd=tmp_path, path=installed).stdout


@pytest.mark.deployment
@pytest.mark.skipif(find_spec("flwr") is None, reason="the extra fedstill[flower] is not installed")
@pytest.mark.parametrize("kind", ["here", "installed"])
def test_parts_on_flowers_nodes(kind: str, folder: Path, installed: Path, tmp_path: Path) -> None:
    path = installed if kind == "installed" else None
    place = tmp_path if kind == "installed" else folder
    (place / f"{kind}.toml").write_text(FILES[f"{kind}.toml"])
    short = ["--set", "rounds=1", "--set", "algorithm.line=false"]
    fedstill("flower", "up", f"{kind}.toml", *short, "--out", tmp_path / "flower", cwd=place, path=path)
    fedstill("run", f"{kind}.toml", *short, "--out", tmp_path / "one", cwd=place, path=path)
    assert same(tmp_path / "flower", tmp_path / "one")


def test_a_weighting_of_ones_own_is_short() -> None:
    assert len(FILES["loudest.py"].splitlines()) <= 30


# -- the registry ------------------------------------------------------------------------------------------------------------


def test_a_name_that_exists_is_refused() -> None:
    shapes: Registry[str] = Registry("shape", group="tests.shapes")
    shapes.add("square", "a")
    with pytest.raises(FedstillError, match="there is a shape 'square' already"):
        shapes.add("square", "b")
    assert shapes.get("square") == "a"


def test_what_cannot_be_imported_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_part.py").write_text("raise RuntimeError('first\\nsecond')\n")
    monkeypatch.chdir(tmp_path)
    from fedstill.fusion.weightings import WEIGHTINGS

    with pytest.raises(FedstillError, match="^weighting 'broken_part:x': first$"):
        WEIGHTINGS.get("broken_part:x")
    with pytest.raises(FedstillError, match="No module named 'no_such_module'"):
        WEIGHTINGS.get("no_such_module:x")
    with pytest.raises(FedstillError, match="has not been registered"):
        WEIGHTINGS.get("json:loads")


def test_a_part_of_the_started_script_names_the_way_out(tmp_path: Path) -> None:
    """It runs where it is; worker processes could not import it, and are not killed for that."""
    script = (
        "import sys, fedstill, torch\n"
        "from fedstill.fusion.weightings import Ready, weighting\n"
        "@weighting('mine')\n"
        "class Mine(Ready):\n"
        "    def __init__(self, context): self.k = len(context.teachers)\n"
        "    def weights(self, samples): return torch.full((len(samples), self.k), 1 / self.k)\n"
        "small = ['rounds=1', 'data.limit=60', 'data.test_limit=20', 'algorithm.name=feddf', 'algorithm.weighting=mine']\n"
        "fedstill.run('demo', sys.argv[1], settings=[*small, f'engine.workers={sys.argv[2]}'])\n"
    )
    (tmp_path / "script.py").write_text(script)
    run = lambda workers: subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path / f"out{workers}", str(workers)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run(0).returncode == 0
    failed = run(1)
    assert "weighting 'mine' is defined in the script that was started" in failed.stderr
