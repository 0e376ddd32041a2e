"""A Gaussian mechanism for reports, ``[privacy.reports]``: bounded, noised, and added to the client's ledger before it leaves.

Neighbours are a client's data with and without one sample; its number of samples is known. A report of several parts, of which
part i changes by at most s_i in the Euclidean norm, is one mechanism: divided by its s_i, each part changes by at most 1 and all
p of them together by at most sqrt(p), so that noise of deviation ``noise * s_i * sqrt(p)`` on part i costs what ``noise`` says.
docs/privacy.md derives the s_i.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from fedstill.algorithm import Client
from fedstill.config.reports import Reports
from fedstill.core.accounting import charged, noise_for
from fedstill.core.streams import secret_stream
from fedstill.local.reports.moments import Mechanism, Moments, clipped

__all__ = ["Bounded", "moments_mechanism", "noised", "noised_rows", "report_noise", "symmetric"]

Bounded = tuple[Tensor, float]  # a part of a report, and the most that one sample changes it


def report_noise(options: Reports, rounds: int) -> float:
    """The noise in force: as configured, or the least with which a report in every round is within the budget."""
    if options.noise is not None:
        return options.noise
    assert options.epsilon is not None
    return noise_for(options.epsilon, options.delta, steps=rounds)


def noised(client: Client, name: str, *parts: Bounded) -> list[Tensor]:
    """The parts of the report ``name`` with noise, in float64. Its cost is added to the client's ledger; a client whose budget it
    would exceed stops."""
    options = client.task.config.privacy.reports
    assert options is not None
    noise = report_noise(options, client.task.config.rounds)
    after = client.ledger.gaussian(noise)
    client.ledger = charged(client.ledger, after, options.epsilon, options.delta, "report")
    rng = secret_stream() if options.secret else client.rng("privacy", name)
    whole = math.sqrt(len(parts))
    return [
        part.detach().double().cpu() + torch.randn(part.shape, generator=rng, dtype=torch.float64) * (noise * bound * whole)
        for part, bound in parts
    ]


def symmetric(matrices: Tensor) -> Tensor:
    """Matrices (..., d, d) whose lower triangles are their upper ones. Of a symmetric matrix with noise on every entry this keeps
    each entry once: the upper triangle changes by no more than the matrix (Dwork et al., Analyze Gauss, STOC 2014).

    >>> symmetric(torch.tensor([[1.0, 2.0], [9.0, 3.0]])).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    return matrices.triu() + matrices.triu(1).transpose(-1, -2)


def noised_rows(client: Client, name: str, rows: Tensor, *more: Bounded) -> list[Tensor]:
    """Rows of predictions (m, classes), clipped and noised. One sample may change the whole network and so every row: each by at
    most ``2 clip``, and all of them by ``2 clip sqrt(m)``."""
    options = client.task.config.privacy.reports
    assert options is not None
    bound = 2 * options.clip * math.sqrt(len(rows))
    return noised(client, name, (clipped(rows.double().cpu(), options.clip), bound), *more)


def moments_mechanism(client: Client) -> Mechanism:
    """Noise on counts (which change by 1), sums (by ``clip``) and second moments (by ``clip``^2) of every class of the task, also
    of those that the client does not have."""

    def mechanism(found: Moments, clip: float) -> Moments:
        every = _of_all_classes(found, len(client.task.classes))
        parts = ((every.counts, 1.0), (every.sums, clip), (every.seconds, clip**2))
        counts, sums, seconds = noised(client, "statistics", *parts)
        return replace(every, counts=counts, sums=sums, seconds=symmetric(seconds) if seconds.ndim == 3 else seconds)

    return mechanism


def _of_all_classes(found: Moments, classes: int) -> Moments:
    if len(found.labels) == 1 and int(found.labels[0]) == -1:  # all samples together
        return found
    here = found.labels.long()

    def spread(part: Tensor) -> Tensor:
        whole = part.new_zeros(classes, *part.shape[1:])
        whole[here] = part
        return whole

    return Moments(torch.arange(classes), spread(found.counts), spread(found.sums), spread(found.seconds))
