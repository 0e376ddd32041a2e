"""FedDF's studies: the toy in numbers, and the tables' protocols without running them."""

from __future__ import annotations

import pytest
from PIL import Image

import fedstill.reproduce.feddf as tables
import fedstill.reproduce.running as running
from fedstill.reproduce import Plan, Run, published, reproduce, studies
from fedstill.reproduce.feddf_toy import PIXELS, fuse_toy
from fedstill.run.configuration import resolve


def test_figure_1_the_distilled_model_is_nearer_the_ensemble(tmp_path):
    toy = fuse_toy(0)
    assert all(panel.shape == (PIXELS**2, 3) for panel in toy.panels.values())
    assert toy.gap("ensemble") == pytest.approx(0, abs=1e-5)
    assert toy.gap("distilled") < toy.gap("averaged") / 5
    assert toy.points.abs().max() < 3
    assert len(toy.points) == 60


def test_figure_1_is_drawn(tmp_path):
    cells = reproduce("feddf-figure1", Plan(tmp_path)).cells
    assert {(c.row, c.column) for c in cells} >= {("averaged", "KL"), ("distilled", "KL")}
    width, height = Image.open(tmp_path / "figure1.png").size
    assert width > 4 * height
    assert "distilled" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_every_cell_has_the_papers_figure_and_a_sound_configuration(tmp_path, monkeypatch, scale):
    asked = {}

    def pretend(plan, name, tree):
        assert name not in asked
        asked[name] = resolve(tree, ["seed=0"])
        history = [{"round": r, "accuracy": a} for r, a in ((1, 0.1), (2, 0.25), (3, 0.79), (4, 0.9))]
        return [Run(plan.out, {"final_accuracy": 0.5}, history)]

    monkeypatch.setattr(tables, "runs_of", pretend)
    monkeypatch.setattr(running, "runs_of", pretend)  # from where grids take it
    plan = Plan(tmp_path, data=tmp_path, scale=scale)
    for name in ("feddf-table1", "feddf-table5", "feddf-table8"):
        asked.clear()
        cells = studies()[name].run(plan)
        assert len(cells) == len(asked) > 0
        assert all(c.paper is not None for c in cells)
    asked.clear()
    cells = studies()["feddf-table1"].run(plan)
    assert len(cells) == (9 * 6 if scale == "paper" else 8)
    reached = {"tiny": {2}, "small": {3}, "paper": {3, 4}}  # 25% and 20%, 40% and 30%, 80% and 75%
    assert {value for c in cells for value in c.ours} == reached[scale]
    if scale == "paper":
        config = asked["feddf-40-C=0.8-alpha=0.1"]
        assert (config.local.epochs, config.clients.fraction, config.clients.partition.alpha) == (40, 0.8, 0.1)
        assert (config.rounds, config.algorithm["distillation"]["steps"], config.model.name) == (600, 10_000, "resnet8")


def test_papers_figures_as_printed():
    assert published("feddf-table1", "feddf 40", "C=0.4 alpha=0.1").value == 39
    assert published("feddf-table5", "80", "alpha=0.1 previous").deviation == pytest.approx(0.009)
    assert published("feddf-table8", "proximal", "alpha=1 fedavg").value == 0.7611
