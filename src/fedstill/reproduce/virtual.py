"""One round, or ten, above a frozen pretrained network: virtual features, averages, students on a pool, and all data pooled.

No paper's table. Each domain of PACS in turn is left out of the sites and is the pool of those that need one (domain shift), or
three sites a domain hold uneven shares of its classes (label skew).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedstill.core.nested import laid_over
from fedstill.reproduce import Cell, Plan, cell, runs_of
from fedstill.reproduce.never_hurts import PHOTOS, SYSTEMS, frozen_photos

__all__ = ["virtual"]

VARIED = {"source": {"kind": "varied", "size": 4000}}
ROWS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedProx": {"name": "fedprox"},
    "FedDF": {**SYSTEMS["FedDF"], "line": False},
    "FedDF judged": {**SYSTEMS["FedDF"], **VARIED, "line": {}},
    "FedD3A": {**SYSTEMS["FedD3A"], "line": False},
    "FedD3A judged": {**SYSTEMS["FedD3A"], **VARIED, "line": {}},
    "FedVirtual": {"name": "fedvirtual", "line": False},
    "FedVirtual judged": {"name": "fedvirtual", "line": {}},
    "FedVirtual, labels": {"name": "fedvirtual", "targets": "label", "line": False},
    "All data pooled": {"name": "ceiling"},
}
TEN = ("FedAvg", "FedD3A judged", "FedVirtual", "FedVirtual judged", "All data pooled")
SKEWED = ("FedAvg", "FedProx", "FedD3A", "FedVirtual", "FedVirtual, labels", "All data pooled")


ABLATIONS: dict[str, dict[str, Any]] = {
    "variances alone": {"source": {"kind": "statistics", "size": 10_000, "options": {"covariance": "diagonal"}}},
    "4 directions": {"source": {"kind": "statistics", "size": 10_000, "options": {"rank": 4}}},
    "one Gaussian a site": {"source": {"kind": "statistics", "size": 10_000, "options": {"per_class": False, "rank": 64}}},
    "2,000 draws": {"source": {"kind": "statistics", "size": 2000}},
    "50,000 draws": {"source": {"kind": "statistics", "size": 50_000}},
    "the ensemble's targets": {"targets": "ensemble", "weighting": "uniform"},
}


def settings(plan: Plan) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every run: its row, its column, and its configuration."""
    for pool in PHOTOS:
        for row, options in ROWS.items():
            yield row, f"one round {pool}", {**frozen_photos(plan, pool, rounds=1, epochs=30), "algorithm": options}
    for alpha in (0.1, 0.5):
        clients = {"per_domain": 3, "partition": {"kind": "dirichlet", "alpha": alpha}}
        tree = laid_over(frozen_photos(plan, None, rounds=1, epochs=10), {"clients": clients, "data": {"holdout": 0.1}})
        for row in SKEWED:
            yield row, f"one round alpha {alpha:g}", {**tree, "algorithm": ROWS[row]}
    for row, options in ABLATIONS.items():
        tree = frozen_photos(plan, PHOTOS[0], rounds=1, epochs=30)
        yield row, f"one round {PHOTOS[0]}", {**tree, "algorithm": {"name": "fedvirtual", "line": False, **options}}
    for pool in PHOTOS:
        for row in TEN:
            yield row, f"ten rounds {pool}", {**frozen_photos(plan, pool, rounds=10, epochs=3), "algorithm": ROWS[row]}


def virtual(plan: Plan) -> Sequence[Cell]:
    """Every row in every column that has it."""
    cells = []
    for row, column, tree in settings(plan):
        if plan.wants(row) and plan.wants_column(column):
            name = f"{column}/{row}".lower().replace(",", "").replace(" ", "-")
            runs = runs_of(plan, name, tree)
            cells.append(cell("virtual", row, column, [run.summary["final_accuracy"] for run in runs]))
    return cells
