"""FedDF, Table 1: rounds to a target accuracy.

At paper scale the protocol is that of the preset ``feddf-cifar``. Below it, clients train for a quarter of the paper's epochs and
the targets are lower, so only our own columns can be compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.core.nested import laid_over
from fedstill.reproduce import Cell, Plan, cell, runs_of
from fedstill.reproduce.grids import base_tree
from fedstill.run.history import rounds_to

__all__ = ["rounds_to_target"]

TARGETS = {"paper": {"1": 0.8, "0.1": 0.75}, "small": {"1": 0.4, "0.1": 0.3}, "tiny": {"1": 0.25, "0.1": 0.2}}
METHODS = {"fedavg": (1, 20, 40), "fedprox": (20, 40), "fedavgm": (20, 40), "feddf": (20, 40)}


def rounds_to_target(plan: Plan) -> Sequence[Cell]:
    """CIFAR-10 with ResNet-8; targets 80% and 75% at paper scale, 40% and 30% at the small one."""
    full = plan.scale == "paper"
    cells = []
    for name, epochs in [(name, epochs) for name, some in METHODS.items() for epochs in (some if full else some[-1:])]:
        row = f"{name} {epochs}"
        if not plan.wants(row):
            continue
        for fraction in ("0.2", "0.4", "0.8") if full else ("0.4",):
            for alpha, target in TARGETS[plan.scale].items():
                column = f"C={fraction} alpha={alpha}"
                clients = {"fraction": float(fraction), "partition": {"alpha": float(alpha)}}
                tree = laid_over(base_tree("cifar", plan), {"clients": clients, "algorithm": {"name": name}})
                if full:
                    tree = laid_over(tree, {"rounds": 600, "local": {"epochs": epochs}})
                found = runs_of(plan, f"{row} {column}".replace(" ", "-"), tree)
                cells.append(cell("feddf-table1", row, column, [rounds_to(run.history, target) for run in found]))
    return cells
