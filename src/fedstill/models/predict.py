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
    found: Tensor | None = None
    with torch.no_grad():  # not inference_mode: what is found may be learned from
        for first in range(0, len(samples), batch_size):
            with torch.inference_mode():
                part = function(normalise(samples.x[first : first + batch_size].to(device)))
            if found is None:
                # one tensor for all from the beginning: small results between the large tensors of a batch would keep the
                # allocator from using that memory again, and a large pool would take several times its size
                found = torch.empty(len(samples), *part.shape[1:], dtype=part.dtype, device=part.device)
            found[first : first + batch_size] = part
    network.train(was_training)
    return torch.empty(0) if found is None else found


def predict_logits(network: Network, samples: Samples, batch_size: int = BATCH) -> Tensor:
    """The logits of every sample, (n, classes)."""
    return apply(network, network, samples, batch_size)


def accuracy(network: Network, samples: Samples, batch_size: int = BATCH) -> float:
    """The fraction of labelled samples that the network classifies correctly."""
    if samples.y is None or len(samples) == 0:
        return float("nan")
    right = predict_logits(network, samples, batch_size).argmax(1) == samples.y.to(next(network.parameters()).device)
    return float(right.double().mean())
