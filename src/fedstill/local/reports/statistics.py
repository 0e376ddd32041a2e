"""Statistics of a site's features: for every class a count, a mean and a covariance, from which virtual features are drawn.

Luo et al. (CCVR, NeurIPS 2021) calibrate classifiers on features drawn from class-wise Gaussians; here teachers also predict on
them (:mod:`fedstill.algorithms.fedvirtual`). A covariance is kept as a diagonal, or as a few directions plus the remaining
variances. Classes with too few samples are described together or left out, so that no covariance of a handful of images leaves a
site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithm import Client
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State
from fedstill.core.options import Part, Positive
from fedstill.data.samples import Samples
from fedstill.local.reports.contract import report
from fedstill.local.reports.coverage import MOST, covered
from fedstill.local.reports.moments import Mechanism, clipped, gaussian_of, moments_of
from fedstill.local.reports.noise import moments_mechanism
from fedstill.models.network import Network
from fedstill.models.predict import apply
from fedstill.models.trunk import Top
from fedstill.task import Task

__all__ = [
    "Gaussians",
    "Statistics",
    "described",
    "features_of",
    "reply_fault",
    "site_statistics",
    "statistics_bytes",
    "statistics_fault",
    "statistics_shape",
    "statistics_words",
]


PIECE = 10_000  # features that are drawn at once


class Statistics(Part):
    """How a site's features are described."""

    per_class: bool = True
    """Whether each class is described on its own. Otherwise all samples are described together, and drawn features have no
    label."""

    covariance: Literal["diagonal", "low-rank", "full"] = "low-rank"
    """What is kept of the covariance: the variances, ``rank`` directions and the remaining variances, or all directions."""

    rank: Positive = 16
    """Directions of a low-rank covariance."""

    min_samples: Annotated[int, Field(ge=2)] = 10
    """A class with fewer samples is not described on its own."""

    components: Positive = 1
    """Gaussians per class: k-means divides its samples into this many clusters, or fewer if a cluster would have fewer than
    ``min_samples``."""

    rare: Literal["pool", "leave"] = "pool"
    """What happens to classes with fewer than ``min_samples``. ``pool``: they are described together, without a label, if they
    have enough samples together. ``leave``: they are left out."""

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The largest norm with which a feature counts: longer ones are scaled down to it. This bounds what one sample can change,
    and hides nothing by itself (docs/privacy.md)."""

    coverage: bool = True
    """Whether the site also reports the share of its features that drawn ones cover: one number, for the report's page."""


