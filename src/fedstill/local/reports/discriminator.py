"""A discriminator without a generator: a linear layer on a site's network that tells how similar a sample is to the site's data.

DaFKD's discriminator (Eq. 2) learns against a generator that all clients train together. A site that hands over a file has no
generator, nor has a client of FedDF. Their discriminators learn against other images: public ones, or distortions of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedstill.algorithm import Client
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State
from fedstill.data.samples import Samples
from fedstill.local.adversarial import adversarial_loss
from fedstill.local.reports.contract import report
from fedstill.models.network import Network
from fedstill.models.predict import apply

__all__ = ["DISTORTIONS", "discriminator_for", "distorted"]

DISTORTIONS = "distortions of them"
DECAY = 1e-3  # keeps the layer finite where the two kinds of images can be told apart exactly


def distorted(samples: Samples, rng: torch.Generator) -> Samples:
    """Distort each image in one of four ways: swap its quarters, invert it, rotate it by a right angle and blend it with noise,
    or replace it by noise. Vectors likewise: shuffle each coordinate, mirror at the mean, blend with noise, or replace by noise.

    >>> x = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
    >>> distorted(Samples(x), torch.Generator().manual_seed(0)).x.shape
    torch.Size([1, 1, 4, 4])
    """
    x = samples.x
    if x.dtype != torch.uint8:
        return Samples(_distorted_vectors(x.flatten(1), rng).view_as(x))
    noise = torch.randint(0, 256, x.shape, generator=rng, dtype=torch.uint8)
    half = (x.shape[2] // 2, x.shape[3] // 2)
    square = x.shape[2] == x.shape[3]
    turned = x.rot90(1, (2, 3)) if square else x.flip(2)
    ways = torch.stack([x.roll(half, (2, 3)), 255 - x, ((turned.int() + noise.int()) // 2).to(torch.uint8), noise])
    which = torch.randint(0, len(ways), (len(x),), generator=rng)
    return Samples(ways[which, torch.arange(len(x))])


def _distorted_vectors(x: Tensor, rng: torch.Generator) -> Tensor:
    mean, deviation = x.mean(0), x.std(0, correction=0)
    noise = mean + deviation * torch.randn(x.shape, generator=rng)
    exchanged = x.gather(0, torch.rand(x.shape, generator=rng).argsort(0))
    ways = torch.stack([exchanged, 2 * mean - x, (x + noise) / 2, noise])
    return ways[torch.randint(0, len(ways), (len(x),), generator=rng), torch.arange(len(x))]


def discriminator_for(network: Network, own: Samples, others: Samples) -> State:
    """The layer ``head`` that minimises Eq. 2 on the network's features of the site's images and of others.

    Both kinds count equally, however many there are of each. The features are standardised while it learns; the resulting layer
    takes them unstandardised.
    """
    real, false = (apply(network.features, network, samples).double() for samples in (own, others))
    both = torch.cat([real, false])
    centre, spread = both.mean(0), both.std(0).clamp_min(1e-6)
    real, false = (real - centre) / spread, (false - centre) / spread
    weight = torch.zeros(both.shape[1], dtype=torch.float64, device=both.device, requires_grad=True)
    bias = torch.zeros((), dtype=torch.float64, device=both.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = [features @ weight + bias for features in (real, false)]
        none = logits[0].new_zeros(0)
        value = adversarial_loss(logits[0], none) + adversarial_loss(none, logits[1]) + DECAY * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        scaled = weight / spread
        shifted = bias - scaled @ centre
    return {"head.weight": scaled[None].float(), "head.bias": shifted[None].float()}


@report("discriminator", after=True)
def reported_discriminator(message: Message, client: Client, options: Mapping[str, Any]) -> State:
    """A discriminator on the network just trained, against distortions of the client's own inputs."""
    if not (client.data.x.dtype == torch.uint8 or client.data.x.is_floating_point()):
        raise FedstillError("a discriminator learns against distorted inputs, but texts cannot be distorted")
    return discriminator_for(client.network, client.data, distorted(client.data, client.rng("discriminator")))
