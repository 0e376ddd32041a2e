"""The benchmarks run: each with ``--smoke``, seconds on data that is at hand. What they measure is not looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
NEEDS = {"flower": ("flwr", "ray"), "many_nodes": ("flwr",), "pfl_research": ("pfl",)}
MARKS = {name: [pytest.mark.deployment] for name in ("flower", "many_nodes")}  # Flower's and Ray's processes


@pytest.mark.parametrize(
    "name", [pytest.param(path.stem, marks=MARKS.get(path.stem, [])) for path in sorted(FOLDER.glob("*.py"))]
)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    for package in NEEDS.get(name, ()):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--smoke"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert not done.returncode, done.stderr[-3000:]
    assert done.stdout.strip()
    assert not list(tmp_path.iterdir())  # nothing is left where it was started
