"""Gradient inversion: exact behind a linear layer, near by optimisation, and honest about what it does not try."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedstill.audit.inversion import Inversion, Private, gradients, invert, optimised, sent_gradients
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


def test_a_gradient_of_dp_sgd_is_clipped_by_sample_and_noised() -> None:
    network, data = Smooth(bias=True), members()
    x, y = data.x[:2], torch.tensor([0, 1])
    plain = [gradients(network, x[i : i + 1], y[i : i + 1]) for i in range(2)]
    sizes = [torch.cat([g.flatten() for g in one if g is not None]).norm() for one in plain]
    clip = float(min(sizes) + max(sizes)) / 2  # the larger one is clipped, the other is not
    sent = sent_gradients(network, x, y, Private(0.0, clip), torch.Generator())
    for place, found in enumerate(sent):
        parts = [one[place] * min(1.0, clip / float(size)) for one, size in zip(plain, sizes, strict=True)]  # type: ignore[operator]
        torch.testing.assert_close(found, sum(parts) / 2)
    noised = sent_gradients(network, x, y, Private(3.0, clip), torch.Generator().manual_seed(0))
    apart = torch.cat([(a - b).flatten() for a, b in zip(noised, sent, strict=True)])  # type: ignore[operator]
    assert abs(float(apart.std()) / (3.0 * clip / 2) - 1) < 0.1


def test_the_noise_of_dp_sgd_hides_the_input_from_the_closed_form() -> None:
    found = invert("site", Smooth(bias=True), members(), private=Private(1.0, 1.0))
    assert isinstance(found, Inversion)
    assert found.method == "closed form, noised gradient"
    assert abs(found.similarity) < 0.6


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
