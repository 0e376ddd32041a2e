"""FedD3A's tables (Su, Li and Xue, 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from torch.nn import functional as F

from fedstill.core.streams import stream
from fedstill.fusion.weightings.projection import proximity
from fedstill.local.reports.projection import Projection, subspace
from fedstill.models.predict import apply
from fedstill.reproduce import Cell, Plan, cell, runs_of
from fedstill.reproduce.grids import base_tree
from fedstill.run.configuration import resolve
from fedstill.task import Task

__all__ = ["figure7", "table1", "table2"]

STRATEGIES: dict[str, dict[str, Any]] = {
    "Ceiling": {"name": "ceiling"},
    "Avg": {"name": "fedd3a", "weighting": "avg"},
    "Random": {"name": "fedd3a", "weighting": "random"},
    "FedD3A-onehot": {"name": "fedd3a", "weighting": "onehot"},
    "FedD3A-soft": {"name": "fedd3a", "weighting": "soft"},
}


def table1(plan: Plan) -> Sequence[Cell]:
    """One round, many local epochs, five ways to weight the teachers."""
    cells: list[Cell] = []
    tree = table1_tree(plan)
    for row, algorithm in STRATEGIES.items():
        if not plan.wants(row):
            continue
        distilling = {"distillation": tree["distillation"]} if algorithm["name"] == "fedd3a" else {}
        whole = {**{k: v for k, v in tree.items() if k != "distillation"}, "algorithm": {**algorithm, **distilling}}
        runs = runs_of(plan, row.lower(), whole)
        domains = [run.history[-1]["domains"] for run in runs]
        cells += [cell("fedd3a-table1", row, name, [found[name] for found in domains]) for name in domains[0]]
        cells.append(cell("fedd3a-table1", row, "Avg", [fmean(found.values()) for found in domains]))
    return cells


def table1_tree(plan: Plan) -> dict[str, Any]:
    """The configuration of Table 1, without the strategy."""
    if plan.scale == "paper":
        clients = ["infograph", "painting", "quickdraw", "real", "sketch"]
        return {
            "rounds": 1,
            "data": {"root": str(plan.root()), "domains": clients, "server": "clipart", "image_size": 224},
            "model": {"name": "resnet50"},
            "local": {"epochs": 50, "batch_size": 256, "optimizer": {"lr": 0.01, "momentum": 0.9}},
            "distillation": {},  # the paper's values are the defaults
        }
    if plan.data is not None:
        data: dict[str, Any] = {"root": str(plan.data), "domains": ["mnist", "usps", "svhn"], "server": "mnist_m"}
    else:
        data = {"domains": ["embedded:mnist", "embedded:optdigits", "embedded:rotated"], "server": "embedded:blended"}
    return {
        "rounds": 1,
        "data": {**data, "image_size": 32 if plan.data else 28, "limit": 3000, "test_limit": 1000},
        "model": {"name": "cnn-small"},
        "local": {"epochs": 10, "batch_size": 64, "optimizer": {"lr": 0.02, "momentum": 0.9}},
        # the pool is small: more passes over it, in smaller batches
        "distillation": {"epochs": 10, "batch_size": 64},
    }


def table2(plan: Plan) -> Sequence[Cell]:
    """Classification by the nearest subspace, against classification by the nearest mean feature."""
    if plan.rehearsing:
        return []
    right: dict[str, list[float | None]] = {"prototype": [], "projection": []}
    for seed in plan.seeds:
        for row, accuracy in classify(plan, seed).items():
            right[row].append(accuracy)
    return [cell("fedd3a-table2", row, "MNIST", right[row]) for row in right if plan.wants(row)]


def figure7(plan: Plan) -> Sequence[Cell]:
    """Features of the global model by domain and class, in the runs of Figure 3 and of all data pooled."""
    from fedstill.report.figures import draw_features  # slow: imports all of matplotlib

    base = base_tree("silo", plan)
    cells: list[Cell] = []
    for row, name in (("Ceiling", "ceiling"), ("FedAvg", "fedavg"), ("FedDF", "feddf"), ("FedD3A", "fedd3a")):
        if plan.wants(row):
            runs = runs_of(plan, f"figure7/{row.lower()}", {**base, "algorithm": {"name": name}})
            cells.append(cell("fedd3a-figure7", row, "accuracy", [run.summary["final_accuracy"] for run in runs]))
            if not plan.rehearsing and runs[0].folder not in plan.failed:
                draw_features(runs[0].folder, plan.out / f"features-{row}.png", method="tsne", classes=4, samples=100)
    return cells


def classify(plan: Plan, seed: int) -> dict[str, float]:
    """The accuracies of both methods for one initialisation."""
    size = 32 if plan.data else 8  # there are 120 embedded digits per class: larger batches give too few means to span a subspace
    source = {"root": str(plan.data), "domains": ["mnist"]} if plan.data else {"domains": ["embedded:mnist"]}
    tree = {
        "data": {**source, "image_size": 28, "channels": 1, "server": source["domains"][0]},
        "model": {"name": "mlp", "options": {"hidden": [200, 200]}},
        "algorithm": {"name": "fedd3a", "weighting_options": {"alpha": 0.1, "relative": False, "batch_size": size}},
    }
    config = resolve(tree, [*plan.sets, f"seed={seed}"])
    task = Task(config)
    options = Projection.model_validate(config.algorithm["weighting_options"])
    network = task.networks.load(task.networks.student, task.networks.initial(task.networks.student))
    domain = task.domains["mnist"]
    labels, wanted = domain.train.y, domain.test.y
    assert labels is not None
    assert wanted is not None
    features, z = apply(network.features, network, domain.train), apply(network.features, network, domain.test)
    order = torch.randperm(len(features), generator=stream(seed, "table2"))
    features, labels = features[order], labels[order]
    clients = [features[labels == c] for c in range(len(task.classes))]
    prototypes = torch.stack([own.mean(0) for own in clients])
    similar = F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T
    near = proximity(z.double(), [subspace(own, options) for own in clients])
    return {
        "prototype": float((similar.argmax(1) == wanted).double().mean()),
        "projection": float((near.argmax(1) == wanted).double().mean()),
    }
