"""Gradient inversion: what inputs can be reconstructed from the gradient of a small batch?

* In closed form (Phong et al., 2018): the gradient of a linear layer's row i is ``dL/db_i * x`` for one sample, so that a first
  layer that is linear, with a bias, gives its input away exactly: ``x = dL/dW_i / dL/db_i``.
* By optimisation (Geiping et al., NeurIPS 2020): inputs whose gradient has the direction of the one that was sent, by Adam with
  a total-variation prior on images.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from fedstill.core.streams import numpy_stream, stream
from fedstill.data.samples import Samples
from fedstill.models.network import Network

__all__ = ["Inversion", "Private", "closed_form", "gradients", "invert", "matching_loss", "optimised", "sent_gradients"]

LARGEST = 2_000_000  # parameters of a network that is attacked
WIDEST = 3 * 64 * 64  # numbers in an input
STEPS = 300
PRIOR = 1e-2  # weight of the total variation


@dataclass(frozen=True)
class Private:
    """DP-SGD in a client: the noise multiplier and the norm to which a sample's gradient is clipped."""

    noise: float
    clip: float


@dataclass(frozen=True)
class Inversion:
    """Inputs reconstructed from a gradient, beside the originals, both as the network takes them."""

    subject: str
    method: str
    originals: Tensor = field(repr=False)
    found: Tensor = field(repr=False)
    chance: float  # the mean correlation of other samples with the originals

    @property
    def batch(self) -> int:
        """How many inputs the gradient was of."""
        return len(self.originals)

    @property
    def similarity(self) -> float:
        """The mean correlation of each reconstruction with its original; 1 is exact up to brightness and contrast."""
        return float(np.mean([_correlation(a, b) for a, b in zip(self.originals, self.found, strict=True)]))

    @property
    def psnr(self) -> float:
        """The peak signal-to-noise ratio in dB, at most 100."""
        peak = float(self.originals.max() - self.originals.min())
        error = float(((self.originals - self.found) ** 2).mean())
        return min(100.0, 10 * float(np.log10(max(peak, 1e-12) ** 2 / max(error, 1e-12))))

    def to_json(self) -> dict[str, Any]:
        """As it is written to ``audit.json``."""
        return {
            "model": self.subject,
            "method": self.method,
            "batch": self.batch,
            "similarity": self.similarity,
            "chance": self.chance,
            "psnr": self.psnr,
        }

    def figure(self) -> Figure | None:
        """The originals above their reconstructions; None if they are no images."""
        if self.originals.dim() != 4:
            return None
        drawn = Figure(figsize=(1.6 * self.batch + 0.4, 3.4), layout="constrained")
        axes = drawn.subplots(2, self.batch, squeeze=False)
        for place, images in enumerate((self.originals, self.found)):
            for cell, image in zip(axes[place], images, strict=True):
                low, high = self.originals.min(), self.originals.max()
                shown = ((image - low) / (high - low).clamp(min=1e-9)).clamp(0, 1).permute(1, 2, 0)
                cell.imshow(shown.squeeze(2) if shown.shape[2] == 1 else shown, cmap="gray", vmin=0, vmax=1)
                cell.set_axis_off()
        return drawn


def gradients(network: Network, x: Tensor, y: Tensor, create_graph: bool = False) -> list[Tensor | None]:
    """The gradient of the mean cross-entropy of a batch with respect to every parameter, None for those without one."""
    loss = F.cross_entropy(network(x), y)
    chosen = [p for p in network.parameters() if p.requires_grad]
    return list(torch.autograd.grad(loss, chosen, create_graph=create_graph, allow_unused=True))


def sent_gradients(network: Network, x: Tensor, y: Tensor, private: Private | None, rng: torch.Generator) -> list[Tensor | None]:
    """What a client with one local step sends of a batch: its gradient, or by DP-SGD that of every sample clipped, their sum with
    noise, over their number."""
    if private is None:
        return [None if g is None else g.detach() for g in gradients(network, x, y)]
    total = [private.noise * private.clip * torch.randn(p.shape, generator=rng) for p in network.parameters() if p.requires_grad]
    for one, label in zip(x.split(1), y.split(1), strict=True):
        found = [None if g is None else g.detach() for g in gradients(network, one, label)]
        size = torch.stack([g.square().sum() for g in found if g is not None]).sum().sqrt()
        for place, g in enumerate(found):
            if g is not None:
                total[place] += g * (private.clip / size.clamp(min=private.clip))
    return [each / len(x) for each in total]


def closed_form(weight: Tensor, bias: Tensor) -> Tensor:
    """The input of a linear layer from the gradients of its weight (out, in) and bias (out,) for one sample: the rows'
    least-squares quotient ``sum_i db_i dW_i / sum_i db_i^2``, which uses every row.

    >>> x, db = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.0, -3.0])
    >>> closed_form(db[:, None] * x, db).tolist()
    [1.0, -2.0]
    """
    return (bias[:, None] * weight).sum(0) / (bias * bias).sum()


