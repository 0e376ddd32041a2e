"""Does distillation cost accuracy? FedAvg beside every system that distils, in its paper's form and with judge and line.

This is not a paper's table. It has photographs on a frozen pretrained network and digits of four domains, with each domain in
turn as the server's pool; the demo's embedded digits; unevenly divided MNIST; and photographs from scratch. With judge and line
the pool is also varied (``source.kind = "varied"``), unless the system generates its samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedstill.core.nested import laid_over
from fedstill.reproduce import Cell, Plan, cell, runs_of
from fedstill.reproduce.figures import Curve, draw
from fedstill.run.configuration import tree_in

__all__ = ["PHOTOS", "SYSTEMS", "ablations", "columns", "frozen_photos", "local_training", "never_hurts"]

DIGITS = ("mnist", "usps", "svhn", "mnist_m")
PHOTOS = ("art_painting", "cartoon", "photo", "sketch")
ADAM = {"epochs": 1, "batch_size": 64, "optimizer": {"name": "adam", "lr": 1e-3}}

SYSTEMS: dict[str, dict[str, Any]] = {
    "FedDF": {"name": "feddf", "distillation": {**ADAM, "schedule": "cosine"}},
    "FedD3A": {"name": "fedd3a", "distillation": ADAM},
    "FedBE": {"name": "fedbe", "distillation": ADAM, "samples": 4},
    "FedRAD": {"name": "fedrad", "distillation": {**ADAM, "schedule": "cosine"}},
    "DaFKD": {
        "name": "dafkd",
        "distillation": {"steps": 60},
        "source": {"size": 640},
    },
    "FedFTG": {
        "name": "fedftg",
        "generator": {"kind": "mlp-conditional"},
        "iterations": 4,
        "student_optimizer": {"lr": 0.01},
    },
}
GENERATING = ("DaFKD", "FedFTG")  # they generate their samples, which are images only

# FedAvg whose clients hold out a tenth for a judge: what FedDF averages if no student is carried on. The student is the average
# itself, so that the judge compares the average with its mean over two rounds ("FedAvg judged"); nothing is distilled. The first
# never trains on that tenth, the second in the last round.
NOTHING = {"steps": 1, "optimizer": {"name": "sgd", "lr": 1e-12}}
AVERAGES: dict[str, dict[str, Any]] = {
    name: {"name": "feddf", "distillation": NOTHING, "line": {"carry": 0.0, "points": [0.0, 1.0], "full_rounds": full}}
    for name, full in (("FedAvg held out", 0), ("FedAvg held out until the last round", 1))
}
JUDGED = "FedAvg judged"  # the same runs as "FedAvg held out"

# What might carry more of the ensemble over, one change at a time (the judged row is without any of them)
MEANS: dict[str, dict[str, Any]] = {
    "mixup": {"distillation": {"mixup": 1.0}},
    "weight averaging": {"distillation": {"averaging": {"every": 5}}},
    "proximal pull": {"distillation": {"proximal": 0.1}},
    "temperature 3": {"distillation": {"temperature": 3.0, "square": True}},
    "four times the steps, a third of the rate": {"distillation": {"epochs": 4, "optimizer": {"lr": 3e-4}}},
    "three times the pool": {"source": {"size": 3}},
    "the pool as it is": {"source": {"kind": "data"}},
}


def local_training(epochs: int, rate: float) -> dict[str, Any]:
    """SGD in batches of 32, as every row has it."""
    return {"epochs": epochs, "batch_size": 32, "optimizer": {"name": "sgd", "lr": rate, "momentum": 0.9}}


def _pool(root: Path, domains: Sequence[str], pool: str, **images: int) -> dict[str, Any]:
    """The server has the domain ``pool``, the clients all others."""
    return {"root": str(root), "domains": [name for name in domains if name != pool], "server": pool, **images}


def frozen_photos(plan: Plan, pool: str | None, *, rounds: int, epochs: int) -> dict[str, Any]:
    """PACS on a frozen pretrained network; the server has the domain ``pool``."""
    data = _pool(plan.root() / "pacs160", PHOTOS, pool or "", image_size=160, channels=3)
    if pool is None:
        del data["server"]
    network = {"name": "efficientnet-lite0", "weights": "imagenet", "train": "head", "options": {"head": [256]}}
    return {"rounds": rounds, "data": data, "model": network, "local": local_training(epochs, 0.01), "engine": {"threads": 1}}


def columns(plan: Plan) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Every column: its name, its configuration, and the size of a varied pool."""
    root, small = plan.root(), {"model": {"name": "cnn-small"}, "engine": {"threads": 1}}
    for pool in PHOTOS:
        yield f"pacs160 {pool}", frozen_photos(plan, pool, rounds=5, epochs=5), 4000
    for pool in DIGITS:
        data = _pool(root, DIGITS, pool, image_size=32, channels=3, limit=1200, test_limit=2000)
        yield f"digits {pool}", {"rounds": 6, "data": data, "local": local_training(2, 0.02), **small}, 2400
    demo = laid_over(tree_in("demo"), {"engine": {"threads": 1, "workers": 0}})
    for own in demo["for"].values():
        own.get("algorithm", {}).pop("source", None)  # the rows say whether the pool is varied
    yield "demo", demo, 2400
    for alpha in (0.1, 1.0):
        data = _pool(root, ["mnist"], "usps", image_size=28, channels=1, limit=1200, test_limit=1000)
        clients = {"per_domain": 10, "per_round": 5, "partition": {"kind": "dirichlet", "alpha": alpha}}
        mnist = {"rounds": 8, "data": data, "clients": clients, "local": local_training(5, 0.02), **small}
        yield f"mnist alpha {alpha:g}", mnist, 2400
    for liars in (0.0, 0.2):
        poison = {"poison": {"fraction": liars, "kind": "false-verdict"}} if liars else {}
        yield f"false verdicts {liars:g}", laid_over(mnist, {"clients": {"per_round": 10}, "data": poison}), 2400
    for pool in PHOTOS:
        data = _pool(root / "pacs", PHOTOS, pool, image_size=64, channels=3, limit=400, test_limit=200)
        yield f"pacs64 {pool}", {"rounds": 6, "data": data, "local": local_training(2, 0.02), **small}, 1600


