"""DaFKD's game alone: one client that holds all digits, without a federation and without distillation.

The paper has no such table. It shows what a generator can learn at best from a game, judged by a classifier that was trained on
*other* training digits; no test label is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedstill.algorithms.dafkd import PAPER, DaFKDOptions
from fedstill.core.files import atomic_write
from fedstill.core.streams import stream
from fedstill.data.images import png_grid
from fedstill.data.samples import Samples, normalise
from fedstill.fusion.generated import deviations, effective_classes
from fedstill.local.adversarial import Adversarial, Discriminator, Game
from fedstill.models import build
from fedstill.models.generator import build_generator
from fedstill.models.network import Network
from fedstill.models.predict import apply, predict_logits
from fedstill.reproduce import Cell, Plan
from fedstill.run.configuration import resolve
from fedstill.task import Task
from fedstill.training.batches import steps_an_epoch
from fedstill.training.fit import fit
from fedstill.training.options import Local, Optimizer

__all__ = ["GAMES", "frechet", "game", "play"]

SIZE, STEPS, MADE = 28, 600, 1000
CONVERGING: dict[str, Any] = DaFKDOptions(preset="converging").adversarial.model_dump()
PRINTED: dict[str, Any] = {**CONVERGING, **PAPER["adversarial"]}
BETTER: dict[str, Any] = {**CONVERGING, "mode_seeking": 0.0, "label": 0.0, "shared_gradient": 1.0}
GAMES: Mapping[str, dict[str, Any]] = {
    "as printed": PRINTED,
    "non-saturating": {**PRINTED, "generator_loss": "non-saturating"},
    "non-saturating, beta 0.5, no decay": BETTER,
    "and mode seeking": {**BETTER, "mode_seeking": 0.1},
    "and the label": {**BETTER, "label": 1.0},
    "and both": {**BETTER, "mode_seeking": 0.1, "label": 1.0},
    "both, gradient stopped (converging)": CONVERGING,
    "both, layers of its own": {
        **BETTER,
        "mode_seeking": 0.1,
        "label": 1.0,
        "discriminator_optimizer": {"name": "adam", "lr": 1e-3, "betas": [0.5, 0.999]},
    },
}
APART = ("both, layers of its own",)  # games whose discriminator shares no layers with the classifier


def game(plan: Plan) -> Sequence[Cell]:
    """Every game with every seed; the first seed's images are in ``game-ROW.png``, one column per class."""
    if plan.rehearsing:
        return []
    found: dict[tuple[str, str], list[float | None]] = {}
    for seed in plan.seeds:
        played, judged = digits(plan, seed)
        judge = trained_judge(judged, seed)
        for row, options in GAMES.items():
            if not plan.wants(row):
                continue
            figures, images = play(played, judge, Adversarial.model_validate(options), seed, sharing=row not in APART)
            for column, value in figures.items():
                found.setdefault((row, column), []).append(value)
            if seed == plan.seeds[0]:
                name = row.replace(",", "").replace(" ", "-")
                atomic_write(plan.out / f"game-{name}.png", png_grid(images, 10))
        if plan.wants("real digits"):
            for column, value in quality(normalise(judged.x), labels_of(judged), judge, played).items():
                found.setdefault(("real digits", column), []).append(value)
    return [Cell(row, column, tuple(values)) for (row, column), values in found.items()]


def digits(plan: Plan, seed: int) -> tuple[Samples, Samples]:
    """Two halves of training digits: for the game, and for the judge."""
    source = {"root": str(plan.data), "domains": ["mnist"]} if plan.data else {"domains": ["embedded:mnist"]}
    tree = {"data": {**source, "image_size": SIZE, "channels": 1, "limit": 10_000}, "model": {"name": "cnn-small"}}
    task = Task(resolve({**tree, "algorithm": {"name": "fedavg"}}, [*plan.sets, f"seed={seed}"]))
    train = next(iter(task.domains.values())).train
    half = len(train) // 2
    return train.take(slice(0, half)), train.take(slice(half, 2 * half))


def trained_judge(data: Samples, seed: int) -> Network:
    """A classifier of digits that the game never sees."""
    network = build("cnn-small", classes=10, shape=(1, SIZE, SIZE), seed=seed + 1000)
    fit(network, data, Local(epochs=5, batch_size=64, optimizer=Optimizer(name="adam", lr=1e-3)), rng=stream(seed, "judge"))
    return network


def play(
    data: Samples, judge: Network, options: Adversarial, seed: int, *, sharing: bool = True
) -> tuple[dict[str, float], Tensor]:
    """The game on ``data``; the quality of the generator, and a grid of its images."""
    network = build("cnn-small", classes=10, shape=(1, SIZE, SIZE), seed=seed)
    generator = build_generator("mlp-conditional", classes=10, shape=(1, SIZE, SIZE), seed=seed)
    discriminator = Discriminator(network, sharing=sharing).train()
    local = Local(steps=STEPS, batch_size=32, optimizer=Optimizer(name="adam", lr=1e-3))  # the paper's rate
    played = Game(discriminator, generator, options, round=1, steps_per_epoch=steps_an_epoch(len(data), local, network))
    trained = played.trained(network)
    fit(network, data, local, rng=stream(seed, "game"), terms=[played.term], parameters=trained, after=played.answer)
    generator.eval()
    labels = torch.arange(10).repeat(MADE // 10)
    with torch.no_grad():
        images = generator.sample(MADE, stream(seed, "made"), labels)[0]
    figures = quality(images, labels, judge, data)
    for name, seen in (("D on generated", Samples(images)), ("D on real", data.take(slice(0, MADE)))):
        body = discriminator.body(network)
        features = apply(body.features, body, seen)
        with torch.no_grad():
            figures[name] = float(torch.sigmoid(discriminator.judge(features)).mean())
    return figures, images[:80]


def labels_of(samples: Samples) -> Tensor:
    """The labels of samples that have some."""
    assert samples.y is not None
    return samples.y


def quality(images: Tensor, labels: Tensor, judge: Network, real: Samples) -> dict[str, float]:
    """``within``: the variation of a pixel within a class. ``classes``: the effective number of classes among the judge's
    predictions. ``label``: the share that the judge predicts as their label. ``FID``: the distance of features to real ones'."""
    said = predict_logits(judge, Samples(images)).double().softmax(1)
    return {
        "within": deviations(images, labels, 10)[0],
        "classes": effective_classes(said),
        "label": float((said.argmax(1) == labels).double().mean()),
        "FID": frechet(apply(judge.features, judge, Samples(images)), apply(judge.features, judge, real)),
    }


def frechet(a: Tensor, b: Tensor) -> float:
    """The Frechet distance of two sets of features, as Gaussians: ``|m - m'|^2 + tr(S + S' - 2 (S S')^(1/2))`` (Heusel et al.,
    NeurIPS 2017).

    >>> x = torch.tensor([[-1.0], [1.0]]).repeat(1, 2)
    >>> frechet(x, x + 3), frechet(x, 2 * x)  # a shift; variances 2 and 8, rank one: 2 * (2 + 8 - 2 * 4)
    (18.0, 4.0)
    """
    a, b = a.double(), b.double()
    first, second = a.T.cov(), b.T.cov()
    values, vectors = torch.linalg.eigh(first)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ second @ root).clamp_min(0).sqrt().sum()
    return round(float((a.mean(0) - b.mean(0)).square().sum() + first.trace() + second.trace() - 2 * cross), 6)