def matching_loss(trial: Sequence[Tensor | None], sent: Sequence[Tensor | None]) -> Tensor:
    """Geiping et al., Eq. 4: one minus the cosine between two gradients.

    >>> matching_loss([torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 2.0])]).item()
    1.0
    """
    pairs = [(a, b) for a, b in zip(trial, sent, strict=True) if a is not None and b is not None]
    product = torch.stack([(a * b).sum() for a, b in pairs]).sum()
    sizes = [torch.stack([(g * g).sum() for g in side]).sum() for side in zip(*pairs, strict=True)]
    return 1 - product / (sizes[0] * sizes[1]).sqrt().clamp(min=1e-12)


def optimised(
    network: Network,
    sent: Sequence[Tensor | None],
    y: Tensor,
    shape: Sequence[int],
    *,
    rng: torch.Generator,
    steps: int = STEPS,
    low: float = -1.0,
    high: float = 1.0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Tensor:
    """Inputs (len(y), *shape) within [low, high] whose gradient has the direction of ``sent``."""
    x = torch.randn(len(y), *shape, generator=rng).mul_(0.1 * (high - low)).add_((low + high) / 2).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.05 * (high - low))
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=0.001 * (high - low))
    for step in range(steps):
        optimizer.zero_grad()
        loss = matching_loss(gradients(network, x, y, create_graph=True), sent)
        if len(shape) == 3:
            loss = loss + PRIOR * ((x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()) / (high - low))
        loss.backward()
        optimizer.step()
        plan.step()
        with torch.no_grad():
            x.clamp_(low, high)
        if (step + 1) % 50 == 0:
            progress(step + 1, steps)
    return x.detach()


def invert(
    name: str,
    network: Network,
    members: Samples,
    *,
    batch: int = 1,
    seed: int = 0,
    steps: int = STEPS,
    private: Private | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> Inversion | str:
    """Reconstruct ``batch`` of the members from their gradient under ``network``, or say why that is not tried. ``private`` says
    how DP-SGD clipped and noised that gradient."""
    if not (members.x.dtype == torch.uint8 or members.x.is_floating_point()) or members.y is None:
        return f"no inversion of {name}: inputs are tokens or have no labels"
    size, width = sum(p.numel() for p in network.parameters()), members.x[0].numel()
    if size > LARGEST or width > WIDEST:
        return f"no inversion of {name}: {size:,} weights or {width:,} numbers in an input are too many to try here"
    network = copy.deepcopy(network).cpu().eval().requires_grad_(True)
    order = torch.from_numpy(numpy_stream(seed, "audit", "inversion", name).permutation(len(members)))
    chosen, spare = members.take(order[:batch]), members.take(order[batch : batch + 50])
    assert chosen.y is not None
    x, others = network.normalise(chosen.x), network.normalise(spare.x)
    sent = sent_gradients(network, x, chosen.y, private, stream(seed, "audit", "inversion", name, "noise"))
    if not any(g is not None and bool(g.abs().max() > 0) for g in sent):
        return f"no inversion of {name}: the gradient is zero"
    chance = float(np.mean([_correlation(a, b) for a in x for b in others])) if len(others) else 0.0
    noised = "" if private is None else ", noised gradient"
    exact = _first_linear(network, sent) if len(x) == 1 else None
    if exact is not None and exact.numel() == x.numel():
        return Inversion(name, f"closed form{noised}", x, exact.reshape(x.shape), chance)
    low, high = float(x.min()), float(x.max())
    tell = lambda done, of: progress("inversion", done, of)
    rng = stream(seed, "audit", "inversion", name, "start")
    found = optimised(network, sent, chosen.y, x.shape[1:], rng=rng, steps=steps, low=low, high=high, progress=tell)
    return Inversion(name, f"optimisation{noised}", x, _paired(x, found), chance)


def _first_linear(network: Network, sent: Sequence[Tensor | None]) -> Tensor | None:
    """The input of the first layer, if it is linear with a bias."""
    chosen = [(key, g) for (key, p), g in zip(network.named_parameters(), sent, strict=True)]
    modules = dict(network.named_modules())
    (first, weight), (second, bias) = chosen[0], chosen[1] if len(chosen) > 1 else (None, None)
    owner = modules.get(first.rpartition(".")[0])
    if not isinstance(owner, nn.Linear) or second != f"{first.rpartition('.')[0]}.bias" or weight is None or bias is None:
        return None
    return closed_form(weight, bias) if bool(bias.abs().max() > 0) else None


def _paired(originals: Tensor, found: Tensor) -> Tensor:
    """The reconstructions in the order of the originals that they fit best; a gradient does not tell the order."""
    from scipy.optimize import linear_sum_assignment  # slow

    fits = np.array([[_correlation(a, b) for b in found] for a in originals])
    return found[torch.from_numpy(linear_sum_assignment(-fits)[1])]


def _correlation(a: Tensor, b: Tensor) -> float:
    a, b = a.flatten().double() - a.double().mean(), b.flatten().double() - b.double().mean()
    return float((a * b).sum() / (a.norm() * b.norm()).clamp(min=1e-12))
