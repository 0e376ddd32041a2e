"""The server's own unlabelled samples."""

from __future__ import annotations

import torch

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.sources.contract import SourceContext, source

__all__: list[str] = []


@source("data")
def _pool(context: SourceContext) -> Samples:
    """The whole pool; in a mixture, a random part of it."""
    pool = context.task.pool
    if pool is None:
        raise FedstillError("distilling on unlabelled data needs a pool: set data.server, data.target or data.holdout")
    if context.mixed and context.size < len(pool):
        return pool.samples.take(torch.randperm(len(pool), generator=context.rng)[: context.size])
    return pool.samples
