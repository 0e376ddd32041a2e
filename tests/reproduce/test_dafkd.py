"""DaFKD's tables: every run is a valid configuration of the paper's protocol, and every cell has its figure."""

import json
from pathlib import Path

import pytest

from fedstill.reproduce import Plan, published, studies
from fedstill.reproduce.dafkd import ALPHAS, TARGETS, systems, tree, variants
from fedstill.run.configuration import resolve

PLAN = Plan(Path("out"), Path("data"))


@pytest.mark.parametrize("scale", ["paper", "small", "reduced"])
def test_the_protocol(scale):
    for row, system in {**systems(scale), **variants(scale)}.items():
        config = resolve(tree(Plan(Path("out"), Path("data"), scale), "MNIST", 0.1, system))
        assert (config.clients.per_domain, config.clients.fraction, config.rounds) == (20, 0.4, 20 if scale == "small" else 60)
        effort = config.local.steps if scale == "reduced" else config.local.epochs
        assert (effort, config.local.batch_size, config.local.optimizer.lr) == (20, 32, 1e-3)
        assert config.clients.partition.alpha == 0.1
        assert config.algorithm["merge"] == "uniform"  # Eq. 6, in every row
        if row in ("DaFKD", "FedFusion"):
            assert config.algorithm["distillation"]["optimizer"]["lr"] == 0.01
    assert resolve(tree(PLAN, "EMNIST", 0.1, systems("small")["FedAvg"])).local.epochs == 40


def test_every_cell_has_its_figure():
    for row in systems("small"):
        for data, alphas in ALPHAS.items():
            assert all(published("dafkd-table1", row, f"{data} {alpha:g}") for alpha in alphas)
            assert all(published("dafkd-table2", row, f"{data} {target:g}") for target in TARGETS[data])
    for row in variants("small"):
        for data, targets in TARGETS.items():
            assert all(published("dafkd-table3", row, f"{data} {alpha}") for alpha in (0.05, 0.1))
            assert all(published("dafkd-table3b", row, f"{data} {target:g}") for target in targets)
    assert published("dafkd-table1", "DaFKD", "SVHN 0.1").value == 0.728


def test_a_subset_runs_and_is_read_back(tmp_path):
    fast = ("rounds=1", "local.steps=1", "data.domains=['embedded:optdigits']", "data.image_size=8", "engine.threads=1")
    plan = Plan(tmp_path, Path("data"), "reduced", (0,), ("fedavg",), ("mnist 0.1",), fast)
    (found,) = studies()["dafkd-table1"].run(plan)
    assert (found.row, found.column, found.paper.value) == ("FedAvg", "MNIST 0.1", 0.9516)
    summary = json.loads((tmp_path / "MNIST-0.1" / "FedAvg" / "seed0" / "summary.json").read_text())
    assert found.ours == (pytest.approx(summary["final_accuracy"]),)
