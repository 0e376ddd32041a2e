"""Photographs and news on pretrained networks: the papers' comparisons where their authors started, on PACS and two text sets.

This is not a paper's table. It repeats FedD3A's Table 1 (one long round) and FedDF's comparison over rounds with each domain of
PACS in turn as the pool, KDCL's Table 1 with each domain in turn as the target, FedDF's text experiment on frozen MiniLM, and the
fusion of three packed models (:mod:`fedstill.reproduce.one_shot`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedstill.core.nested import laid_over
from fedstill.reproduce import Cell, Plan, Run, cell, runs_of
from fedstill.reproduce.never_hurts import PHOTOS, frozen_photos
from fedstill.reproduce.one_shot import one_shot
from fedstill.run.history import rounds_to

__all__ = ["photographs"]

# as in the preset ``photos``
LOCAL = {"batch_size": 64, "optimizer": {"name": "sgd", "lr": 0.02, "momentum": 0.9}}
# alike in all rows, so that they differ by their weights alone
DISTILLATION = {"steps": 100, "batch_size": 64, "optimizer": {"name": "adam", "lr": 1e-3}}
LIMIT = 500  # training images of a domain, a quarter of PACS: all runs take hours on one core as it is
FUSING: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedProx": {"name": "fedprox"},
    "FedDF": {"name": "feddf", "distillation": DISTILLATION},
    "Avg": {"name": "fedd3a", "weighting": "avg", "distillation": DISTILLATION},
    "FedD3A-onehot": {"name": "fedd3a", "weighting": "onehot", "distillation": DISTILLATION},
    "FedD3A-soft": {"name": "fedd3a", "distillation": DISTILLATION},
}
JUDGED = {f"{row} judged": {**FUSING[row], "line": {}} for row in ("FedDF", "FedD3A-soft")}  # where students lose: skewed
AVERAGES = ("FedAvg", "FedProx")  # they cannot average different heads
ADAPTING: dict[str, dict[str, Any]] = {
    "Source only": {"name": "fedavg"},
    "SHOT": {"name": "shot"},
    "KD3A": {"name": "kd3a", "target_epochs": 3, "contributions": {"gate": {"start": 0.8}}},  # the gate as for DomainNet
    "KDCL": {"name": "kdcl"},
    "KDCL, target trained": {"name": "kdcl", "train_target": True},
    "FADA": {"name": "fada", "sync_every": 4},  # it aligns the backbone: not above a frozen one
}
LAST = {  # a sample costs twenty times as much as with a head alone, so there are fewer; smaller batches keep the steps
    "data": {"limit": 100, "test_limit": 200},
    "model": {"train": "last:2"},
    "local": {"batch_size": 32, "backbone_rate": 0.1},
}
FEWER = {"one": 50, "ten": 25}  # the student's steps a round there, in batches of 32
TARGETS = (0.7, 0.8, 0.84)  # of the text runs, as in FedDF's Table 4; its own are for a trained DistilBERT
TEXTS = {"ag_news": "sst2", "sst2": "ag_news"}


def settings(plan: Plan) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every run: its row, its column, and its configuration."""
    clients = {"per_domain": 5, "partition": {"kind": "dirichlet", "alpha": 0.1}}
    for pool in PHOTOS:
        one, ten = (photos(plan, pool, rounds, epochs) for rounds, epochs in ((1, 30), (10, 3)))
        protocols = {
            f"one round {pool}": one,
            f"ten rounds {pool}": ten,
            f"skewed {pool}": laid_over(ten, {"clients": clients}),
            f"last:2 one round {pool}": laid_over(one, LAST),
            f"last:2 ten rounds {pool}": laid_over(ten, LAST),
        }
        for column, tree in protocols.items():
            for row, options in {**FUSING, **(JUDGED if column.startswith("skewed") else {})}.items():
                fewer = {}
                if column.startswith("last:2") and row not in AVERAGES:
                    fewer = {"distillation": {"steps": FEWER[column.split()[1]], "batch_size": 32}}
                yield row, column, {**tree, "algorithm": laid_over(options, fewer)}
        for row, options in FUSING.items():
            if row not in AVERAGES:
                yield row, f"three heads {pool}", {**three_heads(one), "algorithm": options}
    for target in PHOTOS:
        for column, tree in {
            f"target {target}": adaptation(plan, target, rounds=10),
            f"last:2 target {target}": laid_over(adaptation(plan, target, rounds=10), LAST),
        }.items():
            for row, options in ADAPTING.items():
                if row != "FADA" or column.startswith("last:2"):
                    # all of SHOT's adaptation comes after the last round
                    late = {"source_rounds": tree["rounds"]} if row == "SHOT" else {}
                    yield row, column, {**tree, "algorithm": {**options, **late}}
    for name, other in TEXTS.items():
        for alpha in (1.0, 0.1):
            column = f"{name} alpha {alpha:g}"
            for row in ("FedAvg", "FedDF"):
                yield row, column, {**texts(plan, name, alpha, None), "algorithm": FUSING[row]}
                yield row, f"{column}, pool {other}", {**texts(plan, name, alpha, other), "algorithm": FUSING[row]}


