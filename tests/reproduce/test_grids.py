"""Studies that are data: every cell is a sound configuration, and what a row or column changes is in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fedstill.reproduce import Cell, Plan, published, reproduce
from fedstill.reproduce.figures import draw
from fedstill.reproduce.grids import grids
from fedstill.run.configuration import resolve


@pytest.mark.parametrize("name", grids())
def test_every_cell_at_every_scale_is_a_sound_configuration(name):
    sizes = []
    for scale in ("tiny", "small", "paper"):
        found = [
            (row, f"{panel} {column}", resolve(tree))
            for row, panel, column, tree in grids()[name].settings(Plan(Path("out"), Path("data"), scale))
        ]
        assert len({(row, label) for row, label, _ in found}) == len(found) > 1
        sizes.append(sum(config.rounds * config.local.epochs for *_, config in found if config.local.epochs))
        assert len({(config.rounds,) for *_, config in found}) == 1  # a comparison has the same rounds everywhere
    assert sizes[0] <= sizes[2]


def config_of(name, row, label, scale="paper"):
    settings = grids()[name].settings(Plan(Path("out"), Path("data"), scale))
    (tree,) = [tree for r, panel, column, tree in settings if r == row and f"{panel} {column}".strip() == label]
    return resolve(tree)


def test_rows_and_columns_change_what_they_say():
    normed = config_of("feddf-table2", "FedAvg, GN", "CIFAR-10 alpha=0.1")
    assert (normed.model.norm, normed.clients.partition.alpha, normed.local.epochs, normed.rounds) == ("group", 0.1, 40, 100)
    assert config_of("feddf-table4", "80", "FedDF, BN").local.epochs == 80
    assert config_of("feddf-table4", "40", "FedDF, BN", "tiny").model.name == "resnet8-binary"
    assert config_of("feddf-figure6", "FedDF", "classes 10").data.pool_classes == 10
    assert config_of("feddf-figure6", "FedDF", "steps 5", "tiny").algorithm["distillation"]["steps"] == 5
    assert config_of("feddf-figure17", "FedDF", "epochs=40 alpha=0.01").clients.partition.alpha == 0.01
    assert config_of("fedd3a-figure5", "FedD3A", "after").data.server == "mnist"


def test_the_papers_figures_stand_in_cells_of_the_grid():
    for name in ("feddf-table2", "feddf-table4", "feddf-table6", "feddf-table7"):
        for row, panel, column, _ in grids()[name].settings(Plan(Path("out"), Path("data"), "paper")):
            assert published(name, row, f"{panel} {column}".strip()), (name, row, panel, column)
    assert published("feddf-table4", "40", "FedDF, BN").value == 0.6549


def test_a_figure_has_its_panels_and_the_papers_points(tmp_path):
    cells = [Cell("A", "x 1", (0.5, 0.7), None), Cell("A", "x 2", (None,)), Cell("A", "y 1", (0.2,))]
    history = [[{"round": 1, "accuracy": 0.1}, {"round": 2, "accuracy": None}]]
    for kind in ("curves", "lines", "bars"):
        draw(tmp_path / f"{kind}.png", {"kind": kind, "x": "x"}, cells, [("x", "A", "", history)], ["x", "y"])
        width, height = Image.open(tmp_path / f"{kind}.png").size
        assert width > 2 * height


def test_a_grid_runs_and_is_drawn(tmp_path):
    sets = (
        "rounds=1",
        "data.limit=60",
        "data.test_limit=30",
        "data.domains=['embedded:optdigits']",
        "data.image_size=16",
        "data.server='embedded:blended'",
        "local.epochs=1",
        "clients.per_domain=2",
        "data.channels=1",
    )
    plan = Plan(tmp_path, tmp_path, "tiny", only=("fedma",), sets=sets)
    result = reproduce("fedma-oneshot", plan)
    assert not result.failed
    assert [(c.row, c.column) for c in result.cells] == [("FedMA", "alpha=1"), ("FedMA", "alpha=0.5")]
    assert (tmp_path / "fedma-oneshot.png").exists()
