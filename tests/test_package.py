"""What is released: a wheel with everything that the program reads, and one version."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import fedstill

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("build", reason="build is not installed")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    # a copy, because setuptools writes beside the source
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "build", "-q", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (path for path in (ROOT / "src" / "fedstill").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert packed == {str(path.relative_to(ROOT / "src")) for path in files}
    assert wheel.stat().st_size < 2_000_000


def test_the_wheel_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert f"\nVersion: {fedstill.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert all(f"Python :: 3.{minor}\n" in metadata for minor in (11, 12, 13))


def test_the_version_is_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert re.search(rf"^version: {re.escape(fedstill.__version__)}$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert f"## [{fedstill.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_extras_that_the_tests_need_are_installed_by_make():
    makefile = (ROOT / "Makefile").read_text()
    extras = re.search(r"\.\[(dev[^\]]*)\]", makefile)
    assert extras is not None
    assert {"dev", "docs", "flower"} <= set(extras[1].split(","))
