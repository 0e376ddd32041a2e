"""The figures: weights summed by domain, PNG files on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.core.errors import FedstillError
from fedstill.report.figures import draw_features, draw_virtual_features, draw_weights, teacher_weights
from fedstill.report.runs import Run
from fedstill.run.loop import run
from tests.report.runfolders import feature_map


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    from tests.conftest import tiny_config

    out = tmp_path_factory.mktemp("run")
    algorithm = {"name": "fedd3a", "distillation": {"batch_size": 32}}
    run(tiny_config(rounds=1, data={"server": "embedded:rotated"}, algorithm=algorithm), out)
    return out


def line(**weights: float) -> dict:
    return {"round": 1, "weights_by_domain": {"svhn": weights}}


def test_weights_of_seeds_are_averaged_and_those_of_a_domain_summed():
    clients = [{"id": "a", "domain": "mnist"}, {"id": "b", "domain": "mnist"}, {"id": "c", "domain": "usps"}]
    runs = [
        Run(Path("fedd3a/seed0"), history=[line(a=0.2, b=0.2, c=0.6)], clients=clients),
        Run(Path("fedd3a/seed1"), history=[line(a=0.8, c=0.2)]),
    ]
    runs[1].clients.extend(clients)
    found = teacher_weights(runs)
    assert found == {"svhn": {"mnist": pytest.approx(0.6), "usps": pytest.approx(0.4)}}


def test_the_command_writes_both_figures(folder, tmp_path):
    result = CliRunner().invoke(app, ["figures", str(folder), "--out", str(tmp_path), "--method", "pca", "--samples", "20"])
    assert result.exit_code == 0, result.output
    for name in ("weights.png", "features.png"):
        with Image.open(tmp_path / name) as image:
            assert image.format == "PNG"
            assert min(image.size) > 100


def test_virtual_features_are_drawn_beside_real_ones(tmp_path):
    path = draw_virtual_features(feature_map(0), tmp_path / "features-virtual.png")
    with Image.open(path) as image:
        assert image.format == "PNG"


def test_tsne_too(folder, tmp_path):
    assert draw_features(folder, tmp_path / "f.png", samples=10, classes=3).exists()


def test_mistakes_are_one_line(tmp_path):
    with pytest.raises(FedstillError, match="no run has teacher weights"):
        draw_weights({}, tmp_path / "w.png")
    with pytest.raises(FedstillError, match="not a finished run"):
        draw_features(tmp_path, tmp_path / "f.png")
