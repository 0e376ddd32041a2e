"""FedDF's tables: rounds to a target (Table 1), the student's initial weights (Table 5), a proximal penalty (Table 8).

At paper scale the protocol is the preset ``feddf-cifar``. At the small scale it is ``feddf-cifar-small``, with a quarter of the
paper's local epochs and lower targets, so only our own columns can be compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedstill.config.presets import tree_of
from fedstill.reproduce import Cell, Plan, cell, runs_of

__all__ = ["initialisation", "proximal_penalty", "rounds_to_target"]

TARGETS = {"paper": {"1": 0.8, "0.1": 0.75}, "small": {"1": 0.4, "0.1": 0.3}, "tiny": {"1": 0.25, "0.1": 0.2}}


def _protocol(plan: Plan, alpha: str, epochs: int, rounds: int, algorithm: str, *more: str) -> tuple[dict[str, Any], list[str]]:
    """The tree and the assignments of one run."""
    small = plan.scale != "paper"
    sets = [
        f'data.root="{plan.root()}"',
        f"clients.partition.alpha={float(alpha)}",
        f"local.epochs={max(1, epochs // 4) if small else epochs}",
        f"rounds={10 if small else rounds}",
        f'algorithm.name="{algorithm}"',
        *more,
    ]
    return tree_of("feddf-cifar-small" if small else "feddf-cifar"), sets


def rounds_to_target(plan: Plan) -> Sequence[Cell]:
    """CIFAR-10 with ResNet-8; targets 80% and 75% at paper scale, 40% and 30% at the small one."""
    rows = [(name, epochs) for name, some in _METHODS.items() for epochs in (some if plan.scale == "paper" else some[-1:])]
    cells = []
    for name, epochs in rows:
        row = f"{name} {epochs}"
        if not plan.wants(row):
            continue
        for fraction in ("0.2", "0.4", "0.8") if plan.scale == "paper" else ("0.4",):
            for alpha, target in TARGETS[plan.scale].items():
                column = f"C={fraction} alpha={alpha}"
                tree, sets = _protocol(
                    plan, alpha, epochs, 600, name, f"clients.fraction={fraction}", f"evaluation.targets=[{target}]"
                )
                found = runs_of(plan, f"{row} {column}".replace(" ", "-"), tree, sets)
                reached = [run.summary["rounds_to"][str(target)] for run in found]
                cells.append(cell("feddf-table1", row, column, reached))
    return cells


_METHODS = {"fedavg": (1, 20, 40), "fedprox": (20, 40), "fedavgm": (20, 40), "feddf": (20, 40)}


def initialisation(plan: Plan) -> Sequence[Cell]:
    """From the average of the round, or from the previous fused model."""
    cells = []
    for epochs in (40, 80) if plan.scale == "paper" else (40,):
        if not plan.wants(str(epochs)):
            continue
        for alpha in ("1", "0.1"):
            for start in ("average", "previous"):
                tree, sets = _protocol(plan, alpha, epochs, 100, "feddf", f'algorithm.distillation.start="{start}"')
                found = runs_of(plan, f"{epochs}-alpha{alpha}-{start}", tree, sets)
                accuracies = [run.summary["final_accuracy"] for run in found]
                cells.append(cell("feddf-table5", str(epochs), f"alpha={alpha} {start}", accuracies))
    return cells


def proximal_penalty(plan: Plan) -> Sequence[Cell]:
    """FedDF and FedAvg, without and with FedProx's term in the clients' objective."""
    cells = []
    for row, mu in (("sgd", 0.0), ("proximal", 0.01)):
        if not plan.wants(row):
            continue
        for alpha in ("1", "0.1"):
            for name in ("feddf", "fedavg"):
                system = "fedprox" if name == "fedavg" and mu else name
                term = [f"algorithm.proximal={mu}"] if system == "feddf" else [f"algorithm.mu={mu}"] if mu else []
                tree, sets = _protocol(plan, alpha, 40, 100, system, *term)
                found = runs_of(plan, f"{row}-alpha{alpha}-{name}", tree, sets)
                accuracies = [run.summary["final_accuracy"] for run in found]
                cells.append(cell("feddf-table8", row, f"alpha={alpha} {name}", accuracies))
    return cells