def photos(plan: Plan, pool: str, rounds: int, epochs: int) -> dict[str, Any]:
    """PACS on a frozen pretrained network, one site per domain; the server has the domain ``pool``."""
    return laid_over(frozen_photos(plan, pool, rounds=rounds, epochs=epochs), {"data": {"limit": LIMIT}, "local": LOCAL})


def three_heads(tree: dict[str, Any]) -> dict[str, Any]:
    """The same protocol with another head at each site: linear, one hidden layer, two."""
    heads = {"linear": [], "hidden": [256], "two": [256, 128]}
    variants = {name: {"name": "efficientnet-lite0", "options": {"head": head}} for name, head in heads.items()}
    model = {key: value for key, value in tree["model"].items() if key not in ("name", "options")}
    return {**tree, "model": {**model, "clients": list(heads), "variants": variants}}


def adaptation(plan: Plan, target: str, rounds: int) -> dict[str, Any]:
    """The other three domains are the sources."""
    tree = photos(plan, target, rounds, epochs=3)
    data = {key: value for key, value in tree["data"].items() if key != "server"}
    bottleneck = {"options": {"bottleneck": 256}}
    return {**tree, "data": {**data, "target": target}, "model": {**tree["model"], **bottleneck}}


def texts(plan: Plan, name: str, alpha: float, pool: str | None) -> dict[str, Any]:
    """Ten sites with 1,000 texts above a frozen MiniLM; as many others, without labels, are the pool, or those of ``pool``."""
    apart: dict[str, Any] = {"holdout": 0.5, "limit": 2000} if pool is None else {"server": pool, "limit": 1000}
    data = {"root": str(plan.root()), "domains": [name], **apart, "test_limit": 1000, "text": {"length": 64}}
    return {
        "rounds": 10,
        "data": data,
        "clients": {"per_domain": 10, "partition": {"kind": "dirichlet", "alpha": alpha}},
        "model": {"name": "text:minilm", "train": "head", "options": {"head": [256]}},
        # FedDF's for text: momentum SGD at the photographs' rate leaves the heads untrained, since the features have length 1
        "local": {"epochs": 10, "batch_size": 32, "optimizer": {"name": "adam", "lr": 1e-3}},
        "engine": {"threads": 1},
    }


def photographs(plan: Plan) -> Sequence[Cell]:
    """Every row in every column that has it; texts also with the rounds to each target."""
    cells = []
    for row, column, tree in settings(plan):
        if plan.wants(row) and plan.wants_column(column):
            name = f"{column}/{row}".lower().replace(",", "").replace(":", "-").replace(" ", "-")
            runs = runs_of(plan, name, tree)
            cells.append(cell("photographs", row, column, [run.accuracy for run in runs]))
            if column.startswith(tuple(TEXTS)):
                cells += [cell("photographs", row, f"{column}, rounds to {goal:.0%}", reached(runs, goal)) for goal in TARGETS]
    return [*cells, *one_shot(plan)]


def reached(runs: Sequence[Run], goal: float) -> list[float | None]:
    """The first round of each run with this accuracy, or None."""
    return [rounds_to(run.history, goal) for run in runs]