def judged(title: str, size: int) -> dict[str, Any]:
    """A system with judge and line, on a varied pool unless it generates its samples."""
    return {**SYSTEMS[title], "line": {}, **({} if title in GENERATING else {"source": {"kind": "varied", "size": size}})}


def never_hurts(plan: Plan) -> Sequence[Cell]:
    """FedAvg, and two rows per system; the figure has the rounds of FedAvg and of the judged rows, as the mean over pools."""
    cells, curves = [], list[Curve]()
    for column, tree, size in columns(plan):
        if not plan.wants_column(column):
            continue
        rows: dict[str, dict[str, Any]] = {"FedAvg": {"name": "fedavg"}}
        if not column.startswith("false verdicts"):
            rows |= AVERAGES if column.startswith("digits") else {"FedAvg held out": AVERAGES["FedAvg held out"]}
        for title, options in SYSTEMS.items():
            if title in GENERATING and column.startswith("pacs160"):
                continue
            if column.startswith("false verdicts") and title not in ("FedDF", "FedD3A"):
                continue
            rows[title] = {**options, "line": False}
            rows[f"{title} judged"] = judged(title, size)
        for row, options in rows.items():
            if plan.wants(row) or (row == "FedAvg held out" and plan.wants(JUDGED)):
                told = {"algorithm": demo_options(options) if column == "demo" else options}
                if column == "demo" and row in AVERAGES:  # the preset's own settings for a system win over all others
                    told["for"] = {options["name"]: {"algorithm": {k: v for k, v in options.items() if k != "name"}}}
                runs = runs_of(plan, folder_of(column, row), laid_over(tree, told))
                found = [run.history[-1]["merged_accuracy"] if row in AVERAGES else run.summary["final_accuracy"] for run in runs]
                cells.append(cell("never-hurts", row, column, found))
                if row == "FedAvg held out":
                    row = JUDGED
                    cells.append(cell("never-hurts", row, column, [run.summary["final_accuracy"] for run in runs]))
                if row == "FedAvg" or row.endswith(" judged"):
                    curves.append((panel_of(column), row, "", [run.history for run in runs]))
    if curves and not plan.rehearsing:
        panels = list(dict.fromkeys(panel for panel, *_ in curves))
        draw(plan.out / "never-hurts.png", {"kind": "curves", "y": "accuracy on the domains"}, cells, pooled(curves), panels)
    return cells


def panel_of(column: str) -> str:
    """The columns that differ only in their pool share a panel.

    >>> panel_of("digits svhn"), panel_of("mnist alpha 0.1"), panel_of("demo")
    ('digits', 'mnist alpha 0.1', 'demo')
    """
    first = column.split(" ")[0]
    return first if first in ("digits", "pacs64", "pacs160") else column


def pooled(curves: Sequence[Curve]) -> list[Curve]:
    """One curve for each row of a panel, with the histories of all of its columns."""
    found: dict[tuple[str, str], list[Any]] = {}
    for panel, row, _, histories in curves:
        found.setdefault((panel, row), []).extend(histories)
    return [(panel, row, "", histories) for (panel, row), histories in found.items()]


def demo_options(options: dict[str, Any]) -> dict[str, Any]:
    """A row's options without steps, rates and sizes, which the preset ``demo`` has."""
    kept = {name: options[name] for name in ("name", "line") if name in options}
    return kept | ({"source": options["source"]} if "kind" in options.get("source", {}) else {})


def folder_of(column: str, row: str) -> str:
    """The folder of a cell's runs."""
    return f"{column}/{row}".lower().replace(",", "").replace(" ", "-")


def ablations(plan: Plan) -> Sequence[Cell]:
    """FedDF and FedD3A with judge and line, and one change to how the student learns; with the ensemble that it learns from."""
    cells = []
    for column, tree, size in columns(plan):
        if not column.startswith(("digits", "pacs")) or not plan.wants_column(column):
            continue
        for title in ("FedDF", "FedD3A"):
            for name, change in {"": {}, **MEANS}.items():
                row = f"{title} judged, {name}" if name else f"{title} judged"
                if not plan.wants(title) and not plan.wants(row):
                    continue
                told = laid_over(judged(title, size), change)
                if "size" in change.get("source", {}):
                    told["source"]["size"] = size * change["source"]["size"]
                runs = runs_of(plan, folder_of(column, row), laid_over(tree, {"algorithm": told}))
                cells.append(cell("never-hurts-ablations", row, column, [run.summary["final_accuracy"] for run in runs]))
                if not name:
                    found = [run.history[-1]["ensemble_accuracy"] for run in runs]
                    cells.append(cell("never-hurts-ablations", f"{title}, ensemble", column, found))
    return cells
