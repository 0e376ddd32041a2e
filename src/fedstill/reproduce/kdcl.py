"""KDCL (Huang et al., 2022): accuracy under domain adaptation, rounds to KD3A's accuracy, and a source with false labels.

The paper's data set is DomainNet. Here the systems run on digits (at the paper's scale also on PACS), with each domain in turn
as the target, and the paper's figures have separate columns. Photographs on a pretrained network are in
:mod:`fedstill.reproduce.photographs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from fedstill.core.errors import unknown
from fedstill.core.nested import laid_over
from fedstill.reproduce import Cell, Plan, Run, cell, published, runs_of
from fedstill.reproduce.figures import Curve, draw
from fedstill.run.history import rounds_to

__all__ = ["figure4", "poison", "table1", "table2"]

SYSTEMS: dict[str, dict[str, Any]] = {
    "Source only": {"algorithm": {"name": "fedavg"}},
    # what of an adapting system's gain is BatchNorm's alone
    "Source only with target statistics": {"algorithm": {"name": "fedavg"}, "model": {"buffers": "recalibrate"}},
    "SHOT": {"algorithm": {"name": "shot", "backbone_rate": 1.0, "pseudo": 0.1}},  # nothing is pretrained
    "FADA": {"algorithm": {"name": "fada"}},
    "KD3A": {"algorithm": {"name": "kd3a"}},
    # the authors' sources keep their classifiers; on photographs their votes then get worse from round to round
    "KD3A with merged classifiers": {"algorithm": {"name": "kd3a", "classifiers": "merge"}},
    "KDCL": {"algorithm": {"name": "kdcl"}},
    "KDCL with target training": {"algorithm": {"name": "kdcl", "train_target": True}},  # as KD3A does, on which it builds
}
DIGITS = ("mnist_m", "svhn", "usps", "mnist")
PACS = ("pacs/art_painting", "pacs/cartoon", "pacs/photo", "pacs/sketch")
DOMAINNET = ("Clipart", "Infographics", "Quickdraw", "Painting", "Real", "Sketch")

# SHOT needs the bottleneck, and FADA disentangles it; all systems have it, so that all have the same network
PAPER: dict[str, Any] = {
    "rounds": 80,
    "model": {"name": "cnn", "options": {"bottleneck": 256}},
    "local": {"epochs": 1, "batch_size": 50, "optimizer": {"lr": 0.005, "momentum": 0.9}},
}
# KD3A's schedule for digits (rate, decay, momentum, an epoch a round), in a fifth of its rounds and a quarter of its data
SMALL = {
    "rounds": 20,
    "data": {"limit": 6000, "test_limit": 2000},
    "model": {"name": "cnn-small", "options": {"hidden": 256, "bottleneck": 128}},
    "local": {"epochs": 1, "batch_size": 64, "optimizer": {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}},
    "engine": {"threads": 1},
}
REDUCED = {
    "rounds": 8,
    "data": {"limit": 1500, "test_limit": 600},
    "model": {"name": "cnn-small", "options": {"bottleneck": 64}},
    "local": {"epochs": 2, "batch_size": 50, "optimizer": {"lr": 0.02, "momentum": 0.9}},
    "engine": {"threads": 1},
}
PROTOCOLS: dict[str, dict[str, Any]] = {"paper": PAPER, "small": SMALL, "reduced": REDUCED}
# what a system has of its own at a scale
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"shot": {"epochs": 30}, "fada": {"sync_every": 10}},
    "small": {
        "shot": {"epochs": 30},
        "fada": {"sync_every": 20, "width": 128, "attended": 256},
        "kdcl": {"distillation": {"epochs": 1, "batch_size": 64, "optimizer": {"lr": 0.01, "momentum": 0.9}}},
    },
    # as many passes over the target's samples as each source makes over its own
    "reduced": {
        "shot": {"epochs": 6},
        "fada": {"sync_every": 20, "width": 128, "attended": 256},
        "kd3a": {"target_epochs": 2},
    },
}


def wanted(plan: Plan, names: Sequence[str]) -> list[str]:
    """Those of ``names`` in ``--only``; all if it has none of them, so systems and targets can be chosen independently."""
    known = [name.lower() for name in (*SYSTEMS, *DIGITS, *PACS)]
    for name in plan.only:
        if name not in known:
            raise unknown("system or target of --only", name, known)
    chosen = [name for name in names if name.lower() in plan.only]
    return chosen or list(names)


def targets(plan: Plan) -> list[str]:
    """The targets: digits, and at the paper's scale photographs too; others if ``--only`` or ``--columns`` names them."""
    every = [name for name in wanted(plan, [*DIGITS, *PACS]) if plan.wants_column(name)]
    return every if plan.scale == "paper" or len(every) < len([*DIGITS, *PACS]) else list(DIGITS)


