"""Whose BatchNorm statistics speak when teachers vote about samples that are not theirs.

A source's running statistics are those of its own domain. On a shifted target they put its features out of place, and it then
says one class of nearly everything, confidently (docs/adaptation.md). KD3A's code votes on the statistics of the target's
batches; KDCL's paper and FedRAD's do not say.
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
from fedstill.models.network import Network
from fedstill.models.predict import BATCH, apply
from fedstill.models.statistics import BatchNorm
from fedstill.training.batches import batches

__all__ = ["Predict", "VoteNorm", "Voters", "by_batch_statistics", "voters"]

Predict = Callable[[int, Network, Samples], Tensor]  # teacher's number, its network, samples -> logits
EARLIER = {"batch": "pool", "running": "own"}  # the words that KD3A's option had
VoteNorm = Annotated[Literal["pool", "own"], BeforeValidator(lambda word: EARLIER.get(str(word), word))]


class Voters(Part):
    """The options that all votes have in common."""

    vote_norm: VoteNorm | None = None
    """BatchNorm of teachers that vote. ``pool``: by the batches of the samples that they vote on. ``own``: by the running
    statistics that they come with. Unset: ``pool`` where the server has a pool, ``own`` elsewhere."""


def voters(norm: VoteNorm, rng: torch.Generator, batch_size: int = BATCH) -> Predict | None:
    """How a voter's logits are computed; None where they are its usual predictions. The network is left as it was."""
    if norm == "own":
        return None

    def predict(k: int, network: Network, samples: Samples) -> Tensor:
        layers = [module for module in network.modules() if isinstance(module, BatchNorm)]
        if not layers:
            return apply(network, network, samples, batch_size)
        kept = [{name: tensor.clone() for name, tensor in layer.named_buffers()} for layer in layers]
        even = math.ceil(len(samples) / math.ceil(len(samples) / batch_size)) if len(samples) else batch_size  # no small rest
        logits = by_batch_statistics(network, samples, even, rng)
        for layer, buffers in zip(layers, kept, strict=True):
            for name, tensor in layer.named_buffers():
                tensor.copy_(buffers[name])
        return logits

    return predict


def by_batch_statistics(network: Network, samples: Samples, batch_size: int, rng: torch.Generator) -> Tensor:
    """The logits of every sample, normalised in random batches by their own statistics, to which the running ones drift.

    Only BatchNorm layers are in training mode; KD3A's code puts dropout there as well.
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
                left.append(index)  # one sample has no statistics of its own: the running ones must do
                continue
            found[index.to(device)] = network(network.normalise(samples.x[index].to(device)))
        network.eval()
        for index in left:
            found[index.to(device)] = network(network.normalise(samples.x[index].to(device)))
    network.train(was_training)
    return found
