"""FedDF's Figure 1: three classes in the plane, two clients, and the effect of averaging and distilling their models.

The paper gives no coordinates, so these are ours: each class has two neighbouring clouds on a circle, and each client sees one of
them. The rest is the paper's: a 3-layer MLP, 60 distillation points uniform in (-3, 3), probabilities shown as colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedstill.core.message import State, clone
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.distil import distil
from fedstill.fusion.distillation.divergence import divergence
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import ensemble_table
from fedstill.fusion.merges import weighted_sum
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.weightings import WeightingContext, make_weighting
from fedstill.models import build
from fedstill.models.network import Network
from fedstill.models.predict import predict_logits
from fedstill.reproduce import Cell, Plan
from fedstill.training.fit import fit
from fedstill.training.options import Local, Optimizer

__all__ = ["Toy", "draw_panels", "fuse_toy"]

ANGLES = ((60, 180, 300), (120, 240, 0))  # the angles, in degrees, of each client's clouds of the three classes
RADIUS, SPREAD, EACH = 1.8, 0.45, 40
SIDE = 3.0  # the plane is (-3, 3) x (-3, 3)
PIXELS = 120
LOCAL = Local(epochs=40, batch_size=16, optimizer=Optimizer(name="sgd", lr=0.1, momentum=0.9))
DISTILLATION = Distillation(steps=500, batch_size=60)


@dataclass(frozen=True)
class Toy:
    """The probabilities of each panel on the grid of the plane, (pixels * pixels, 3), and the clients' data."""

    panels: Mapping[str, Tensor]
    data: tuple[Samples, Samples]
    points: Tensor

    def gap(self, panel: str) -> float:
        """The mean of KL(ensemble || panel) over the plane."""
        return float(divergence(self.panels[panel].clamp_min(1e-12).log(), self.panels["ensemble"]))


def clouds(degrees: Sequence[float], rng: torch.Generator) -> Samples:
    """One cloud per class at these angles around the origin."""
    angles = torch.tensor(degrees).deg2rad()
    labels = torch.arange(len(degrees)).repeat_interleave(EACH)
    centres = RADIUS * torch.stack([angles.cos(), angles.sin()], 1)
    return Samples(centres[labels] + SPREAD * torch.randn(len(labels), 2, generator=rng), labels)


def plane() -> Samples:
    """A grid of the plane, row by row from the lower left."""
    ticks = torch.linspace(-SIDE, SIDE, PIXELS)
    y, x = torch.meshgrid(ticks, ticks, indexing="ij")
    return Samples(torch.stack([x.flatten(), y.flatten()], 1))


def fuse_toy(seed: int = 0) -> Toy:
    """Train the two clients from the same initial weights, then average, ensemble and distil them."""
    rng = stream(seed, "toy")
    data = (clouds(ANGLES[0], rng), clouds(ANGLES[1], rng))
    points = (torch.rand(60, 2, generator=rng) * 2 - 1) * SIDE  # "60 data points, each uniformly sampled from (-3, 3)"

    def network(state: State | None = None) -> Network:
        made = build("mlp", classes=3, shape=(2,), hidden=[32, 32], seed=seed)
        if state is not None:
            made.load_state_dict(state)
        return made

    clients = [network(), network()]
    for k, (client, mine) in enumerate(zip(clients, data, strict=True)):
        fit(client, mine, LOCAL, rng=stream(seed, "toy", k))
    average = weighted_sum([clone(client.state_dict()) for client in clients], [0.5, 0.5])
    teachers = [Teacher(f"client {k}", lambda client=client: client) for k, client in enumerate(clients)]  # type: ignore[misc]
    uniform = make_weighting("uniform", WeightingContext(teachers, rng))
    student = network(average)
    pool = Samples(points)
    distil(student, pool, ensemble_table(teachers, pool, uniform), DISTILLATION, rng=stream(seed, "toy", "distil"))
    grid = plane()
    panels = {
        "local model 1": predict_logits(clients[0], grid).softmax(1),
        "local model 2": predict_logits(clients[1], grid).softmax(1),
        "averaged": predict_logits(network(average), grid).softmax(1),
        "distilled": predict_logits(student, grid).softmax(1),
        "ensemble": ensemble_table(teachers, grid, uniform).targets,
    }
    return Toy(panels, data, points)


def draw_panels(toy: Toy, path: Path) -> None:
    """The five panels side by side as a PNG; dots are the data that the panel's model has seen or should know."""
    # slow: imports all of matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 3.7), layout="constrained")
    FigureCanvasAgg(figure)
    everything = Samples(torch.cat([d.x for d in toy.data]), torch.cat([d.y for d in toy.data if d.y is not None]))
    seen = [*toy.data, everything, everything, everything]
    colours = ("#a00000", "#007000", "#0000a0")
    for axis, (name, spoken), data in zip(figure.subplots(1, 5), toy.panels.items(), seen, strict=True):
        assert data.y is not None
        image = spoken.reshape(PIXELS, PIXELS, 3).clamp(0, 1).numpy()
        axis.imshow(image, origin="lower", extent=(-SIDE, SIDE, -SIDE, SIDE), interpolation="bilinear")
        axis.scatter(*data.x.T.numpy(), s=8, c=[colours[int(y)] for y in data.y], edgecolors="white", linewidths=0.4)
        if name == "distilled":
            axis.scatter(*toy.points.T.numpy(), s=6, c="black", marker="+", linewidths=0.6)
        gap = "" if name.startswith("local") or name == "ensemble" else f"\nKL from the ensemble {toy.gap(name):.3f}"
        axis.set_title(name + gap, fontsize=10)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_xlim(-SIDE, SIDE)
        axis.set_ylim(-SIDE, SIDE)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def toy_figure(plan: Plan) -> Sequence[Cell]:
    """Five panels and two numbers for each fused model."""
    if plan.rehearsing:
        return []
    toys = [fuse_toy(seed) for seed in plan.seeds]
    draw_panels(toys[0], plan.out / "figure1.png")
    cells = []
    for name in ("averaged", "distilled"):
        agree = [float((t.panels[name].argmax(1) == t.panels["ensemble"].argmax(1)).double().mean()) for t in toys]
        cells.append(Cell(name, "KL", tuple(toy.gap(name) for toy in toys)))
        cells.append(Cell(name, "agreement", tuple(agree)))
    return cells
