"""Teachers and students small enough to check by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedstill.data.samples import Samples
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.weightings import Ready
from fedstill.models.network import Network


class Linear(Network):
    """``head(norm(x))`` on inputs (n, width); the norm is BatchNorm where asked for."""

    def __init__(self, width: int, classes: int, seed: int = 0, batch_norm: bool = False):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.norm = nn.BatchNorm1d(width) if batch_norm else nn.Identity()
        self.head = nn.Linear(width, classes)
        self.feature_dim, self.classes = width, classes
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(classes, width, generator=generator))
            self.head.bias.copy_(torch.randn(classes, generator=generator))

    def backbone(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Reads(Network):
    """Logits straight from the input: ``gain * x``."""

    def __init__(self, gain: float = 1.0):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x


class Given(Ready):
    """The same weights for every sample."""

    def __init__(self, *shares: float):
        self.shares = torch.tensor(shares)

    def weights(self, samples: Samples) -> Tensor:
        return self.shares.expand(len(samples), -1)


def teach(networks: Sequence[Network]) -> list[Teacher]:
    """These networks as teachers."""
    return [Teacher(f"t{k}", lambda network=network: network) for k, network in enumerate(networks)]


def pool(n: int = 40, width: int = 4, seed: int = 9) -> Samples:
    """Random inputs."""
    return Samples(torch.randn(n, width, generator=torch.Generator().manual_seed(seed)))
