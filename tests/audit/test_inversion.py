"""Gradient inversion: exact behind a linear layer, near by optimisation, and honest about what it does not try."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedstill.audit.inversion import Inversion, gradients, invert, optimised
from fedstill.data.samples import Samples
from fedstill.models.network import Network


class Smooth(Network):
    """Linear layers with a smooth activation between them; ``bias`` of the first decides whether a closed form exists."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.feature_dim, self.classes = 32, 3
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.head = nn.Linear(16, 32, bias=bias), nn.Linear(32, 3)

    def backbone(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.first(x.flatten(1)))


def members(count: int = 30) -> Samples:
    x = torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    return Samples(x, torch.arange(count) % 3)


def test_a_linear_first_layer_gives_its_input_away_exactly() -> None:
    found = invert("site", Smooth(bias=True), members())
    assert isinstance(found, Inversion)
    assert found.method == "closed form"
    torch.testing.assert_close(found.found, found.originals, atol=1e-4, rtol=1e-3)
    assert found.similarity > 0.999
    assert abs(found.chance) < 0.3
    assert found.figure() is not None


def test_optimisation_finds_the_input_of_a_gradient() -> None:
    found = invert("site", Smooth(bias=False), members())
    assert isinstance(found, Inversion)
    assert found.method == "optimisation"
    assert found.similarity > 0.9 > found.chance


def test_the_gradient_of_another_input_gives_another_reconstruction() -> None:
    """A reconstruction depends on what was sent, not on a prior alone."""
    network, data = Smooth(bias=False), members()
    sent = gradients(network, data.x[:1], torch.tensor([0]))
    rng = torch.Generator().manual_seed(0)
    found = optimised(network, sent, torch.tensor([0]), (1, 4, 4), rng=rng, steps=200)

    def near(one: Tensor) -> float:
        return float(torch.corrcoef(torch.stack([one.flatten(), found.flatten()]))[0, 1])

    assert near(data.x[0]) > 0.8 > near(data.x[1])


def test_tokens_and_large_networks_are_left_out_with_a_reason() -> None:
    tokens = Samples(torch.zeros(30, 16, dtype=torch.long), torch.zeros(30, dtype=torch.long))
    assert "tokens" in str(invert("site", Smooth(bias=True), tokens))
    wide = Samples(torch.zeros(3, 1, 200, 200), torch.zeros(3, dtype=torch.long))
    assert "too many" in str(invert("site", Smooth(bias=True), wide))
