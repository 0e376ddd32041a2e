"""Which BatchNorm statistics teachers use when they vote on samples from other domains.

A source's running statistics are those of its own domain. On a shifted target they displace its features, and it then predicts
one class for nearly every sample, with confidence (docs/adaptation.md). KD3A's code votes with the statistics of the target's
batches; the papers of KDCL and FedRAD do not say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator
from torch import Tensor

from fedstill.core.options import Part
from fedstill.data.samples import Samples
from fedstill.models.layers import BatchNorm
from fedstill.models.network import Network
from fedstill.models.predict import BATCH, apply
from fedstill.training.batches import batches

__all__ = ["Predict", "VoteNorm", "Voters", "by_batch_statistics", "voters"]

Predict = Callable[[int, Network, Samples], Tensor]  # teacher's number, its network, samples -> logits
EARLIER = {"batch": "pool", "running": "own"}  # former values of KD3A's option
VoteNorm = Annotated[Literal["pool", "own"], BeforeValidator(lambda word: EARLIER.get(str(word), word))]


class Voters(Part):
    """The options that all votes have in common."""

    vote_norm: VoteNorm | None = None
    """BatchNorm statistics of the voting teachers. ``pool``: those of the batches that they vote on. ``own``: their own running
    statistics. Unset: ``pool`` if the server has a pool, otherwise ``own``."""


def voters(norm: VoteNorm, rng: torch.Generator, batch_size: int = BATCH) -> Predict | None:
    """A function that computes a voter's logits; None for its usual predictions. It leaves the network unchanged."""
    if norm == "own":
        return None

    def predict(k: int, network: Network, samples: Samples) -> Tensor:
        layers = [module for module in network.modules() if isinstance(module, BatchNorm)]
        if not layers:
            return apply(network, network, samples, batch_size)
        kept = [{name: tensor.clone() for name, tensor in layer.named_buffers()} for layer in layers]
        even = (
            math.ceil(len(samples) / math.ceil(len(samples) / batch_size)) if len(samples) else batch_size
        )  # no small remainder
        logits = by_batch_statistics(network, samples, even, rng)
        for layer, buffers in zip(layers, kept, strict=True):
            for name, tensor in layer.named_buffers():
                tensor.copy_(buffers[name])
        return logits

    return predict


def by_batch_statistics(network: Network, samples: Samples, batch_size: int, rng: torch.Generator) -> Tensor:
    """The logits of every sample, normalised in random batches by the batch statistics; the running statistics drift to these.

    Only BatchNorm layers are in training mode; in KD3A's code, dropout is as well.
    """
    device = next(network.parameters()).device
    was_training = network.training
    network.eval()
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.train()
    found = torch.empty(len(samples), network.classes, device=device)
    left: list[Tensor] = []
    with torch.no_grad():
        for index in batches(len(samples), batch_size, rng):
            if len(index) == 1:
                left.append(index)  # one sample has no batch statistics: use the running ones
                continue
            found[index.to(device)] = network(network.normalise(samples.x[index].to(device)))
        network.eval()
        for index in left:
            found[index.to(device)] = network(network.normalise(samples.x[index].to(device)))
    network.train(was_training)
    return found
