"""The study of what distillation costs: every row is a valid run, printed or judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedstill.config.tables import Config
from fedstill.reproduce import Plan, Run, never_hurts
from fedstill.run.configuration import resolve


def test_every_row_is_a_valid_run_and_only_judged_ones_have_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Config] = {}

    def ran(plan: Plan, name: str, tree: dict[str, Any]) -> list[Run]:
        found[name] = resolve(tree)
        return [Run(tmp_path, {"final_accuracy": 0.5}, [{"merged_accuracy": 0.4}])]  # type: ignore[typeddict-item]

    monkeypatch.setattr(never_hurts, "runs_of", ran)
    cells = never_hurts.never_hurts(Plan(tmp_path, tmp_path))
    columns = 15
    assert len(cells) == len(found) + columns == 4 * 11 + 4 * 16 + 15 + 2 * 15 + 2 * 5 + 4 * 15
    for cell in cells:
        assert cell.ours == ((0.4,) if cell.row.startswith("FedAvg held out") else (0.5,))
    for name, config in found.items():
        line = config.algorithm.get("line")
        if "fedavg-held-out" in name:  # FedAvg, whose clients hold samples out: no student is carried on
            assert line["carry"] == 0.0
            assert line["full_rounds"] == name.endswith("until-the-last-round")
            assert config.algorithm["distillation"]["steps"] == 1
            assert config.algorithm["distillation"]["optimizer"]["lr"] < 1e-9
            continue
        assert bool(line) == name.endswith("-judged"), name
        if name.endswith("-judged") and not name.endswith(("dafkd-judged", "fedftg-judged")):
            assert config.algorithm["source"]["kind"] == "varied"
        elif name.startswith("demo") and not name.endswith(("fedavg", "dafkd", "fedftg", "judged")):
            assert config.algorithm["source"]["kind"] == "data"  # as printed: the preset's variation is left out
        assert config.data.server not in config.data.domains


def test_every_ablation_changes_one_thing_of_a_judged_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, dict[str, Any]] = {}

    def ran(plan: Plan, name: str, tree: dict[str, Any]) -> list[Run]:
        found[name] = resolve(tree).algorithm
        return [Run(tmp_path, {"final_accuracy": 0.5}, [{"ensemble_accuracy": 0.6}])]  # type: ignore[typeddict-item]

    monkeypatch.setattr(never_hurts, "runs_of", ran)
    cells = never_hurts.ablations(Plan(tmp_path, tmp_path, only=("fedd3a",), columns=("digits mnist",)))
    plain = found.pop("digits-mnist/fedd3a-judged")
    assert len(found) == len(never_hurts.MEANS) == len(cells) - 2  # beside them the judged row and its ensemble
    for name, algorithm in found.items():
        changed = [key for key in plain if plain[key] != algorithm[key]]
        assert changed in (["distillation"], ["source"]), name
    found.clear()
    never_hurts.ablations(Plan(tmp_path, tmp_path, only=("feddf judged mixup",), columns=("digits mnist",)))
    assert list(found) == ["digits-mnist/feddf-judged-mixup"]
