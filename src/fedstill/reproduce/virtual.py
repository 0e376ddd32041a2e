"""One round, or ten, on a frozen pretrained network: virtual features, averages, students on a pool, and all data pooled.

This is not a paper's table. Each domain of PACS in turn is at no site and is the pool of the systems that need one (domain
shift), or three sites per domain hold uneven shares of its classes (label skew). There are also news at ten sites with uneven
topics and, from scratch, the average on digits with and without a head that was retrained on virtual features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedstill.core.nested import laid_over
from fedstill.reproduce import Cell, Plan, cell, runs_of
from fedstill.reproduce.never_hurts import PHOTOS, SYSTEMS, columns, frozen_photos, local_training

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
    "FedGen": {"name": "fedgen"},
    "DaFKD on features": {
        "name": "dafkd",
        "level": "features",
        "line": False,
        "distillation": {"steps": 200},
        "source": {"size": 2000},
    },
    "All data pooled": {"name": "ceiling"},
}
TEN = ("FedAvg", "FedD3A judged", "FedVirtual", "FedVirtual judged", "All data pooled")
NEWS = (
    "FedAvg",
    "FedProx",
    "FedDF",
    "FedD3A",
    "FedGen",
    "DaFKD on features",
    "FedVirtual",
    "FedVirtual judged",
    "All data pooled",
)
NEWS_TEN = ("FedAvg", "FedDF", "FedVirtual", "FedVirtual judged")
CALIBRATED: dict[str, dict[str, Any]] = {"FedAvg": {"name": "fedavg"}, "FedAvg calibrated": {"name": "fedavg", "calibrate": True}}
SKEWED = ("FedAvg", "FedProx", "FedD3A", "FedVirtual", "FedVirtual, labels", "All data pooled")


ABLATIONS: dict[str, dict[str, Any]] = {
    "variances alone": {"source": {"kind": "statistics", "size": 10_000, "options": {"covariance": "diagonal"}}},
    "4 directions": {"source": {"kind": "statistics", "size": 10_000, "options": {"rank": 4}}},
    "all directions": {"source": {"kind": "statistics", "size": 10_000, "options": {"covariance": "full"}}},
    "two Gaussians a class": {"source": {"kind": "statistics", "size": 10_000, "options": {"components": 2}}},
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
    for noise in (0.0, 0.5, 1.0):
        tree = frozen_photos(plan, PHOTOS[0], rounds=1, epochs=30)
        varied = {"source": {"kind": "varied", "size": 4000, "options": {"noise": noise}}}
        options = {**SYSTEMS["FedD3A"], **varied, "line": False}
        yield f"FedD3A, noise {noise:g}", f"one round {PHOTOS[0]}", {**tree, "algorithm": options}
    for pool in PHOTOS:
        for row in TEN:
            yield row, f"ten rounds {pool}", {**frozen_photos(plan, pool, rounds=10, epochs=3), "algorithm": ROWS[row]}
    for alpha in (0.1, 1.0):
        for row in NEWS:
            yield row, f"news one round alpha {alpha:g}", {**news(plan, alpha, rounds=1, epochs=10), "algorithm": ROWS[row]}
    for row in NEWS_TEN:
        yield row, "news ten rounds alpha 0.1", {**news(plan, 0.1, rounds=10, epochs=2), "algorithm": ROWS[row]}
    scratch = {name: tree for name, tree, _ in columns(plan) if name in ("digits svhn", "mnist alpha 0.1")}
    for column, tree in scratch.items():
        for row, options in CALIBRATED.items():
            yield row, column, {**tree, "algorithm": options}


def news(plan: Plan, alpha: float, *, rounds: int, epochs: int) -> dict[str, Any]:
    """AG News at ten sites above a frozen MiniLM; a tenth of the texts is the pool of those that need one."""
    return {
        "rounds": rounds,
        "data": {
            "root": str(plan.root()),
            "domains": ["ag_news"],
            "holdout": 0.1,
            "limit": 4000,
            "test_limit": 1000,
            "text": {"length": 64},
        },
        "clients": {"per_domain": 10, "partition": {"kind": "dirichlet", "alpha": alpha}},
        "model": {"name": "text:minilm", "train": "head", "options": {"head": [256]}},
        "local": local_training(epochs, 0.01),
        "engine": {"threads": 1},
    }


def virtual(plan: Plan) -> Sequence[Cell]:
    """Every row in every column that has it."""
    cells = []
    for row, column, tree in settings(plan):
        if plan.wants(row) and plan.wants_column(column):
            name = f"{column}/{row}".lower().replace(",", "").replace(" ", "-")
            runs = runs_of(plan, name, tree)
            cells.append(cell("virtual", row, column, [run.summary["final_accuracy"] for run in runs]))
    return cells
