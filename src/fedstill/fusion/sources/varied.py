"""Variations of the pool: more variety than its samples, without a generator."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from fedstill.core.errors import FedstillError
from fedstill.core.options import Part, validated
from fedstill.data.samples import Samples
from fedstill.data.variation import varied_images, varied_vectors
from fedstill.fusion.sources.contract import SourceContext, source

__all__ = ["VariedOptions"]


class VariedOptions(Part):
    """How far variations move away from the pool's samples."""

    noise: Annotated[float, Field(ge=0)] = 0.5
    """For vectors: standard deviation of the noise as a share of each coordinate's. Images have their own noise."""
    kept: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The share of the samples that come from the pool unchanged."""


@source("varied")
def _varied(context: SourceContext) -> Samples:
    """``size`` samples: some of the pool and variations of others, drawn anew each round."""
    pool = context.task.pool
    if pool is None:
        raise FedstillError("source.kind = 'varied' varies unlabelled data: set data.server, data.target or data.holdout")
    if pool.samples.x.dtype not in (torch.uint8, torch.float32):
        raise FedstillError("source.kind = 'varied' is for images and vectors, not for text")
    options = validated(VariedOptions, context.options.options or {}, "algorithm.source.options")
    rng, own = context.rng, round(options.kept * context.size)

    def drawn(count: int) -> torch.Tensor:
        rounds = -(-count // len(pool))
        return pool.samples.x[torch.cat([torch.randperm(len(pool), generator=rng) for _ in range(rounds)])[:count]]

    front, back = drawn(context.size - own), drawn(context.size - own)
    images = front.dtype == torch.uint8
    made = varied_images(front, back, rng) if images else varied_vectors(front, back, options.noise, rng)
    return Samples(torch.cat([drawn(own), made]))
