"""DaFKD's tables (Wang et al., CVPR 2023): accuracy, rounds to an accuracy, ablations.

K = 20 clients with Dirichlet labels, 8 per round, T = 60 rounds, batches of 32, E = 20 (40 for EMNIST). The text and the authors'
code count E in epochs, the caption of Table 1 in steps. The scales ``paper`` and ``small`` have epochs; ``reduced`` has steps, as
do the older results on the page. ``small`` has 500 images of 16 x 16 pixels per client and 20 rounds, which makes epochs
affordable. The learning rate of the classifier is 1e-3, that of distillation 1e-2, weight decay 1e-3. The paper names no
optimiser. Clients use Adam, as in the authors' code (there with a rate of 1e-4 and no decay), and distillation uses SGD. All rows
average clients with equal weights (Eq. 6): sizes of clients differ so much that the merge matters more than the method, so a
table of methods must not differ in it. ``--set algorithm.merge=examples`` gives the merge of the other papers. The code redraws
its partition if a client has fewer than 100 samples; here ``clients.partition.min_samples`` keeps its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedstill.core.nested import laid_over
from fedstill.reproduce import Cell, Plan, cell, runs_of
from fedstill.run.history import Line, rounds_to

__all__ = ["ablations", "ablations_rounds", "accuracy", "rounds_to_targets", "tree"]

DATA = {"MNIST": "mnist", "SVHN": "svhn", "Fashion-MNIST": "fashion_mnist", "EMNIST": "emnist_letters"}
ALPHAS = {"MNIST": (0.05, 0.1, 1), "SVHN": (0.05, 0.1, 10), "Fashion-MNIST": (0.05, 0.1, 10), "EMNIST": (0.05, 0.1, 10)}
TARGETS = {"MNIST": (0.85, 0.9), "SVHN": (0.55, 0.6), "Fashion-MNIST": (0.6, 0.65), "EMNIST": (0.65, 0.7)}

# all of the paper's generators have two embeddings and fully connected layers; it does not give the number of server steps
STEPS = {"paper": 1600, "small": 400, "reduced": 100}
POOL = {"paper": 1280, "small": 1280, "reduced": 640}
LEARN = {"batch_size": 32, "optimizer": {"name": "sgd", "lr": 0.01, "weight_decay": 1e-3}, "schedule": "constant"}


def systems(scale: str) -> dict[str, dict[str, Any]]:
    """The six systems of Tables 1 and 2, as the paper calls them."""
    steps = STEPS[scale]
    found: dict[str, dict[str, Any]] = {
        "FedAvg": {"algorithm": {"name": "fedavg"}},
        "FedProx": {"algorithm": {"name": "fedprox", "mu": 0.01}},
        # the paper's FedFusion distils on unlabelled training samples
        "FedFusion": {
            "data": {"pool_limit": POOL[scale]},
            "algorithm": {"name": "feddf", "distillation": {**LEARN, "steps": steps, "clip": 5.0}},
        },
        "FedGen": {"algorithm": {"name": "fedgen"}},
        "FedFTG": {
            "algorithm": {
                "name": "fedftg",
                "generator": {"kind": "mlp-conditional"},
                "generator_optimizer": {"name": "adam", "lr": 0.001},
                "student_optimizer": {"name": "sgd", "lr": 0.01, "weight_decay": 1e-3},
                "batch_size": 32,
                "iterations": 5 if scale == "reduced" else 10,
            }
        },
        "DaFKD": {"algorithm": {"name": "dafkd", "source": {"size": POOL[scale]}, "distillation": {"steps": steps}}},
    }
    return {name: laid_over(system, {"algorithm": {"merge": "uniform"}}) for name, system in found.items()}


def variants(scale: str) -> dict[str, dict[str, Any]]:
    """The three rows of Table 3."""
    whole = systems(scale)["DaFKD"]
    return {
        "DaFKD": whole,
        "no-sharing": laid_over(whole, {"algorithm": {"no_sharing": True}}),
        "no-correlation": laid_over(whole, {"algorithm": {"no_correlation": True}}),
    }


def tree(plan: Plan, data: str, alpha: float, system: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of one run."""
    effort = 40 if data == "EMNIST" else 20
    common: dict[str, Any] = {
        "rounds": 20 if plan.scale == "small" else 60,
        "data": {"domains": [DATA[data]], "root": str(plan.root())},
        "clients": {"per_domain": 20, "fraction": 0.4, "partition": {"kind": "dirichlet", "alpha": alpha}},
        "model": {"name": "resnet11" if plan.scale == "paper" else "cnn-small"},
        "local": {
            "steps" if plan.scale == "reduced" else "epochs": effort,
            "batch_size": 32,
            "optimizer": {"name": "adam", "lr": 1e-3, "weight_decay": 1e-3},
        },
        # the ensemble's ceiling costs nine evaluations of the whole test set per round
        "evaluation": {"ensemble": plan.scale == "small", "targets": list(TARGETS[data])},
    }
    if plan.scale != "paper":
        common = laid_over(common, {"data": {"test_limit": 2000, "image_size": 16}})
    if plan.scale == "small":
        common = laid_over(common, {"data": {"limit": 10_000}})
    if system["algorithm"]["name"] == "feddf":
        common = laid_over(common, {"data": {"server": DATA[data]}})
    return laid_over(common, system)


