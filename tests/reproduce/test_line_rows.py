"""Studies keep the papers' own form; the judge and the line are rows of their own."""

from __future__ import annotations

import tomllib
from pathlib import Path

from fedstill.reproduce import Plan, reproduce

SETS = ("rounds=1", "data.limit=60", "data.test_limit=30", "local.epochs=1", "engine.threads=1")


def line_of(folder: Path) -> object:
    return tomllib.loads((folder / "seed0" / "config.toml").read_text())["algorithm"].get("line")


def test_the_papers_form_by_default_and_the_line_in_rows_of_its_own(tmp_path: Path) -> None:
    only, columns = ("fedavg", "feddf"), ("none",)
    plain = reproduce("poisoning", Plan(tmp_path, only=only, columns=columns, sets=SETS)).cells
    names = {path.parent.parent for path in tmp_path.rglob("summary.json") if path.parent.name == "seed0"}
    distilled = next(folder for folder in names if "feddf" in folder.name)
    assert line_of(distilled) is False
    assert "+ line" not in "".join(cell.row for cell in plain)
    both = reproduce("poisoning", Plan(tmp_path, only=only, columns=columns, sets=SETS, line=True)).cells
    rows = [cell.row for cell in both]
    assert rows[: len(plain)] == [cell.row for cell in plain]
    assert set(rows[len(plain) :]) <= {"FedDF + line"}  # FedAvg has no line and no second row
    assert line_of(distilled.with_name(f"{distilled.name}-line"))["judge"] == "auto"
