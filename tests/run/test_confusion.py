"""The confusion matrices that a run writes: the tables say the same as the history."""

from __future__ import annotations

import json

import pytest

from fedstill.run import confusion
from fedstill.run.loop import run


def right(table: list[list[int]]) -> float:
    return sum(row[c] for c, row in enumerate(table)) / sum(map(sum, table))


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "fedavg"}},
        {
            "algorithm": {"name": "feddf", "distillation": {"steps": 4, "batch_size": 32}},
            "data": {"server": "embedded:rotated"},
            "clients": {"validation": 0.1},
        },
        {"model": {"clients": ["mlp", "cnn-small"]}, "algorithm": {"name": "fedavg"}},
    ],
    ids=["fedavg", "delivered", "prototypes"],
)
def test_the_tables_have_the_accuracies_of_the_last_round(tiny, tmp_path, changes):
    found = run(tiny(rounds=1, **changes), tmp_path)
    said = json.loads((tmp_path / "confusion.json").read_text())
    assert said["classes"] == list(found.task.classes)
    assert {name: right(table) for name, table in said["domains"].items()} == pytest.approx(found.history[-1]["domains"])
    for name, table in said["domains"].items():
        labels = found.task.tests[name].y.tolist()
        models = len(found.server.models)
        assert [sum(row) for row in table] == [models * labels.count(c) for c in range(len(said["classes"]))]


def test_no_table_without_a_model_or_with_too_many_classes(tiny, tmp_path, monkeypatch):
    run(tiny(rounds=1, algorithm={"name": "fd"}), tmp_path / "fd")
    assert not (tmp_path / "fd" / "confusion.json").exists()
    monkeypatch.setattr(confusion, "MOST_CLASSES", 9)
    run(tiny(rounds=1), tmp_path / "many")
    assert not (tmp_path / "many" / "confusion.json").exists()