def cells_of(plan: Plan, name: str, rows: Mapping[str, Mapping[str, Any]], columns: Sequence[tuple[str, float]]) -> list[Cell]:
    """One cell per row and column: each seed's mean accuracy over the last five rounds (runs vary from round to round)."""
    found = []
    for data, alpha in columns:
        column = f"{data} {alpha:g}"
        if not plan.wants_column(column):
            continue
        for row, system in rows.items():
            if plan.wants(row):
                runs = runs_of(plan, f"{column.replace(' ', '-')}/{row}", tree(plan, data, alpha, system))
                found.append(cell(name, row, column, [tail(run.history) for run in runs]))
    return found


def tail(history: Sequence[Line], rounds: int = 5) -> float:
    """The mean accuracy over the last evaluated rounds.

    >>> tail([{"accuracy": 0.0}, {"accuracy": 0.5}, {"accuracy": None}, {"accuracy": 1.0}], rounds=2)
    0.75
    """
    return fmean([line["accuracy"] for line in history if line["accuracy"] is not None][-rounds:])


def accuracy(plan: Plan) -> list[Cell]:
    """Four data sets, three degrees of heterogeneity each."""
    columns = [(data, alpha) for data, alphas in ALPHAS.items() for alpha in alphas]
    return cells_of(plan, "dafkd-table1", systems(plan.scale), columns)


def rounds_cells(plan: Plan, name: str, rows: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """Rounds to each data set's two target accuracies at alpha = 0.1."""
    found = []
    for data, targets in TARGETS.items():
        wanted = [target for target in targets if plan.wants_column(f"{data} {target:g}")]
        for row, system in rows.items():
            if wanted and plan.wants(row):
                runs = runs_of(plan, f"{data}-0.1/{row}", tree(plan, data, 0.1, system))
                for target in wanted:
                    found.append(cell(name, row, f"{data} {target:g}", [rounds_to(run.history, target) for run in runs]))
    return found


def rounds_to_targets(plan: Plan) -> list[Cell]:
    """The first round that reaches each target, in the runs of Table 1 at alpha = 0.1."""
    return rounds_cells(plan, "dafkd-table2", systems(plan.scale))


def ablations(plan: Plan) -> list[Cell]:
    """Four data sets, alpha 0.05 and 0.1."""
    columns = [(data, alpha) for data in DATA for alpha in (0.05, 0.1)]
    return cells_of(plan, "dafkd-table3", variants(plan.scale), columns)


def ablations_rounds(plan: Plan) -> list[Cell]:
    """Rounds to the targets of Table 2."""
    return rounds_cells(plan, "dafkd-table3b", variants(plan.scale))
