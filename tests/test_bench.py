"""The table of all benchmarks: what it prints, what it calls a regression, and what it writes into a page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "benchmarks" / "bench.py"


def called(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCH), *map(str, words)], capture_output=True, text=True, timeout=60)


def written(path: Path, ratio: float, **more: Any) -> Path:
    row = {"benchmark": "fusion", "what": "the table", "of": "none", "ratio": ratio, "goal": 0.35, "note": "", "load": [1.0, 4.0]}
    found = {"when": "2026-01-31", "machine": {"cores": 2}, "left_out": {"flower": "ray is not installed"}, "rows": [row]}
    path.write_text(json.dumps({**found, **more}))
    return path


@pytest.mark.parametrize(("now", "status", "says"), [(0.32, 0, "| 0.300 | 0.320 |  |"), (0.34, 1, "| 0.300 | 0.340 | worse |")])
def test_a_regression_is_seen(tmp_path: Path, now: float, status: int, says: str) -> None:
    done = called("--compare", written(tmp_path / "old", 0.3), written(tmp_path / "new", now))
    assert done.returncode == status
    assert says in done.stdout


def test_nothing_in_common_is_said(tmp_path: Path) -> None:
    done = called("--compare", written(tmp_path / "old", 0.3, rows=[]), written(tmp_path / "new", 0.3))
    assert (done.returncode, done.stderr) == (1, "the two files have no ratio in common\n")


def test_the_page_has_the_table(tmp_path: Path) -> None:
    page = Path(__file__).parent.parent / "docs" / "results" / "speed.md"
    own = tmp_path / "speed.md"
    own.write_text(page.read_text())
    assert not called("--page", written(tmp_path / "found", 0.3), own).returncode
    text = own.read_text()
    assert "2 cores, load 1 to 4. `flower` is left out: ray is not installed." in text
    assert "| the table | none | 0.300 | at most 0.35 |  |" in text
    head = page.read_text().partition("<!-- bench")[0]
    assert text.startswith(head)
    assert text.endswith(page.read_text().partition("<!-- end of bench -->")[2])


def test_an_unknown_benchmark_is_refused() -> None:
    done = called("--only", "nothing")
    assert done.returncode == 2
    assert "there is no benchmark 'nothing'" in done.stderr
