"""DaFKD's Theorem 1 on domains whose densities are known: the game ends at ``p_g = p`` and ``D_k = p_k / (p_k + p)``."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fedstill.local.adversarial import Adversarial, Discriminator, Game
from fedstill.models import build, build_generator
from fedstill.training.fit import Batch

CENTRES, SPREAD = torch.tensor([[-0.5, -0.3], [0.5, -0.3], [0.0, 0.5]]), 0.15  # three clients, a Gaussian each
ADAM = {"name": "adam", "lr": 4e-4, "weight_decay": 0.0, "betas": [0.5, 0.99]}


def drawn(k: int, n: int, rng: torch.Generator) -> Tensor:
    return (CENTRES[k] + SPREAD * torch.randn(n, 2, generator=rng)).view(n, 1, 1, 2)


def densities(x: Tensor) -> Tensor:
    """``p_k`` of points (n, 2), a column a client."""
    return (-torch.cdist(x, CENTRES).square() / (2 * SPREAD**2)).exp() / (2 * math.pi * SPREAD**2)


def energy(one: Tensor, other: Tensor) -> float:
    """The energy distance of two samples, 0 where they are of one distribution."""
    return float(2 * torch.cdist(one, other).mean() - torch.cdist(one, one).mean() - torch.cdist(other, other).mean())


def test_theorem_1_in_two_dimensions():
    rng = torch.Generator().manual_seed(1)
    generator = build_generator("mlp-conditional", classes=1, shape=(1, 1, 2), noise_dim=4, seed=1)
    networks = [build("mlp", classes=2, shape=(1, 1, 2), hidden=[48, 48], seed=5 + k) for k in range(3)]
    discriminators = [Discriminator(network) for network in networks]
    # Eq. 2 and 3 as printed; all three play against one generator, which is Eq. 4 with an exchange after every step
    games = [Game(d, generator, Adversarial(generator_optimizer=ADAM), round=1, steps_per_epoch=1) for d in discriminators]
    learners = [
        torch.optim.Adam([*n.parameters(), *d.parameters()], lr=2e-3, betas=(0.5, 0.99))
        for n, d in zip(networks, discriminators, strict=True)
    ]
    with torch.no_grad():
        real = torch.cat([drawn(k, 400, rng) for k in range(3)])
    # the players circle around the optimum, each step depending on the last bits of the one before; their mean stays near it
    mean = AveragedModel(generator, multi_avg_fn=get_ema_multi_avg_fn(0.985), use_buffers=True)
    for step in range(490):
        if step == 410:  # then the discriminators settle
            generator.load_state_dict(mean.module.state_dict())
        for k, network in enumerate(networks):
            x = drawn(k, 96, rng)
            f = network.features(x)
            batch = Batch(network, x, torch.zeros(96, dtype=torch.long), f, network.head(f), step, rng)
            learners[k].zero_grad()
            games[k].term(batch).backward()
            learners[k].step()
            if 60 <= step < 410:
                games[k].generator_step(batch)
        if step >= 60:
            mean.update_parameters(generator)
    generator.eval()
    with torch.no_grad():
        made = generator.sample(1200, rng)[0].view(-1, 2)
        said = torch.stack([torch.sigmoid(d(real, n.features(real))) for d, n in zip(discriminators, networks, strict=True)], 1)
    p_k = densities(real.view(-1, 2))
    p = p_k.mean(1, keepdim=True)
    # p_g is close to p, far closer than a mixture that lacks a client's domain
    assert energy(made, real.view(-1, 2)) < 0.5 * energy(real[:800].view(-1, 2), real.view(-1, 2))
    assert torch.bincount(torch.cdist(made, CENTRES).argmin(1), minlength=3).min() > 120  # each domain has its part
    # D_k is close to p_k / (p_k + p)
    assert float((said - p_k / (p_k + p)).abs().mean()) < 0.1
    # Eq. 7 orders the clients as their densities do
    assert float((said.argmax(1) == p_k.argmax(1)).double().mean()) > 0.95
