"""The game of DaFKD's clients: Eq. 2, 3 and 9, and what sharing means."""

import math

import pytest
import torch

from fedstill.core.message import Message, clone
from fedstill.data.samples import Samples
from fedstill.local.adversarial import (
    Adversarial,
    Discriminator,
    Game,
    adversarial_loss,
    generated_statistics,
    generator_loss,
    gradient_penalty,
    mode_seeking,
)
from fedstill.models import build, build_generator
from fedstill.training.fit import Batch, fit
from fedstill.training.options import Local, Optimizer


def logit(f):
    return math.log(f / (1 - f))


def parts(sharing=True, name="cnn-small", **options):
    network = build(name, classes=3, shape=(1, 8, 8), seed=0)
    generator = build_generator("mlp-conditional", classes=3, shape=(1, 8, 8), noise_dim=4, seed=1)
    discriminator = Discriminator(network, sharing=sharing)
    with torch.no_grad():
        discriminator.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    game = Game(discriminator, generator, Adversarial(**options), round=1, steps_per_epoch=2)
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    network.train()
    features = network.features(x)
    batch = Batch(network, x, torch.arange(6) % 3, features, network.head(features), 0, torch.Generator().manual_seed(3))
    return network, generator, discriminator, game, batch


def test_eq2_by_hand():
    real, generated = torch.tensor([logit(0.5), logit(0.75)]), torch.tensor([logit(0.25)])
    expected = -(math.log(0.5) + math.log(0.75) + math.log(1 - 0.25)) / 3
    assert float(adversarial_loss(real, generated)) == pytest.approx(expected, abs=1e-6)


def test_eq3_by_hand_and_its_non_saturating_form():
    d = torch.tensor([logit(0.2), logit(0.6)])
    assert float(generator_loss(d)) == pytest.approx((math.log(0.8) + math.log(0.4)) / 2, abs=1e-6)
    assert float(generator_loss(d, "non-saturating")) == pytest.approx(-(math.log(0.2) + math.log(0.6)) / 2, abs=1e-6)


def test_losses_are_finite_where_the_sigmoid_rounds():
    far = torch.tensor([-200.0, 200.0])
    assert torch.isfinite(adversarial_loss(far, far))
    assert torch.isfinite(generator_loss(far))


def test_gradient_penalty_of_a_known_slope():
    # f = sigmoid(w x) at x = 0 has slope w / 4; with w = 2 in two pixels of one channel
    zero = torch.zeros(3, 1, 1, 2)
    slope = lambda x: 2 * x.flatten(1).sum(1)
    whole, pixel = math.sqrt(2) * 0.5, 0.5
    assert gradient_penalty(slope, zero, zero, torch.Generator()).item() == pytest.approx((whole - 1) ** 2, abs=1e-6)
    assert gradient_penalty(slope, zero, zero, torch.Generator(), "pixel").item() == pytest.approx((pixel - 1) ** 2, abs=1e-6)


@pytest.mark.parametrize("sharing", [True, False])
def test_sharing_means_that_the_discriminator_trains_the_classifiers_layers(sharing):
    network, _, discriminator, game, batch = parts(sharing)
    game.term(batch).backward()
    backbone = [p for name, p in network.named_parameters() if not name.startswith("head")]
    moved = any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in backbone)
    assert moved == sharing
    assert network.head.weight.grad is None  # the class layer is not part of Eq. 2
    assert discriminator.head.weight.grad is not None


def slopes(factor):
    """The gradients of the term in the shared layers and in the discriminator's head, and the term."""
    network, _, discriminator, game, batch = parts(shared_gradient=factor)
    loss = game.term(batch)
    loss.backward()
    shared = [p.grad for name, p in network.named_parameters() if not name.startswith("head")]
    return shared, discriminator.head.weight.grad, loss.item()


def test_the_gradient_in_shared_layers_is_scaled_and_the_heads_is_not():
    (whole, head, loss), (half, same_head, same_loss), (none, lone_head, lone_loss) = slopes(1.0), slopes(0.5), slopes(0.0)
    assert loss == pytest.approx(same_loss) == pytest.approx(lone_loss)
    assert bool(head.abs().sum() > 0)
    assert all(torch.allclose(head, other) for other in (same_head, lone_head))
    assert all(torch.allclose(0.5 * a, b, atol=1e-7) for a, b in zip(whole, half, strict=True))
    assert all(slope is None for slope in none)


def test_without_a_shared_gradient_the_classifier_trains_as_without_the_game():
    """Weights and statistics, bit for bit, though the game is played in every step."""
    data = Samples(torch.randint(0, 255, (12, 1, 8, 8), generator=torch.Generator().manual_seed(0)).byte(), torch.arange(12) % 3)
    local = Local(epochs=1, batch_size=12, optimizer=Optimizer(name="adam", lr=1e-2))
    played, _, discriminator, game, _ = parts(shared_gradient=0.0, label=1.0, mode_seeking=0.1)
    own = [*played.parameters(), *discriminator.parameters()]
    fit(played, data, local, rng=torch.Generator(), terms=[game.term], parameters=own, after=game.generator_step)
    alone = parts()[0]
    fit(alone, data, local, rng=torch.Generator())
    assert all(torch.equal(a, b) for a, b in zip(played.state_dict().values(), alone.state_dict().values(), strict=True))


