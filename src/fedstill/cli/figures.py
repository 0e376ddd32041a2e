"""``fedstill figures``: teacher weights and feature spaces of finished runs, as PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedstill.core.console import console
from fedstill.core.errors import FedstillError

__all__ = ["figures"]

METHODS: dict[str, Literal["tsne", "pca"]] = {"tsne": "tsne", "pca": "pca"}


def figures(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders that hold them.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("figures"),
    method: Annotated[str, typer.Option(help="How features are reduced to two dimensions: tsne or pca.")] = "tsne",
    classes: Annotated[int, typer.Option(min=1, help="The number of classes shown, from the first.")] = 4,
    samples: Annotated[int, typer.Option(min=2, help="Test samples of each domain.")] = 200,
) -> None:
    """Draw FedD3A's figures: a heat map of teacher weights over all runs, and each run's features by domain and class; for
    runs that drew virtual features, also these beside real ones."""
    # slow: they import torch and matplotlib
    from fedstill.report.figures import draw_features, draw_virtual_features, draw_weights, teacher_weights
    from fedstill.report.runs import find_runs, load_runs

    chosen = METHODS.get(method)
    if chosen is None:
        raise FedstillError(f"--method is tsne or pca, not '{method}'")
    found = find_runs(folders)
    runs = load_runs(folders)
    weights = teacher_weights(runs)
    if weights:
        console.print(f"written: {draw_weights(weights, out / 'weights.png')}", soft_wrap=True)
    finished = [folder for folder in found if (folder / "model.safetensors").exists()]
    for folder in found:
        if folder not in finished:
            console.print(f"[yellow]warning:[/] no features of {folder}: it has no model.safetensors", soft_wrap=True)
    if not weights and not finished:
        raise FedstillError("nothing to draw: no run has teacher weights by domain or one final model")
    for number, folder in enumerate(finished):
        path = out / _name("features", number, folder, len(finished))
        draw_features(folder, path, method=chosen, classes=classes, samples=samples)
        console.print(f"written: {path}", soft_wrap=True)
    mapped = [(run.folder, kept) for run in runs if (kept := run.feature_map) is not None]
    for number, (folder, found_map) in enumerate(mapped):
        path = out / _name("features-virtual", number, folder, len(mapped))
        console.print(f"written: {draw_virtual_features(found_map, path)}", soft_wrap=True)


def _name(what: str, number: int, folder: Path, of: int) -> str:
    """The file of one run's figure, with the run's folders in its name if there are several."""
    return f"{what}.png" if of == 1 else f"{what}-{number}-{folder.parent.name}-{folder.name}.png"