@dataclass(frozen=True)
class Gaussians:
    """Several Gaussians over features: ``mean + factors' e + sqrt(variance) e'`` each."""

    counts: Tensor  # (groups,)
    labels: Tensor  # (groups,), -1 where a group has no label
    means: Tensor  # (groups, d)
    variances: Tensor  # (groups, d)
    factors: Tensor  # (groups, rank, d)
    floor: bool  # no feature was negative, and none that is drawn is

    def state(self) -> State:
        """As named tensors."""
        found = {name: getattr(self, name) for name in ("counts", "labels", "means", "variances", "factors")}
        return {**found, "floor": torch.tensor(self.floor)}

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Gaussians:
        """What :meth:`state` wrote."""
        parts = {name: state[name] for name in ("counts", "labels", "means", "variances", "factors")}
        return cls(**parts, floor=bool(state["floor"]))

    def draw(self, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """``size`` features and their labels, groups in proportion to their counts.

        >>> one = Gaussians(torch.tensor([3]), torch.tensor([1]), torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1, 0, 2), True)
        >>> one.draw(2, torch.Generator().manual_seed(0))
        (tensor([[1., 1.],
                [1., 1.]]), tensor([1, 1]))
        """
        made = torch.empty(size, self.means.shape[1])
        return made, self.draw_into(made, rng)

    def draw_into(self, made: Tensor, rng: torch.Generator) -> Tensor:
        """Fill ``made`` (size, d), which may lie in a file, with features, a piece at a time; returns their labels."""
        rank = self.factors.shape[1]
        group = torch.multinomial(self.counts.double(), len(made), replacement=True, generator=rng)
        deviations = self.variances.sqrt()
        pieces = _pieces(len(made))
        for part, own in zip(made.split(pieces), group.split(pieces), strict=True):
            torch.randn(part.shape, generator=rng, out=part)
            part.mul_(deviations[own]).add_(self.means[own])
        for part, own in zip(made.split(pieces), group.split(pieces), strict=True):
            spread = torch.randn(len(part), rank, generator=rng)
            for g in own.unique().tolist() if rank else ():  # a group at a time: its factors are not copied for each sample
                mine = own == g
                part[mine] += spread[mine] @ self.factors[g]
            if self.floor:
                part.clamp_min_(0)
        return self.labels[group]


def _pieces(size: int) -> list[int]:
    """The sizes in which features are drawn, so that they are those of one draw: torch fills normal numbers 16 at a time, so a
    piece has whole sixteens, and what is left over has enough of them.

    >>> _pieces(10_000), _pieces(10_500), _pieces(25_000)
    ([10000], [10500], [10000, 10000, 5000])
    """
    whole = max(1, (size + PIECE - 1000) // PIECE)
    return [PIECE] * (whole - 1) + [size - PIECE * (whole - 1)]


def described(features: Tensor, labels: Tensor | None, options: Statistics, mechanism: Mechanism | None = None) -> Gaussians:
    """The Gaussians of features (n, d) with these labels; with a ``mechanism``, of what it makes of their moments.

    >>> z = torch.tensor([[0.0, 0.0], [2.0, 0.0]]).repeat(5, 1)
    >>> found = described(z, torch.zeros(10, dtype=torch.long), Statistics(covariance="diagonal"))
    >>> found.counts.tolist(), found.means.tolist(), found.variances.tolist()
    ([10], [[1.0, 0.0]], [[1.0, 0.0]])
    """
    features = clipped(features.double(), options.clip)
    if mechanism is not None:
        return _released(features, labels if options.per_class else None, options, mechanism)
    if options.per_class and labels is not None:
        classes = [(int(c), features[labels == c]) for c in labels.unique()]
        groups = [(c, part) for c, own in classes if len(own) >= options.min_samples for part in divided(own, options)]
        rare = [own for _, own in classes if len(own) < options.min_samples]
        if options.rare == "pool" and sum(map(len, rare)) >= options.min_samples:
            groups.append((-1, torch.cat(rare)))
    else:
        groups = [(-1, features)] if len(features) >= options.min_samples else []
    width = features.shape[1]
    rank = _rank(options, width)
    means, variances, factors = [], [], []
    for _, own in groups:
        mean = own.mean(0)
        centred = (own - mean) / len(own) ** 0.5
        kept = torch.zeros(rank, width, dtype=features.dtype)
        if rank:
            few = min(rank, *centred.shape)
            _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
            kept[:few] = sizes[:few, None] * directions[:few]
        means.append(mean)
        factors.append(kept)
        variances.append((centred.square().sum(0) - kept.square().sum(0)).clamp_min(0))
    made = list(zip(means, variances, factors, strict=True))
    return _gathered([(len(own), label) for label, own in groups], made, rank, width, floor=bool((features >= 0).all()))


def _gathered(
    groups: Sequence[tuple[int, int]], made: Sequence[tuple[Tensor, Tensor, Tensor]], rank: int, width: int, *, floor: bool
) -> Gaussians:
    """Groups of (count, label) and the mean, variances and factors of each; there may be none."""
    means, variances, factors = zip(*made, strict=True) if made else ((), (), ())
    return Gaussians(
        torch.tensor([count for count, _ in groups], dtype=torch.long),
        torch.tensor([label for _, label in groups], dtype=torch.long),
        torch.stack(means).float() if made else torch.zeros(0, width),
        torch.stack(variances).float() if made else torch.zeros(0, width),
        torch.stack(factors).float() if made else torch.zeros(0, rank, width),
        floor,
    )


def _rank(options: Statistics, width: int) -> int:
    return {"diagonal": 0, "low-rank": min(options.rank, width), "full": width}[options.covariance]


def _released(features: Tensor, labels: Tensor | None, options: Statistics, mechanism: Mechanism) -> Gaussians:
    """The Gaussians of what a mechanism returns. Nothing else looks at the features: which classes are rare is decided by the
    counts that it returned, and whether a feature may be negative is not said."""
    if options.clip is None or options.components > 1:
        raise FedstillError("a mechanism on statistics needs features of bounded norm (clip) and components = 1")
    rank, width = _rank(options, features.shape[1]), features.shape[1]
    found = mechanism(moments_of(features, labels, diagonal=not rank), options.clip)
    often = found.counts >= options.min_samples
    groups = [(int(found.labels[i]), found.counts[i], found.sums[i], found.seconds[i]) for i in torch.nonzero(often).flatten()]
    rare = ~often & (found.counts > 0)
    if options.rare == "pool" and float(found.counts[rare].sum()) >= options.min_samples:
        groups.append((-1, found.counts[rare].sum(), found.sums[rare].sum(0), found.seconds[rare].sum(0)))
    made = [gaussian_of(count, total, second, rank) for _, count, total, second in groups]
    return _gathered([(round(float(count)), label) for label, count, _, _ in groups], made, rank, width, floor=False)


def divided(features: Tensor, options: Statistics) -> list[Tensor]:
    """The features in ``components`` clusters, or fewer, none smaller than ``min_samples``.

    >>> two = torch.tensor([[0.0], [0.5], [5.0], [5.5], [6.0]])
    >>> [part.flatten().tolist() for part in divided(two, Statistics(components=3, min_samples=2))]
    [[0.0, 0.5], [5.0, 5.5, 6.0]]
    """
    for count in range(min(options.components, len(features) // options.min_samples), 1, -1):
        nearest = _clusters(features, count)
        parts = [features[nearest == k] for k in range(count)]
        if min(map(len, parts)) >= options.min_samples:
            return parts
    return [features]


def _clusters(features: Tensor, count: int, steps: int = 10) -> Tensor:
    """The cluster of each sample by k-means. The first centre is the sample farthest from the mean, each further one the sample
    farthest from the earlier centres: nothing is random."""
    chosen = [int((features - features.mean(0)).square().sum(1).argmax())]
    while len(chosen) < count:
        chosen.append(int(torch.cdist(features, features[chosen]).amin(1).argmax()))
    centres = features[sorted(chosen)]
    for _ in range(steps):
        nearest = torch.cdist(features, centres).argmin(1)
        for k in nearest.unique().tolist():
            centres[k] = features[nearest == k].mean(0)
    return torch.cdist(features, centres).argmin(1)


def features_of(network: Network, samples: Samples) -> Tensor:
    """The features to describe: a frozen trunk's outputs, or the features before the head if nothing is frozen."""
    if isinstance(network, Top):
        return network.normalise(samples.x).flatten(1).cpu()
    return apply(network.features, network, samples).cpu()


@report("statistics")
def reported_statistics(message: Message, client: Client, options: Mapping[str, Any]) -> State:
    """The client's Gaussians under the weights as received; with ``privacy.reports``, of noised moments of clipped features."""
    wanted, private = Statistics.model_validate(dict(options)), client.task.config.privacy.reports
    network = client.task.networks.load(client.prototype, message.group("model"))
    if private is None:
        return site_statistics(network, client.data, wanted, client.rng("coverage"))
    wanted = wanted.model_copy(update={"clip": private.clip})
    return site_statistics(network, client.data, wanted, mechanism=moments_mechanism(client))


def site_statistics(
    network: Network,
    samples: Samples,
    options: Statistics,
    rng: torch.Generator | None = None,
    mechanism: Mechanism | None = None,
) -> State:
    """A site's report on its features: the Gaussians, the norm that features were clipped to, the digest of a frozen trunk, and,
    with ``rng`` and if wanted, how well draws cover the features. With a ``mechanism`` nothing else of the features is told."""
    features = features_of(network, samples)
    found = described(features, samples.y, options, mechanism)
    state = found.state()
    if options.clip is not None:
        state["clip"] = torch.tensor(options.clip)
    if isinstance(network, Top):
        state["trunk"] = _mark(network.digest)
    if rng is not None and mechanism is None and options.coverage and len(found.counts):
        drawn, _ = found.draw(min(len(features), MOST), rng)
        state["coverage"] = torch.tensor(covered(features, drawn, rng))
    return state


def _mark(digest: str) -> Tensor:
    return torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8)


def statistics_fault(
    part: Mapping[str, Tensor], width: int, classes: int, samples: int | None, trunk: str | None = None
) -> str | None:
    """Why a client's statistics cannot be used, or None: a trunk with another digest, wrong shapes or signs, impossible counts
    (if the number of ``samples`` is known).

    >>> good = described(torch.rand(20, 3), torch.arange(20) % 2, Statistics()).state()
    >>> statistics_fault(good, 3, 2, 20), statistics_fault(good, 4, 2, 20)
    (None, 'its statistics are of features of width 3, expected 4')
    """
    missing = [name for name in ("counts", "labels", "means", "variances", "factors", "floor") if name not in part]
    if missing:
        return f"its statistics have no {missing[0]}"
    if trunk is not None and not ("trunk" in part and torch.equal(part["trunk"].cpu(), _mark(trunk))):
        return "its statistics are of another trunk"
    if part["floor"].numel() != 1 or part["means"].ndim != 2:
        return "its statistics have shapes that do not fit each other"
    given = Gaussians.of(part)
    if given.counts.ndim != 1 or given.counts.dtype != torch.int64 or given.labels.dtype != torch.int64 or len(given.counts) == 0:
        return "its statistics describe nothing"
    groups, numbers = len(given.counts), (given.means, given.variances, given.factors)
    if given.means.shape[1] != width:
        return f"its statistics are of features of width {given.means.shape[1]}, expected {width}"
    alike = given.means.shape == given.variances.shape == (groups, width) and given.labels.shape == (groups,)
    if not alike or given.factors.ndim != 3 or (given.factors.shape[0], given.factors.shape[2]) != (groups, width):
        return "its statistics have shapes that do not fit each other"
    if not all(part.is_floating_point() and bool(torch.isfinite(part).all()) for part in numbers):
        return "its statistics are not finite numbers"
    if bool((given.variances < 0).any()):
        return "its statistics have negative variances"
    total = sum(given.counts.tolist())  # Python's numbers do not overflow
    if bool((given.counts <= 0).any()) or total > (samples if samples is not None else 2**53):
        return f"its statistics count {total} samples, and it has {'fewer' if samples is None else samples}"
    if bool((given.labels < -1).any()) or bool((given.labels >= classes).any()):
        return "its statistics name classes that do not exist"
    told = part.get("coverage", torch.tensor(0.0))
    if told.numel() != 1 or not 0 <= float(told) <= 1:
        return "its statistics give a coverage outside of 0 to 1"
    norm = part.get("clip", torch.tensor(1.0))
    if norm.numel() != 1 or not 0 < float(norm) < math.inf:
        return "its statistics are clipped to a norm that is not a number above zero"
    return None


def statistics_words(part: Mapping[str, Tensor]) -> str:
    """What a site's statistics tell of it.

    >>> z = torch.rand(20, 3)
    >>> statistics_words(described(z, torch.arange(20) % 2, Statistics()).state())
    'counts, means and covariances of classes, of features that were not clipped'
    >>> statistics_words({**described(z, None, Statistics(covariance="diagonal")).state(), "clip": torch.tensor(2.5)})
    'counts, means and variances of all samples together, of features clipped to norm 2.5'
    """
    whose = "classes" if bool((part["labels"] >= 0).any()) else "all samples together"
    kept = "covariances" if part["factors"].shape[1] else "variances"
    norm = f"clipped to norm {float(part['clip']):g}" if "clip" in part else "that were not clipped"
    return f"counts, means and {kept} of {whose}, of features {norm}"


def statistics_shape(task: Task, prototype: str) -> tuple[int, ...]:
    """The shape of a feature that is described, and of one that is drawn: a frozen trunk's output, or the features before the
    head."""
    network = task.networks.get(prototype)
    return tuple(network.output_shape(task.raw_shape)) if isinstance(network, Top) else (network.feature_dim,)


def statistics_bytes(part: Mapping[str, Tensor]) -> int:
    """What a site's statistics take to send.

    >>> statistics_bytes({"counts": torch.ones(3, dtype=torch.long), "means": torch.ones(3, 2)})
    48
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in part.values())


def reply_fault(task: Task, client: str, part: Mapping[str, Tensor]) -> str | None:
    """Why the statistics of a client's reply cannot be used, or None."""
    who = task.clients[client]
    network = task.networks.get(who.prototype)
    trunk = network.digest if isinstance(network, Top) else None
    known = who.samples if task.config.privacy.reports is None else None  # noised counts may add up to more
    return statistics_fault(part, math.prod(statistics_shape(task, who.prototype)), len(task.classes), known, trunk)
