"""Accuracy against epsilon: what sample-level privacy costs FedAvg, FedDF and FedD3A, and what private votes can do.

Ten clients hold MNIST digits (Dirichlet, alpha 1); the server has unlabelled digits. Epsilon is that of every sample of a client,
except for private votes, where it is that of a whole client as a teacher, and for noised sums, where it is that of a whole client
as a part of the average. Ten clients cannot hide one of them there; two more rows have the same digits at more clients. This is
not a paper's table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedstill.core.nested import laid_over
from fedstill.fusion.weightings.private_votes import budget_cost
from fedstill.reproduce import Cell, Plan, cell, runs_of
from fedstill.reproduce.figures import draw

__all__ = ["EPSILONS", "SYSTEMS", "privacy", "setting"]

DELTA = 1e-5
EPSILONS = (1.0, 3.0, 8.0, None)
ROUNDS, STEPS = 3, 30
ANSWERS = 100  # ten labels for each of ten classes: what the votes' noise is chosen for
REPORTS = 0.2  # the part of the budget, as Rényi cost, that FedD3A's projections may spend
# the best of 0.25, 0.5 and 1 for private clients (epsilon 3), and of 0.1, 0.25 and 0.5 for plain ones, with two clients of other
# digits (embedded:mnist, seed 9) and 5 rounds of 40 steps
RATES = {True: 0.25, False: 0.1}  # of private and of plain clients

# the best of 0.1, 0.3, 1 and 3 with rates of 0.1, 0.25 and 0.5, and of 0.3, 1 and 3 with 0.025 and 0.05, for epsilon 8 and 100
# clients of other digits (embedded:mnist, seed 9) in the study's three rounds; the rate is that of plain clients
CLIP = 1.0  # of a client's update
CLIENTS = {"noised sum": 10, "noised sum 100 clients": 100, "noised sum 1000 clients": 1000}

DISTILLATION = {"line": False, "distillation": {"steps": 100, "batch_size": 64, "optimizer": {"name": "adam", "lr": 1e-3}}}
SYSTEMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedDF": {"name": "feddf", **DISTILLATION},
    "FedD3A": {"name": "fedd3a", **DISTILLATION},
    "private votes": {"name": "feddf", **DISTILLATION},
    **{row: {"name": "fedavg"} for row in CLIENTS},
}


def setting(scale: str, clients: int = 10) -> dict[str, Any]:
    """The run without a system; at the full scale, a convolutional network, more digits and longer training."""
    small = scale != "paper"
    return {
        "rounds": ROUNDS if small else 20,
        "data": {
            "domains": ["embedded:mnist" if scale == "tiny" else "mnist"],
            "holdout": 0.1,
            **({"limit": 1000, "test_limit": 200} if scale == "tiny" else {"limit": 22_000} if small else {}),
        },
        "clients": {
            "per_domain": min(clients, 20) if scale == "tiny" else clients,
            "partition": {"kind": "dirichlet", "alpha": 1.0},
        },
        "model": {"name": "mlp", "options": {"hidden": [32]}} if small else {"name": "cnn-small", "norm": "group"},
        "local": {"steps": STEPS, "batch_size": 128, "optimizer": {"name": "sgd", "lr": RATES[False]}},
        "evaluation": {"every": ROUNDS if small else 20, "ensemble": False},
        "engine": {"threads": 1},
    }


def mechanism(row: str, epsilon: float | None, rounds: int) -> dict[str, Any]:
    """The tables of ``[privacy]``, and what else a mechanism changes."""
    if row == "private votes":
        return votes(epsilon, rounds)
    if epsilon is None:
        return {}
    if row in CLIENTS:
        return {"privacy": {"client": {"epsilon": epsilon, "delta": DELTA, "clip": CLIP}}}
    sample = {"epsilon": epsilon, "delta": DELTA, "max_grad_norm": 1.0}
    found: dict[str, Any] = {"privacy": {"sample": sample}, "local": {"optimizer": {"lr": RATES[True]}}}
    if row == "FedD3A":  # rounds / (2 noise^2) is their cost
        noise = math.sqrt(rounds / (2 * REPORTS * budget_cost(epsilon, DELTA)))
        found["privacy"]["reports"] = {"noise": float(f"{noise:.4g}"), "delta": DELTA, "clip": 1.0}
    return found


def votes(epsilon: float | None, rounds: int) -> dict[str, Any]:
    """One round of teachers that train as long as others in all rounds; their noised votes teach a student from scratch. The same
    noise on question and answer is chosen so that ``ANSWERS`` samples can be answered: answers (1/2 + 1) / sigma^2 = c."""
    cost = math.inf if epsilon is None else budget_cost(epsilon, DELTA)
    sigma = max(1e-3, math.sqrt(1.5 * ANSWERS / cost))
    asked: dict[str, Any] = {"sigma": sigma, "sigma_threshold": sigma, "threshold": 0.0, "delta": DELTA}
    if epsilon is not None:
        asked["epsilon"] = epsilon
    return {
        "rounds": 1,
        "local": {"steps": rounds * STEPS},
        "algorithm": {"distillation": {"start": "previous"}},
        "privacy": {"votes": asked},
        "evaluation": {"every": 1},
    }


def plan_for(plan: Plan, row: str) -> Plan:
    """The plan of a row: private votes have one round, however many rounds others are told to have."""
    kept = tuple(one for one in plan.sets if not one.startswith("rounds="))
    return replace(plan, sets=kept) if row == "private votes" else plan


def privacy(plan: Plan) -> Sequence[Cell]:
    """Every system at every epsilon."""
    from fedstill.run.configuration import resolve  # slow: imports torch, which the list of studies does not need

    cells = []
    for row, algorithm in SYSTEMS.items():
        for epsilon in EPSILONS:
            column = "no privacy" if epsilon is None else f"epsilon {epsilon:g}"
            if not plan.wants(row) or not plan.wants_column(column):
                continue
            tree = laid_over(setting(plan.scale, CLIENTS.get(row, 10)), {"algorithm": algorithm})
            if plan.scale != "tiny":
                tree["data"]["root"] = str(plan.root())
            rounds = resolve(tree, plan.sets).rounds  # which budgets are divided by
            tree = laid_over(tree, mechanism(row, epsilon, rounds))
            runs = runs_of(plan_for(plan, row), f"{row}-{column}".lower().replace(" ", "-"), tree)
            cells.append(cell("privacy", row, column, [run.summary["final_accuracy"] for run in runs]))
    if cells and not plan.rehearsing:
        axes = {"kind": "lines", "x": f"budget (delta {DELTA:.0e})", "y": "test accuracy"}
        draw(plan.out / "privacy.png", axes, cells, [])
    return cells
