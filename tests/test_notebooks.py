"""The notebooks run, as they stand, and the site shows what they printed and drew."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")


def cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_notebooks_run_and_do_what_their_pages_show(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "website"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.delitem(sys.modules, "execute", raising=False)
    from execute import executed

    for path, notebook in zip(NOTEBOOKS, executed(NOTEBOOKS, tmp_path), strict=True):
        kept = json.loads(path.read_text())
        for now, then in zip(cells(notebook), cells(kept), strict=True):
            kinds = [[sorted(output.get("data", {})) for output in cell["outputs"]] for cell in (now, then)]
            assert bool(kinds[0]) == bool(kinds[1]), f"{path.name}: run website/execute.py"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_with_their_pictures_and_without_errors(path):
    outputs = [output for cell in cells(json.loads(path.read_text())) for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert path.stat().st_size < 100_000
