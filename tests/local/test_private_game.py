"""DaFKD's game and FedGen's terms under DP-SGD: a step by hand, and what may learn from which samples."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fedstill
from fedstill.algorithms import create
from fedstill.core.accounting import Ledger
from fedstill.core.errors import FedstillError
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.local.adversarial import Adversarial, Discriminator, Game
from fedstill.models import build
from fedstill.models.generator import build_generator
from fedstill.run.configuration import resolve
from fedstill.task import Task
from fedstill.training.fit import Batch, Fit, fit
from fedstill.training.options import Local, Optimizer
from fedstill.training.private import DPSGD, poisson_batches
from tests.local.test_private import SMALL, tree

LOCAL = Local(batch_size=64, steps=2, optimizer=Optimizer(lr=0.5))  # more than there are samples: every batch is all of them
NORM, NOISE = 0.6, 1.5


class Played:
    """A client's turn with two samples: classifier, discriminator and generator."""

    def __init__(self, *, sharing: bool = True, round: int = 1, **options: Any):
        self.data = Samples(torch.tensor([[1.0, -2.0], [0.5, 3.0]]), torch.tensor([0, 2]))
        self.net = build("mlp", classes=3, shape=(2,), hidden=[4], seed=1)
        self.discriminator = Discriminator(self.net, sharing=sharing)
        torch.nn.init.constant_(self.discriminator.head.weight, 0.7)  # at first it is zero, and so would be most gradients
        self.generator = build_generator("mlp-conditional", classes=3, shape=(2,), noise_dim=3, seed=2, hidden=5)
        self.before = copy.deepcopy(self)
        self.game = Game(
            self.discriminator, self.generator, Adversarial(**options), round=round, steps_per_epoch=1, expected=len(self.data)
        )

    def parameters(self) -> list[torch.Tensor]:
        return [*self.net.parameters(), *self.discriminator.parameters()]

    def fit(
        self, data: Samples | None = None, noise: float = NOISE, norm: float = NORM, local: Local = LOCAL, seed: int = 3
    ) -> Fit:
        return fit(
            self.net,
            data or self.data,
            local,
            rng=stream(0, "fit"),
            terms=self.game.terms,
            parameters=self.game.trained(self.net),
            beside=self.game.beside,
            after=self.game.answer,
            private=DPSGD(noise, norm, stream(seed, "noise")),
        )


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("apart", [None, Optimizer(lr=0.25)])
def test_two_steps_of_two_samples_by_hand(sharing: bool, apart: Optimizer | None) -> None:
    """Cross-entropy and the real half of Eq. 2 are clipped together over classifier and discriminator, whoever steps the latter;
    the generated half is added as it is, and the generator's answer in between leaves nothing in the second step."""
    played = Played(sharing=sharing, weight=2.0, discriminator_optimizer=apart, generator_optimizer=Optimizer(lr=0.1))
    old, rng, steps = played.before, stream(3, "noise"), stream(0, "fit")
    old.game = Game(old.discriminator, old.generator, played.game.options, round=1, steps_per_epoch=1, expected=2)
    rates = [0.5] * len(list(old.net.parameters())) + [0.25 if apart else 0.5] * len(list(old.discriminator.parameters()))

    def belief(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(old.discriminator(x, old.net.features(x)))

    for step in range(2):
        clipped, sizes = [torch.zeros_like(p) for p in old.parameters()], []
        for x, y in zip(old.data.x, old.data.y, strict=True):
            loss = F.cross_entropy(old.net(x[None]), y[None]) - torch.log(belief(x[None]))[0]  # weight 2, halved
            slopes = torch.autograd.grad(loss, old.parameters())
            sizes.append(float(torch.cat([slope.flatten() for slope in slopes]).norm()))
            clipped = [total + slope * min(1.0, NORM / sizes[-1]) for total, slope in zip(clipped, slopes, strict=True)]
        assert max(sizes) > NORM  # something is clipped
        torch.rand(2, generator=rng, dtype=torch.float64)  # who is in the batch
        noise = [NOISE * NORM * torch.randn(p.shape, generator=rng) for p in old.parameters()]
        with torch.no_grad():
            z = old.generator.draw(2, steps)
            made = old.generator(z, torch.randint(3, (2,), generator=steps))
        free = torch.autograd.grad(-torch.log(1 - belief(made)).mean(), old.parameters(), allow_unused=True)
        with torch.no_grad():
            for p, g, n, g0, rate in zip(old.parameters(), clipped, noise, free, rates, strict=True):
                p -= rate * ((g + n) / 2 + (0 if g0 is None else g0))
        old.game.generator_step(Batch(old.net, *[torch.empty(0)] * 4, step, steps))
    played.fit()
    for new, expected in zip(played.parameters(), old.parameters(), strict=True):
        torch.testing.assert_close(new, expected, rtol=1e-4, atol=1e-5)
    for new, expected in zip(played.generator.parameters(), old.generator.parameters(), strict=True):
        torch.testing.assert_close(new, expected, rtol=1e-4, atol=1e-5)


def test_the_generator_learns_from_no_sample() -> None:
    """Its step is that against the discriminator as it now is, on as many samples as a batch is expected to have; the labels that
    it is asked for are not the client's."""
    played = Played(label=1.0)
    seen: list[Batch] = []
    answer = played.game.answer
    played.game.answer = lambda batch: (seen.append(batch), answer(batch))[1]  # type: ignore[method-assign]
    played.fit()
    assert [len(batch.x) + len(batch.y) + len(batch.features) + len(batch.logits) for batch in seen] == [0, 0]
    old = played.before.generator.embed_noise.weight
    assert not torch.equal(played.generator.embed_noise.weight, old)  # type: ignore[operator,arg-type]
    _, labels = played.game.drawn(Batch(played.net, *[torch.zeros(5, 2)] * 4, 0, stream(1, "labels")), mine=True)
    assert labels is not None
    assert len(labels) == 2


def test_samples_that_are_clipped_to_nothing_leave_the_generated_half() -> None:
    """Without noise, the discriminator moves by generated samples alone."""
    played, other = Played(), Played()
    played.fit(noise=0.0, norm=1e-12)
    other.fit(Samples(-other.data.x, other.data.y), noise=0.0, norm=1e-12)
    assert not torch.equal(played.discriminator.head.weight, played.before.discriminator.head.weight)
    for mine, its in zip(played.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-9)


def test_an_empty_batch_takes_the_generated_half_and_the_generators_step() -> None:
    """As many samples are generated as for any other batch, and nothing depends on the data."""
    local = Local(batch_size=2, steps=1, optimizer=Optimizer(lr=0.5))
    [index] = poisson_batches(200, 2, 1, stream(7, "noise"))
    assert not len(index)
    found = []
    for sign in (1.0, -1.0):
        played = Played(label=1.0)
        x = sign * torch.linspace(1, 2, 400).view(200, 2)
        played.fit(Samples(x, torch.arange(200) % 3), noise=0.0, local=local, seed=7)
        assert not torch.equal(played.discriminator.head.weight, played.before.discriminator.head.weight)
        assert not torch.equal(played.generator.embed_noise.weight, played.before.generator.embed_noise.weight)  # type: ignore[operator,arg-type]
        found.append([*played.parameters(), *played.generator.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_discriminator_that_rests_gets_no_noise() -> None:
    played = Played(rounds=1, round=2)
    played.fit()
    for new, old in zip(played.discriminator.parameters(), played.before.discriminator.parameters(), strict=True):
        assert torch.equal(new, old)
    assert not torch.equal(played.net.head.weight, played.before.net.head.weight)


# -- runs ------------------------------------------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {"name": "dafkd", "distillation": {"steps": 2}, "source": {"kind": "generator", "size": 16}}


@pytest.mark.parametrize(
    "options",
    [
        {"level": "features", "generator": {"kind": "features"}},
        {"no_sharing": True, "line": False},
        {"secure": True, "line": False},
        {"discriminator": "shared", "adversarial": {"discriminator_optimizer": {"name": "adam", "lr": 1e-3}, "rounds": 1}},
    ],
)
def test_forms_of_the_game_train_privately(options: dict[str, Any], tmp_path: Path) -> None:
    result = fedstill.run(tree(algorithm={**SHORT, **options}), tmp_path)
    told = result.summary["privacy"]["sample"]["clients"]
    for info in result.task.clients.values():
        assert told[info.id] == pytest.approx(Ledger().gaussian(1.0, 8 / info.samples, 4).epsilon(1e-5))  # no more than FedAvg
    assert all("loss" not in line["sent"] for line in result.history)


def test_dafkd_goes_on_exactly_within_its_budget(tmp_path: Path) -> None:
    config = {**SMALL, "rounds": 2, "privacy": {"sample": {"noise": 1.5, "epsilon": 9.0}}, "algorithm": SHORT}
    whole = fedstill.run(config, tmp_path / "whole")
    assert 0 < whole.summary["privacy"]["sample"]["epsilon"] <= 9.0

    class Stopped(Exception):
        pass

    class Stop(fedstill.run.listener.Listener):  # type: ignore[name-defined,misc]
        def round(self, line: Any) -> None:
            raise Stopped

    with pytest.raises(Stopped):
        fedstill.run(config, tmp_path / "parts", listeners=[Stop()])
    again = fedstill.run(config, tmp_path / "parts", resume=True)
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True))
    assert again.summary["privacy"] == whole.summary["privacy"]


def test_a_gradient_penalty_is_refused() -> None:
    config = tree(algorithm={**SHORT, "adversarial": {"gradient_penalty": 0.3}})
    with pytest.raises(FedstillError, match="cannot clip a gradient penalty"):
        create(Task(resolve(config)))


def test_fedgens_terms_in_two_are_the_one() -> None:
    """On a batch of the expected size both forms have one value; the first part is the same on an empty batch, and a sample's
    share of the second does not depend on the others."""
    mechanisms = {"sample": {"noise": 1.0}, "reports": {"noise": 5.0}}
    system = create(Task(resolve(tree(algorithm={"name": "fedgen", "hidden": 4, "noise_dim": 2}, privacy=mechanisms))))
    net, generator = system.task.networks.get("mlp"), system.generator(None).eval()

    def batch(*labels: int, others: float = 1.0) -> Batch:
        x = torch.rand(3, *system.task.shape, generator=stream(0, "x")) * torch.tensor([1.0, others, others]).view(3, 1, 1, 1)
        z = net.features(x)
        return Batch(net, x, torch.tensor(labels), z, net.head(z), 0, stream(1, "batch"))

    (together,) = system.generated_terms(generator, 0.5, None)
    free, latent = system.generated_terms(generator, 0.5, 3)
    joined = batch(0, 1, 1)
    with torch.no_grad():
        value = float(together(batch(0, 1, 1)))
        assert value == pytest.approx(float(free(joined)) + float(latent(joined)))
        empty = Batch(net, *[torch.empty(0)] * 4, 0, stream(1, "batch"))
        assert float(free(empty)) == pytest.approx(float(free(batch(0, 1, 1))))
    one, other = batch(0, 1, 1), batch(0, 2, 0, others=0.3)
    mine, its = (torch.autograd.grad(latent(seen), seen.logits)[0] for seen in (one, other))
    torch.testing.assert_close(mine[0], its[0])
    assert not torch.allclose(mine[1:], its[1:])


def test_fedgen_teaches_private_clients_within_one_budget(tmp_path: Path) -> None:
    mechanisms = {"sample": {"noise": 1.0}, "reports": {"noise": 5.0}}
    chosen = {"name": "fedgen", "steps": 2, "hidden": 8, "noise_dim": 4}
    result = fedstill.run(tree(algorithm=chosen, privacy=mechanisms), tmp_path)
    told = result.summary["privacy"]["sample"]["clients"]
    for info in result.task.clients.values():
        spent = Ledger().gaussian(1.0, 8 / info.samples, 4).gaussian(5.0, steps=2)  # two rounds of two steps and one report
        assert told[info.id] == pytest.approx(spent.epsilon(1e-5))
