"""The poisoning study and FedDF's Table 3: every row is a valid run, and the right rounds are read."""

from __future__ import annotations

import pytest

from fedstill.algorithms import algorithms
from fedstill.core.nested import laid_over
from fedstill.reproduce import Plan, Run, feddf_table3, poisoning, published
from fedstill.run.configuration import resolve


def test_poisoning_runs_every_attack(tmp_path):
    plan = Plan(tmp_path, only=("fedavg",), sets=("rounds=1", "data.limit=60", "local.epochs=1", "engine.threads=1"))
    cells = poisoning.poisoning(plan)
    assert [cell.column for cell in cells][:3] == ["none", "flipped labels, 20%", "flipped labels, 40%"]
    assert len(cells) == 7
    assert all(cell.row == "FedAvg" and len(cell.ours) == 1 for cell in cells)


@pytest.mark.parametrize("row", poisoning.SYSTEMS)
def test_every_system_of_the_poisoning_study_has_valid_options(row):
    options = poisoning.SYSTEMS[row]
    if options["name"] not in algorithms():
        pytest.skip(f"{options['name']} is not here yet")
    for scale in ("small", "paper"):
        config = resolve(laid_over(poisoning.setting(scale), {"algorithm": options}))
        assert config.algorithm["name"] == options["name"]


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_table_3_reads_fedma_by_whole_models(tmp_path, monkeypatch, scale):
    trees = {}

    def ran(plan, name, tree):
        trees[name] = resolve(tree)
        return [Run(tmp_path, {}, [{"round": n, "accuracy": n / 1000} for n in range(1, tree["rounds"] + 1)])]

    monkeypatch.setattr(feddf_table3, "runs_of", ran)
    cells = {(c.row, c.column): c for c in feddf_table3.feddf_table3(Plan(tmp_path, tmp_path, scale=scale))}
    assert cells["FedDF", "5"].ours == (0.005,)
    assert cells["FedMA (w/o drop-worst)", "5"].ours == (0.045,)  # nine layers are a round
    assert cells["FedDF", "5"].paper == published("feddf-table3", "FedDF", "5") is not None
    assert trees["fedma-all"].rounds == 9 * trees["fedavg"].rounds
    assert trees["fedavg"].algorithm["drop_worst"]["factor"] == 1.2
    assert "drop_worst" not in trees["fedavg-all"].algorithm
