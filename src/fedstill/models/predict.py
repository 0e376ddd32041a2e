"""A network's predictions on samples, one batch at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedstill.data.samples import Samples
from fedstill.models.network import Network

__all__ = ["accuracy", "apply", "predict_logits"]

BATCH = 64  # larger ones are slower: most of their time goes into getting memory from the system


def apply(function: Callable[[Tensor], Tensor], network: Network, samples: Samples, batch_size: int = BATCH) -> Tensor:
    """``function`` of every sample's normalised input, in eval mode and without gradients, as one tensor."""
    device = next(network.parameters()).device
    normalise = network.normalise
    if torch.compiler.is_exporting():  # a program takes any number of samples at once
        return function(normalise(samples.x))
    was_training = network.training
    network.eval()
    with torch.inference_mode():
        parts = [function(normalise(x.to(device))) for x in torch.split(samples.x, batch_size)]
    network.train(was_training)
    return torch.cat(parts).clone() if parts else torch.empty(0)


def predict_logits(network: Network, samples: Samples, batch_size: int = BATCH) -> Tensor:
    """The logits of every sample, (n, classes)."""
    return apply(network, network, samples, batch_size)


def accuracy(network: Network, samples: Samples, batch_size: int = BATCH) -> float:
    """The fraction of labelled samples that the network classifies correctly."""
    if samples.y is None or len(samples) == 0:
        return float("nan")
    right = predict_logits(network, samples, batch_size).argmax(1) == samples.y.to(next(network.parameters()).device)
    return float(right.double().mean())
