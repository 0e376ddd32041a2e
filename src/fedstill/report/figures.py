"""Figures as PNG files: the weight of each teacher for each domain of the pool, and samples and virtual features in feature
space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from matplotlib.figure import Figure

from fedstill.core.errors import FedstillError
from fedstill.fusion.feature_map import FeatureMap
from fedstill.models.files import read_state
from fedstill.models.predict import apply
from fedstill.report.runs import Run
from fedstill.run.configuration import from_toml
from fedstill.task import Task

__all__ = ["draw_features", "draw_virtual_features", "draw_weights", "features_of", "flatten", "teacher_weights"]


def teacher_weights(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Server domain -> {teacher's domain: mean weight in the last round that has weights}, over runs with different pools.

    Runs of the same system and pool (seeds) are averaged, and a domain's clients are summed. If there are several systems, each
    row names its own.

    >>> line = {"weights_by_domain": {"blended": {"mnist-0": 0.5, "mnist-1": 0.25, "usps-0": 0.25}}}
    >>> teacher_weights([Run(Path("a"), history=[line])])
    {'blended': {'mnist': 0.75, 'usps': 0.25}}
    >>> two = [Run(Path(name), history=[line], summary={"algorithm": name}) for name in ("feddf", "fedd3a")]
    >>> list(teacher_weights(two))
    ['blended (feddf)', 'blended (fedd3a)']
    """
    rows: dict[str, list[dict[str, float]]] = {}
    noted = [(run, [line["weights_by_domain"] for line in run.history if line.get("weights_by_domain")]) for run in runs]
    last = [(run, weights[-1]) for run, weights in noted if weights]
    several = len({run.algorithm for run, _ in last}) > 1
    for run, by_pool in last:
        domains = {client["id"]: client["domain"] for client in run.clients}
        for pool, weights in by_pool.items():
            summed: dict[str, float] = {}
            for client, weight in weights.items():
                domain = domains.get(client, client.rsplit("-", 1)[0])
                summed[domain] = summed.get(domain, 0.0) + weight
            rows.setdefault(f"{pool} ({run.algorithm})" if several else pool, []).append(summed)
    return {
        pool: {name: float(np.mean([one.get(name, 0.0) for one in found])) for name in dict.fromkeys(k for o in found for k in o)}
        for pool, found in rows.items()
    }


def draw_weights(weights: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """A heat map: a row for each domain of the server's pool, a column for each domain of the teachers."""
    if not weights:
        raise FedstillError("no run has teacher weights by domain: the system must distil on a pool of data")
    pools, teachers = list(weights), list(dict.fromkeys(name for row in weights.values() for name in row))
    values = np.array([[weights[pool].get(name, np.nan) for name in teachers] for pool in pools])
    figure = Figure(figsize=(1.6 + 1.1 * len(teachers), 1.4 + 0.7 * len(pools)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="viridis", vmin=0, vmax=max(0.5, float(np.nanmax(values))), aspect="auto")
    axes.set_xticks(range(len(teachers)), teachers)
    axes.set_yticks(range(len(pools)), pools)
    axes.set_xlabel("teacher's domain")
    axes.set_ylabel("server's domain")
    for i, j in np.argwhere(~np.isnan(values)):
        dark = values[i, j] < 0.6 * image.get_clim()[1]
        axes.text(j, i, f"{values[i, j]:.2f}", ha="center", va="center", color="white" if dark else "black")
    figure.colorbar(image, label="mean weight")
    return _saved(figure, path)


def features_of(folder: Path, classes: int, samples: int, seed: int = 0) -> tuple[torch.Tensor, np.ndarray, np.ndarray, Task]:
    """Features of test samples of every domain under the run's final model: (n, d), domain numbers, labels, and the task.

    There are at most ``samples`` of each domain, from the first ``classes`` classes.
    """
    config, model = folder / "config.toml", folder / "model.safetensors"
    if not config.exists() or not model.exists():
        raise FedstillError(f"{folder} is not a finished run of one model: it has no config.toml or no model.safetensors")
    task = Task(from_toml(config.read_text()))
    network = task.networks.load(task.networks.student, read_state(model)[0])
    parts, domains, labels = [], [], []
    rng = np.random.default_rng(seed)
    names = list(dict.fromkeys([*task.tests, *task.server_domains]))
    for number, name in enumerate(names):
        test = task.domains[name].test
        if test.y is None:
            continue
        found = rng.permutation(np.flatnonzero(test.y.numpy() < classes))[:samples]
        chosen = test.take(found)
        assert chosen.y is not None
        parts.append(apply(network.features, network, chosen).cpu())
        domains.append(np.full(len(found), number))
        labels.append(chosen.y.numpy())
    return torch.cat(parts), np.concatenate(domains), np.concatenate(labels), task


def flatten(features: torch.Tensor, method: Literal["tsne", "pca"], seed: int = 0) -> np.ndarray:
    """Features in two dimensions, (n, 2).

    >>> flatten(torch.eye(5), "pca").shape
    (5, 2)
    """
    # slow: imports all of scikit-learn and scipy
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    way = PCA(2, random_state=seed)
    if method == "tsne":
        way = TSNE(2, random_state=seed, perplexity=min(30, (len(features) - 1) / 3))
    return np.asarray(way.fit_transform(features.numpy()))


def draw_features(
    folder: Path, path: Path, *, method: Literal["tsne", "pca"] = "tsne", classes: int = 4, samples: int = 200, seed: int = 0
) -> Path:
    """FedD3A's Figure 7 for one run: colours are domains, digits are classes."""
    features, domains, labels, task = features_of(folder, classes, samples, seed)
    places = flatten(features, method, seed)
    names = list(dict.fromkeys([*task.tests, *task.server_domains]))
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    colours = [f"C{number}" for number in range(10)]
    for number, name in enumerate(names):
        for label in sorted(set(labels[domains == number].tolist())):
            mine = (domains == number) & (labels == label)
            axes.scatter(places[mine, 0], places[mine, 1], s=45, marker=f"${label}$", color=colours[number % 10], linewidths=0.4)
        axes.scatter([], [], color=colours[number % 10], label=name + (" (pool)" if name not in task.tests else ""))
    axes.legend(loc="best")
    axes.set_xticks([])
    axes.set_yticks([])
    title = f"{task.config.algorithm['name']}: features by domain (colour) and class (digit), {method}"
    axes.set_title(title)
    return _saved(figure, path)


def draw_virtual_features(found: FeatureMap, path: Path) -> Path:
    """Features of test samples (dots) and virtual ones (crosses) along two principal directions; colours are domains."""
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    for number, (name, points) in enumerate(found["domains"].items()):
        for kind, drawn, marker, width in (("real", points["real"], "o", 0.0), ("virtual", points["virtual"], "x", 0.8)):
            x, y = np.array(drawn).reshape(-1, 2).T
            label, colour = f"{name}, {kind}", f"C{number % 10}"
            axes.scatter(x, y, s=18, marker=marker, label=label, color=colour, alpha=0.6, linewidths=width)
    axes.legend(loc="best", fontsize="small")
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(f"real and virtual features by domain, pca ({found['explained']:.0%} of the variance)")
    return _saved(figure, path)


def _saved(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
