"""KDCL (Huang et al., 2022): accuracy under domain adaptation, rounds to KD3A's accuracy, and a source with false labels.

The paper's data set is DomainNet. Here the same protocol runs on digits and on PACS, with each domain in turn as the target, and
the paper's figures have separate columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedstill.reproduce import Cell, Plan, Run, cell, runs_of
from fedstill.reproduce.figures import Curve, draw
from fedstill.run.history import rounds_to

__all__ = ["figure4", "poison", "table1", "table2"]

SYSTEMS = {"FedAvg": "fedavg", "SHOT": "shot", "FADA": "fada", "KD3A": "kd3a", "KDCL": "kdcl"}
DIGITS = ("mnist_m", "svhn", "usps", "mnist")
PACS = ("pacs/art_painting", "pacs/cartoon", "pacs/photo", "pacs/sketch")
DOMAINNET = ("Clipart", "Infographics", "Quickdraw", "Painting", "Real", "Sketch")


def wanted(plan: Plan, names: Sequence[str]) -> list[str]:
    """Those of ``names`` in ``--only``; all if it has none of them, so systems and targets can be chosen independently."""
    chosen = [name for name in names if name.lower() in plan.only]
    return chosen or list(names)


def tree_of(plan: Plan, target: str, system: str) -> dict[str, Any]:
    """The run of one system with one target."""
    small = plan.scale == "small"
    pacs = target.startswith("pacs/")
    algorithms: Mapping[str, Mapping[str, Any]] = {
        "fedavg": {},
        # as many passes over the target's samples as each source makes over its own
        "kd3a": {"target_epochs": 2 if small else 1, **({"contributions": {"gate": {"start": 0.8}}} if pacs else {})},
        "kdcl": {},
        # all adaptation at the end, as in the original; the network has no pretrained backbone that needs a lower rate
        "shot": {"source_rounds": 8 if small else 80, "epochs": 6 if small else 30, "backbone_rate": 1.0, "pseudo": 0.1},
        "fada": {"sync_every": 20, "width": 128, "attended": 256} if small else {"sync_every": 10},
    }
    return {
        "rounds": 8 if small else 80,
        "data": {
            "domains": [domain for domain in (PACS if pacs else DIGITS) if domain != target],
            "target": target,
            "root": str(plan.root()),
            "image_size": 32 if small or not pacs else 64,
            "channels": 3,
            **({"limit": 1500, "test_limit": 600} if small else {}),
        },
        # SHOT needs the bottleneck, and FADA disentangles it; all systems have it, so that all have the same network
        "model": {
            "name": "cnn-small" if small else "resnet18" if pacs else "cnn",
            "options": {"bottleneck": 64 if small else 256},
        },
        "local": {
            "epochs": 2 if small else 1,
            "batch_size": 50,
            "optimizer": {"lr": 0.02 if small else 0.005, "momentum": 0.9},
            "schedule": {"kind": "cosine", "final": 0.001},
        },
        "engine": {"threads": 1 if small else 0},
        "algorithm": {"name": system, **algorithms[system]},
    }


def runs(plan: Plan, systems: Sequence[str]) -> Iterator[tuple[str, str, list[Run]]]:
    """(target, system, its runs) for all requested targets and systems."""
    for target in wanted(plan, [*DIGITS, *PACS]):
        for title in wanted(plan, systems):
            name = SYSTEMS[title]
            yield target, title, runs_of(plan, f"{target.replace('/', '-')}/{name}", tree_of(plan, target, name))


def table1(plan: Plan) -> list[Cell]:
    """Every system, with every domain in turn as the target."""
    cells: list[Cell] = []
    means: dict[str, list[tuple[float, ...]]] = {}
    for target, title, found in runs(plan, list(SYSTEMS)):
        ours = tuple(run.accuracy for run in found)
        cells.append(cell("kdcl-table1", title, target, ours))
        means.setdefault(title, []).append(ours)
    for title, rows in means.items():
        cells.append(cell("kdcl-table1", title, "mean", [fmean(seed) for seed in zip(*rows, strict=True)]))
        cells += [cell("kdcl-table1", title, column, []) for column in (*DOMAINNET, "Avg") if title != "FedAvg"]
    return cells


def table2(plan: Plan) -> list[Cell]:
    """The first round in which each system reaches KD3A's final accuracy, seed by seed."""
    by_place = {(target, title): found for target, title, found in runs(plan, ["KD3A", "KDCL"])}
    cells: list[Cell] = []
    for (target, title), found in by_place.items():
        goals = by_place.get((target, "KD3A"), [])
        reached = [rounds_to(run.history, goal.accuracy) for run, goal in zip(found, goals, strict=False)]
        cells.append(cell("kdcl-table2", title, target, reached))
    for title in dict.fromkeys(title for _, title in by_place):
        cells += [cell("kdcl-table2", title, column, []) for column in DOMAINNET]
    return cells


def figure4(plan: Plan) -> list[Cell]:
    """Table 1's runs round by round, a panel per target."""
    cells, found = [], list[Curve]()
    for target, title, its in runs(plan, list(SYSTEMS)):
        found.append((target, title, "", [run.history for run in its]))
        cells.append(cell("kdcl-figure4", title, target, [run.accuracy for run in its]))
    if cells and not plan.rehearsing:
        panels = list(dict.fromkeys(c.column for c in cells))
        draw(plan.out / "kdcl-figure4.png", {"kind": "curves", "y": "accuracy on the target"}, cells, found, panels)
    return cells


def poison(plan: Plan) -> list[Cell]:
    """KDCL, KD3A and FedAvg with and without the poison."""
    cells: list[Cell] = []
    for title in wanted(plan, ["FedAvg", "KD3A", "KDCL"]):
        # the honest runs are those of Table 1
        poisoned = ["data.poison={clients = ['mnist'], level = 0.3}"]
        for label, folder, sets in (("honest", "mnist_m", []), ("poisoned", "mnist_m-poisoned", poisoned)):
            found = runs_of(plan, f"{folder}/{SYSTEMS[title]}", tree_of(plan, "mnist_m", SYSTEMS[title]), sets)
            cells.append(cell("kdcl-poison", title, f"accuracy, {label}", [run.summary["final_accuracy"] for run in found]))
            cells.append(cell("kdcl-poison", title, f"weight of mnist, {label}", [weight_of(run, "mnist-0") for run in found]))
    return cells


def weight_of(run: Run, client: str) -> float:
    """The client's weight in the last round; equal weights if a system has none (the sources have equal sizes here)."""
    last = run.history[-1]
    return last.get("weights", {}).get(client, 1 / len(last["clients"]))
