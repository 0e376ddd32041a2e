"""Virtual samples: features drawn from each site's reported statistics. No unlabelled data is needed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstill.algorithm import Reply, Round
from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.sources.contract import SourceContext, source
from fedstill.local.reports.statistics import PIECE, Gaussians, statistics_bytes, statistics_shape, statistics_words

__all__ = ["Virtual", "draw_virtual", "note_statistics"]


@dataclass(frozen=True)
class Virtual:
    """Drawn features, the index of the reply that each comes from, and its label (-1 for none)."""

    samples: Samples
    origin: Tensor
    labels: Tensor


def draw_virtual(replies: Sequence[Reply], size: int, shape: Sequence[int], rng: torch.Generator) -> Virtual:
    """Draw ``size`` features of ``shape``, from every site in proportion to the samples that it described."""
    described = [Gaussians.of(reply.part("statistics")) for reply in replies]
    counts = torch.tensor([float(found.counts.sum()) for found in described])
    if not bool(counts.sum() > 0):
        raise FedstillError("no site described any class: each has fewer samples of every class than min_samples")
    origin = torch.multinomial(counts, size, replacement=True, generator=rng).sort().values
    features = _room(size, described[0].means.shape[1])
    each = torch.bincount(origin, minlength=len(described)).tolist()
    parts = zip(described, features.split(each), strict=True)
    labels = [found.draw_into(mine, rng) for found, mine in parts if len(mine)]
    return Virtual(Samples(features.view(size, *shape)), origin, torch.cat(labels))


def _room(size: int, width: int) -> Tensor:
    """Where features are drawn to: memory, or for more than a piece a file without a name, which is gone when they are."""
    if size <= PIECE:
        return torch.empty(size, width)
    with tempfile.TemporaryFile() as file:
        return torch.from_numpy(np.memmap(file, np.float32, "w+", shape=(size, width)))


def note_statistics(replies: Sequence[Reply], round: Round) -> None:
    """Note the size of the sites' statistics, what they reveal in words, and the share of its features that each covers, if the
    site reports it."""
    parts = {reply.client: reply.part("statistics") for reply in replies}
    told = {client: float(f"{float(part['coverage']):.4f}") for client, part in parts.items() if "coverage" in part}
    size = sum(map(statistics_bytes, parts.values()))
    reveals = "; ".join(sorted({statistics_words(part) for part in parts.values()}))
    round.note(statistics={"bytes": size, "reveals": reveals} | ({"coverage": told} if told else {}))


@source("statistics", report="statistics")
def _drawn(context: SourceContext) -> Samples:
    """Features drawn from the sites' statistics."""
    task = context.task
    if context.mixed and task.kept_trunk is None:
        raise FedstillError("mixing virtual features with a pool needs a frozen trunk whose outputs are kept: set model.train")
    return draw_virtual(context.replies, context.size, statistics_shape(task, task.networks.student), context.rng).samples
