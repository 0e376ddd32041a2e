"""An ensemble that a run kept has a row of its own, below the student that was distilled from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedstill.report.page import page_data
from fedstill.report.runs import load_runs
from fedstill.report.tables import markdown, summarise, with_ensembles
from fedstill.run.loop import run


def test_the_ensemble_stands_below_its_student(tiny: Any, tmp_path: Path) -> None:
    data, fast = {"server": "embedded:blended"}, {"steps": 2, "batch_size": 16}
    for name, kept in (("feddf", True), ("fedd3a", False)):
        algorithm = {"name": name, "distillation": fast}
        run(tiny(data=data, algorithm=algorithm, rounds=1, evaluation={"keep_ensemble": kept}), tmp_path / name)
    rows = summarise(load_runs([tmp_path / "feddf", tmp_path / "fedd3a"]))
    shown = with_ensembles(rows)
    assert [row.label for row in shown] == ["feddf", "feddf: its ensemble", "fedd3a"]
    assert shown[1].accuracy is not None
    assert shown[1].accuracy.mean == rows[0].runs[0].history[-1]["ensemble_accuracy"]
    assert "its ensemble" in markdown(shown)
    table = page_data([run for row in rows for run in row.runs])["table"]
    assert [row["method"] for row in table["rows"]] == [0, 0, 1]
