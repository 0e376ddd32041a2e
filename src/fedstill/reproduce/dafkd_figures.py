"""DaFKD's Figures 3 to 7: heterogeneity, learning curves, active ratio, sensitivity, and the generator of features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedstill.core.nested import laid_over
from fedstill.reproduce import Cell, Plan, cell, runs_of
from fedstill.reproduce.dafkd import ALPHAS, DATA, cells_of, systems, tail, tree
from fedstill.reproduce.figures import Curve, draw

__all__ = ["active_ratio", "curves", "features", "heterogeneity", "sensitivity"]

RATIOS = {"small": (0.2, 0.4, 0.8)}  # fewer points than the paper's at this scale
EPOCHS = {"small": (5, 10, 20)}
ACCURACY = "test accuracy"


def _panels(cells: list[Cell]) -> list[str]:
    return list(dict.fromkeys(c.column.split(" ")[0] for c in cells))


def heterogeneity(plan: Plan) -> list[Cell]:
    """Figure 3: the accuracies of Table 1 as lines over alpha."""
    columns = [(data, alpha) for data, alphas in ALPHAS.items() for alpha in alphas]
    cells = cells_of(plan, "dafkd-table1", systems(plan.scale), columns)
    if cells and not plan.rehearsing:
        draw(plan.out / "dafkd-figure3.png", {"kind": "lines", "x": "alpha", "y": ACCURACY}, cells, [], _panels(cells))
    return cells


def curves(plan: Plan) -> list[Cell]:
    """Figure 4: the runs of Table 1 at alpha = 0.1, round by round."""
    cells, found = [], list[Curve]()
    for data in DATA:
        if not plan.wants_column(f"{data} 0.1"):
            continue
        for row, system in systems(plan.scale).items():
            if plan.wants(row):
                runs = runs_of(plan, f"{data}-0.1/{row}", tree(plan, data, 0.1, system))
                found.append((data, row, "", [run.history for run in runs]))
                cells.append(cell("dafkd-table1", row, f"{data} 0.1", [tail(run.history) for run in runs]))
    if cells and not plan.rehearsing:
        draw(plan.out / "dafkd-figure4.png", {"kind": "curves", "y": ACCURACY}, cells, found, _panels(cells))
    return cells


def _changed(plan: Plan, name: str, data: str, rows: Mapping[str, Any], columns: Mapping[str, Any], x: str) -> list[Cell]:
    """Every row with every change to the protocol, and the figure."""
    cells = []
    for column, change in columns.items():
        for row, system in rows.items():
            if plan.wants(row) and plan.wants_column(f"{data} {column}"):
                changed = laid_over(tree(plan, data, 0.1, system), change)
                runs = runs_of(plan, f"{name}/{data}-{column.replace(' ', '-')}/{row}", changed)
                cells.append(cell(name, row, f"{data} {column}", [tail(run.history) for run in runs]))
    if cells and not plan.rehearsing:
        draw(plan.out / f"{name}.png", {"kind": "lines", "x": x, "y": ACCURACY}, cells, [], _panels(cells))
    return cells


def active_ratio(plan: Plan) -> list[Cell]:
    """Figure 5: the share r of clients that take part in a round, alpha = 0.1."""
    points = RATIOS.get(plan.scale, (0.2, 0.4, 0.6, 0.8, 1.0))
    ratios = {f"r={ratio:g}": {"clients": {"fraction": ratio}} for ratio in points}
    cells: list[Cell] = []
    for data in DATA:
        cells += _changed(plan, "dafkd-figure5", data, systems(plan.scale), ratios, "active clients / all clients")
    return cells


def sensitivity(plan: Plan) -> list[Cell]:
    """Figure 6: E, batch size B and noise dimension d of DaFKD on SVHN, and at the small scale on MNIST."""
    unit = "steps" if plan.scale == "reduced" else "epochs"
    changes: dict[str, Any] = {f"E={n}": {"local": {unit: n}} for n in EPOCHS.get(plan.scale, (5, 10, 20, 40))}
    changes |= {f"B={size}": {"local": {"batch_size": size}} for size in (16, 64)}
    changes |= {f"d={size}": {"algorithm": {"generator": {"noise_dim": size}}} for size in (50, 200)}
    data = "MNIST" if plan.scale == "small" else "SVHN"
    rows = {"DaFKD": systems(plan.scale)["DaFKD"]}
    return _changed(plan, "dafkd-figure6", data, rows, changes, "what is changed (20, 32, 100)")


def features(plan: Plan) -> list[Cell]:
    """Figure 7: discriminator and generator of features instead of images."""
    whole = systems(plan.scale)["DaFKD"]
    rows = {"DaFKD": whole, "DaFKD on features": laid_over(whole, {"algorithm": {"level": "features"}})}
    columns = [(data, 0.1) for data in DATA]
    return cells_of(plan, "dafkd-table1", rows, columns)