def test_sharing_sends_fewer_bytes():
    network, *_ = parts()
    model = clone(network.state_dict())
    shared = Message.of(model=model, discriminator=Discriminator(network).state())
    alone = Message.of(model=model, discriminator=Discriminator(network, sharing=False).state())
    assert shared.nbytes - Message.of(model=model).nbytes == 4 * (network.feature_dim + 1)
    assert alone.nbytes > 1.9 * shared.nbytes


def test_a_discriminator_comes_back_as_it_went():
    network, _, discriminator, _, batch = parts(sharing=False)
    again = Discriminator(network, discriminator.state(), sharing=False)
    discriminator.eval(), again.eval()
    assert torch.equal(discriminator(batch.x, batch.features), again(batch.x, batch.features))


def test_eq9_is_the_sum_of_both_losses():
    network, _, discriminator, game, batch = parts()
    state = batch.rng.get_state()
    joint = torch.nn.functional.cross_entropy(batch.logits, batch.y) + game.term(batch)
    batch.rng.set_state(state)
    with torch.no_grad():
        made, _ = game.generator.sample(6, batch.rng)
        fake = discriminator.head(network.features(made)).squeeze(1)
    real = discriminator.head(batch.features).squeeze(1)
    expected = torch.nn.functional.cross_entropy(batch.logits, batch.y) + adversarial_loss(real, fake)
    assert joint.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("norm", ["sample", "pixel"])
def test_the_term_has_its_weight_and_its_penalty(norm):
    network, _, discriminator, game, batch = parts(weight=2.0, gradient_penalty=0.3, penalty_norm=norm)
    state = batch.rng.get_state()
    got = game.term(batch)
    batch.rng.set_state(state)
    with torch.no_grad():
        made, _ = game.generator.sample(6, batch.rng)
        fake = discriminator.head(network.features(made)).squeeze(1)
    penalty = gradient_penalty(lambda x: game.discriminate(x, network), batch.x, made, batch.rng, norm)
    expected = 2.0 * adversarial_loss(discriminator.head(batch.features).squeeze(1), fake) + 0.3 * penalty
    assert got.item() == pytest.approx(expected.item(), abs=1e-5)
    assert 0.3 * penalty.item() > 1e-3


def stepped(game, generator, batch):
    """The generator's parameters before and after a step, which is then taken back, the random stream with it."""
    before = [p.detach().clone() for p in generator.parameters()]
    state = batch.rng.get_state()
    game.generator_step(batch)
    after = [p.detach().clone() for p in generator.parameters()]
    with torch.no_grad():
        for parameter, old in zip(generator.parameters(), before, strict=True):
            parameter.copy_(old)
    batch.rng.set_state(state)
    return before, after


def test_the_generator_descends_the_loss_that_was_asked_for():
    def moved(kind):
        _, generator, _, game, batch = parts(generator_loss=kind, generator_optimizer=Optimizer(name="sgd", lr=1.0))
        before, after = stepped(game, generator, batch)
        loss = generator_loss(game.discriminate(generator.sample(6, batch.rng)[0], batch.network), kind)
        slopes = torch.autograd.grad(loss, list(generator.parameters()))
        return [(new - old, -slope) for new, old, slope in zip(after, before, slopes, strict=True)]

    found = {kind: moved(kind) for kind in ("saturating", "non-saturating")}
    for steps in found.values():
        for step, wanted in steps:
            assert torch.allclose(step, wanted, atol=1e-5)
    pairs = zip(*found.values(), strict=True)
    assert any(not torch.allclose(one[0], other[0], rtol=0.05, atol=1e-7) for one, other in pairs)


def test_the_generators_turn_fools_the_discriminator_and_touches_nothing_else():
    network, generator, discriminator, game, batch = parts(generator_optimizer=Optimizer(name="sgd", lr=0.05))
    before = clone(network.state_dict())

    def caught():
        generator.train()
        with torch.no_grad():
            made, _ = generator.sample(64, torch.Generator().manual_seed(5))
            return float(generator_loss(game.discriminate(made, network)))

    first = caught()
    for _ in range(10):
        game.generator_step(batch)
    assert caught() < first
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())


def test_decay_alone_does_not_silence_the_generators_noise():
    # where the discriminator is undecided Eq. 3 has no gradient, and only the decay moves the generator
    def left(**options):
        _, generator, discriminator, game, batch = parts(**options)
        torch.nn.init.zeros_(discriminator.head.weight)
        before = generator.embed_noise.weight.detach().norm()
        for _ in range(50):
            game.generator_step(batch)
        return float(generator.embed_noise.weight.detach().norm() / before)

    assert left() > 0.99
    assert left(generator_optimizer=Optimizer(name="adam", lr=1e-3, weight_decay=1e-3)) < 0.9  # what the default avoids