def tree_of(plan: Plan, target: str, title: str) -> dict[str, Any]:
    """The run of one system with one target."""
    pacs, system = target.startswith("pacs/"), SYSTEMS[title]["algorithm"]["name"]
    tree: dict[str, Any] = {
        "data": {
            "domains": [domain for domain in (PACS if pacs else DIGITS) if domain != target],
            "target": target,
            "root": str(plan.root()),
            "image_size": 64 if pacs and plan.scale == "paper" else 32,
            "channels": 3,
        },
        "local": {"schedule": {"kind": "cosine", "final": 0.001}},
    }
    tree = laid_over(tree, PROTOCOLS[plan.scale])
    if pacs and plan.scale == "paper":
        tree["model"] = {**tree["model"], "name": "resnet18"}
    own = dict(OWN[plan.scale].get(system, {}))
    if system == "shot":
        own["source_rounds"] = tree["rounds"]  # all adaptation at the end, as in the original
    if system == "kd3a" and pacs:
        own["contributions"] = {"gate": {"start": 0.8}}
    return laid_over(laid_over(tree, {"algorithm": own}), SYSTEMS[title])


def folder_of(title: str) -> str:
    """The name of a row's folder."""
    return title.lower().replace(" ", "-")


def runs(plan: Plan, systems: Sequence[str]) -> Iterator[tuple[str, str, list[Run]]]:
    """(target, system, its runs) for all requested targets and systems."""
    for target in targets(plan):
        for title in wanted(plan, systems):
            name = f"{target.replace('/', '-')}/{folder_of(title)}"
            yield target, title, runs_of(plan, name, tree_of(plan, target, title))


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
        cells += [cell("kdcl-table1", title, c, []) for c in (*DOMAINNET, "Avg") if published("kdcl-table1", title, c)]
    return cells


def table2(plan: Plan) -> list[Cell]:
    """The first round in which each system reaches KD3A's final accuracy, seed by seed."""
    titles = ["KD3A", "KDCL", "KDCL with target training"]
    if wanted(plan, titles) != titles:
        plan = replace(plan, only=(*plan.only, "kd3a"))  # the others are measured by it
    by_place = {(target, title): found for target, title, found in runs(plan, titles)}
    cells: list[Cell] = []
    for (target, title), found in by_place.items():
        reached = [rounds_to(run.history, goal.accuracy) for run, goal in zip(found, by_place[target, "KD3A"], strict=True)]
        cells.append(cell("kdcl-table2", title, target, reached))
    for title in dict.fromkeys(title for _, title in by_place):
        cells += [cell("kdcl-table2", title, column, []) for column in DOMAINNET if published("kdcl-table2", title, column)]
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


# What is wrong with a source: the folder of its runs, the changes, and the client whose weight is shown. Digits of clothes are
# no digits: their class i is taken for the digit i.
SOURCES: dict[str, tuple[str, dict[str, Any], str]] = {
    "honest": ("mnist_m", {}, "mnist-0"),  # the runs of Table 1
    "poisoned": ("mnist_m-poisoned", {"data": {"poison": {"clients": ["mnist"], "level": 0.3}}}, "mnist-0"),
    "irrelevant": (
        "mnist_m-irrelevant",
        {"data": {"domains": ["mnist", "usps", "svhn", "fashion_mnist"], "classes": "position"}},
        "fashion_mnist-0",
    ),
}


def poison(plan: Plan) -> list[Cell]:
    """KDCL, KD3A and averaging with honest sources, with a poisoned one and with an irrelevant one."""
    cells: list[Cell] = []
    for title in wanted(plan, ["Source only", "KD3A", "KDCL", "KDCL with target training"]):
        for label, (folder, changes, client) in SOURCES.items():
            if not plan.wants_column(label):
                continue
            found = runs_of(plan, f"{folder}/{folder_of(title)}", laid_over(tree_of(plan, "mnist_m", title), changes))
            cells.append(cell("kdcl-poison", title, f"accuracy, {label}", [run.summary["final_accuracy"] for run in found]))
            shown = f"weight of {client.removesuffix('-0')}, {label}"
            cells.append(cell("kdcl-poison", title, shown, [weight_of(run, client) for run in found]))
    return cells


def weight_of(run: Run, client: str) -> float:
    """The client's weight in the last round; equal weights if a system has none (the sources have equal sizes here)."""
    last = run.history[-1]
    return last.get("weights", {}).get(client, 1 / len(last["clients"]))
