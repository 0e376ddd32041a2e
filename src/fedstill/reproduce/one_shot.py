"""Three packed models, fused once: each domain of PACS in turn is at no site, and its images without labels are the pool.

Everything is as ``fedstill pack`` and ``fedstill fuse`` do it without labelled images: the student takes all its steps, and the
result lies half way between the average and the student. The labelled images are the test images here, which choose nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedstill.core.files import atomic_write, to_json
from fedstill.reproduce import Cell, Plan, cell
from fedstill.reproduce.never_hurts import PHOTOS

if TYPE_CHECKING:  # slow: imports torch
    from fedstill.bundles.fuse import Figure

__all__ = ["one_shot"]

PACK: dict[str, Any] = {
    "model": "efficientnet-lite0",
    "weights": "imagenet",
    "train": "head",
    "options": {"head": [256]},
    "describe": ["projection", "discriminator"],
}
FUSE: dict[str, Any] = {"distillation": {"patience": 0}, "line": 0.5}
WEIGHTINGS = ("uniform", "projection", "discriminator", "vote")
ROWS = ("Sites alone", "Average", *(f"{name}{what}" for name in WEIGHTINGS for what in ("", ", student itself", ", ensemble")))
PLACES = ("sites", "fourth")

Figures = dict[str, dict[str, float]]  # row -> place -> accuracy


def one_shot(plan: Plan) -> Sequence[Cell]:
    """Each row's mean accuracy over the three sites' domains, and that on the fourth."""
    cells: list[Cell] = []
    for pool in PHOTOS:
        wanted = plan.wants_column(f"one-shot {pool}") and any(plan.wants(row) for row in ROWS)
        if wanted and not plan.rehearsing:
            found = [figures(plan, pool, seed) for seed in plan.seeds]
            for place in PLACES:
                column = f"one-shot {pool}, {place}"
                cells += [cell("photographs", row, column, [f[row][place] for f in found]) for row in ROWS if plan.wants(row)]
    return cells


def figures(plan: Plan, pool: str, seed: int) -> Figures:
    """The figures of one seed; they are kept in a file, so that a study can be continued."""
    path = (plan.runs or plan.out) / "one-shot" / pool / f"seed{seed}.json"
    if path.exists():
        kept: Figures = json.loads(path.read_text())
        return kept
    found = fused(plan.root() / "pacs160", pool, seed, path.parent.parent / "sites" / f"seed{seed}")
    atomic_write(path, to_json(found) + "\n")
    return found


def fused(root: Path, pool: str, seed: int, folder: Path) -> Figures:
    """Pack the three sites, and fuse them with every weighting."""
    # slow: they import torch
    from fedstill.bundles.fuse import fuse
    from fedstill.bundles.pack import pack

    bundles = {name: folder / f"{name}.fed" for name in PHOTOS if name != pool}
    for site, bundle in bundles.items():
        if not bundle.exists():  # made for another pool: a site knows nothing of the pool
            pack(bundle, data=f"{root / site}#train", seed=seed, **PACK)
    found: dict[str, dict[str, float]] = {}
    for weighting in WEIGHTINGS:
        result = fuse(
            bundles,
            f"{root / pool}#train",
            weighting=weighting,
            seed=seed,
            validation={name: f"{root / name}#test" for name in PHOTOS},
            **FUSE,
        )
        rows = {"Sites alone": "teacher", "Average": "average", weighting: "student", f"{weighting}, ensemble": "ensemble"}
        # if the student did not start from the average, the result is the student itself
        moved = any(figure.kind == "distilled" for figure in result.figures)
        rows[f"{weighting}, student itself"] = "distilled" if moved else "student"
        found |= {row: by_place(result.figures, kind, pool) for row, kind in rows.items()}
    return found


def by_place(rows: Sequence[Figure], kind: str, pool: str) -> dict[str, float]:
    """The mean accuracy of the models of this kind on the sites' domains, and on the fourth."""
    mine = [row.accuracy for row in rows if row.kind == kind]
    return {
        "sites": fmean(accuracy[name] for accuracy in mine for name in accuracy if name != pool),
        "fourth": fmean(accuracy[pool] for accuracy in mine),
    }