@pytest.mark.parametrize(("policy", "changes"), [("running", False), ("batch", False), ("updated", True)])
def test_generated_batches_leave_the_statistics_alone_unless_told(policy, changes):
    network, _, _, game, batch = parts(generated_norm=policy)
    before = network.body[2].running_mean.clone()
    game.term(batch)
    assert (not torch.equal(before, network.body[2].running_mean)) == changes
    assert network.body[2].training
    assert network.body[2].track_running_stats


def test_the_game_stops_when_its_options_say():
    _, _, _, game, batch = parts(epochs=1)
    batch.step = 2  # the second epoch of two steps each
    assert float(game.term(batch)) == 0.0
    late = Game(game.discriminator, game.generator, Adversarial(rounds=3, generator_rounds=5), round=4, steps_per_epoch=2)
    assert not late.discriminator_learns(0)
    assert late.generator_learns(0)


def test_steps_are_steps():
    network, generator, discriminator, game, _ = parts()
    data = Samples(torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8), torch.arange(20) % 3)
    turns = []
    done = fit(
        network,
        data,
        Local(steps=7, batch_size=4),
        rng=torch.Generator(),
        terms=[game.term],
        parameters=[*network.parameters(), *discriminator.parameters()],
        after=lambda batch: turns.append(batch.step),
    )
    assert done.steps == 7
    assert turns == list(range(7))  # E = 7: a step of Eq. 9, a turn of Eq. 3


def test_a_discriminators_own_optimiser_takes_its_step_and_leaves_the_classifiers_alone():
    """One step of SGD with rate 1 by hand: w - g for the discriminator; the classifier trains as with a game without one."""
    network, _, discriminator, game, batch = parts(
        sharing=False, discriminator_optimizer=Optimizer(name="sgd", lr=1.0, momentum=0.0)
    )
    owned = {id(p) for p in discriminator.parameters()}
    assert not owned & {id(p) for p in game.trained(network)}
    joint = Game(discriminator, game.generator, Adversarial(), round=1, steps_per_epoch=1)
    assert owned <= {id(p) for p in joint.trained(network)}
    before = discriminator.head.weight.detach().clone()
    game.term(batch).backward()
    slope = discriminator.head.weight.grad.clone()
    game.answer(batch)
    assert bool(slope.abs().sum() > 0)
    assert torch.equal(discriminator.head.weight, before - slope)
    assert discriminator.head.weight.grad is None  # nothing is left for the next step


def test_mode_seeking_by_hand_and_in_pairs_of_one_label():
    z = torch.tensor([[0.0, 0.0], [1.0, 3.0]])  # mean |z - z'| = 2
    assert mode_seeking(z, torch.tensor([[0.0], [4.0]])).item() == pytest.approx(0.5, abs=1e-4)
    assert mode_seeking(z, torch.tensor([[1.0], [1.0]])).item() == pytest.approx(1e5)  # collapsed, and still finite
    *_, game, batch = parts(mode_seeking=0.1)
    _, labels = game.drawn(batch, pairs=True)
    assert labels[:3].tolist() == labels[3:].tolist()


def test_the_classifier_judges_the_clients_own_labels_and_the_discriminator_sees_all():
    """Theorem 1 compares p_k with p: a discriminator that sees only its own classes generated cannot tell them from others."""
    *_, game, batch = parts(label=1.0)
    batch.y = torch.zeros_like(batch.y)  # a client with one class
    drawn, asked = game.drawn, []
    game.drawn = lambda *given, **chosen: asked.append(drawn(*given, **chosen)) or asked[-1]
    game.term(batch)
    game.generator_step(batch)
    (_, seen), (_, judged) = asked
    assert seen.unique().numel() > 1
    assert judged.tolist() == batch.y.tolist()


@pytest.mark.parametrize("sharing", [True, False])
def test_the_generators_loss_is_the_sum_of_its_terms(sharing):
    """Also if discriminator and classifier read the features of one pass."""
    options = {"generator_loss": "non-saturating", "mode_seeking": 0.1, "label": 0.5}
    sgd = Optimizer(name="sgd", lr=1.0)
    network, generator, _, game, batch = parts(sharing=sharing, **options, generator_optimizer=sgd)
    before, after = stepped(game, generator, batch)
    noise, labels = game.drawn(batch, mine=True, pairs=True)
    made = generator(noise, labels)
    loss = generator_loss(game.discriminate(made, network), "non-saturating") + 0.1 * mode_seeking(noise, made)
    with generated_statistics(network, "batch"):
        loss = loss + 0.5 * torch.nn.functional.cross_entropy(network(made), labels)
    for slope, old, new in zip(torch.autograd.grad(loss, list(generator.parameters())), before, after, strict=True):
        torch.testing.assert_close(new, old - slope, atol=1e-4, rtol=1e-3)


def test_without_them_the_game_draws_as_the_paper_has_it():
    _, generator, _, game, batch = parts()
    state = batch.rng.get_state()
    made = game.generate(batch)
    batch.rng.set_state(state)
    generator.train()
    torch.testing.assert_close(made, generator.sample(6, batch.rng)[0], atol=1e-6, rtol=1e-5)
