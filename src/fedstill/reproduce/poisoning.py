"""Which systems withstand malicious clients. This is not a paper's table, but the question that robust ensembles are made for.

Ten clients hold MNIST digits; the server has unlabelled noisy digits and is tested on others. Some of the clients train on
flipped labels, send their update mirrored, or send noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedstill.core.nested import laid_over
from fedstill.reproduce import Cell, Plan, cell, runs_of

__all__ = ["ATTACKS", "SYSTEMS", "poisoning"]

ATTACKS: dict[str, dict[str, Any]] = {
    "flipped labels": {"kind": "flip-labels"},
    "mirrored updates": {"kind": "sign-flip", "scale": 3.0},
    "noise updates": {"kind": "gaussian", "scale": 3.0},
}
FRACTIONS = (0.2, 0.4)

DISTILLATION = {"distillation": {"steps": 200, "batch_size": 64, "optimizer": {"name": "adam", "lr": 1e-3}}}
SYSTEMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedDF": {"name": "feddf", **DISTILLATION},
    "FedDF-median": {"name": "feddf", "weighting": "median", **DISTILLATION},
    "FedRAD": {"name": "fedrad", **DISTILLATION},
    "Cronus": {"name": "cronus"},
    "KDCL": {"name": "kdcl"},
    "KDCL-outliers": {"name": "kdcl", "outliers": {}},
}


def setting(scale: str) -> dict[str, Any]:
    """The run without an attack; at the full scale, a convolutional network that trains longer."""
    small = scale == "small"
    return {
        "rounds": 8 if small else 30,
        "data": {
            "domains": ["embedded:mnist"],
            "target": "embedded:noisy",
            "image_size": 16 if small else 28,
            "channels": 1,
        },
        "clients": {"per_domain": 10},
        "model": {"name": "mlp", "options": {"hidden": [100]}} if small else {"name": "cnn-small"},
        "local": {"epochs": 3, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}},
        "evaluation": {"ensemble": False},
    }


def poisoning(plan: Plan) -> Sequence[Cell]:
    """Every system under every attack, at 0, 20 and 40% of the clients."""
    columns: dict[str, dict[str, Any] | None] = {"none": None}
    for attack, options in ATTACKS.items():
        for fraction in FRACTIONS:
            columns[f"{attack}, {fraction:.0%}"] = {**options, "fraction": fraction}
    cells = []
    for column, poison in columns.items():
        for row, algorithm in SYSTEMS.items():
            if not plan.wants(row) or not plan.wants_column(column):
                continue
            tree = laid_over(setting(plan.scale), {"algorithm": algorithm, **({"data": {"poison": poison}} if poison else {})})
            name = f"{row}-{column}".lower().replace(", ", "-").replace(" ", "-").replace("%", "")
            runs = runs_of(plan, name, tree)
            cells.append(cell("poisoning", row, column, [run.summary["final_accuracy"] for run in runs]))
    return cells
