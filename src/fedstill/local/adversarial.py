"""The adversarial game of DaFKD's clients (Wang et al., CVPR 2023): a classifier that also discriminates, and a generator.

The discriminator says how likely a sample is from the client's own data. It shares every layer before the last with the
classifier, so it is one linear layer on the classifier's features; without sharing it is a network of its own.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedstill.core.message import State, clone
from fedstill.core.options import Part, Positive
from fedstill.models.generator import Generator
from fedstill.models.layers import BatchNorm
from fedstill.models.network import Network
from fedstill.models.statistics import freeze_statistics
from fedstill.training.fit import Batch, Beside, DataFree, PerSample, Term
from fedstill.training.optimizers import make_optimizer
from fedstill.training.options import Optimizer

__all__ = [
    "Adversarial",
    "Discriminator",
    "Game",
    "adversarial_loss",
    "generated_statistics",
    "generator_loss",
    "gradient_penalty",
    "mode_seeking",
]


class Adversarial(Part):
    """How classifier, discriminator and generator play; the defaults are the paper's."""

    weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the discriminator's loss (Eq. 2) in the joint loss (Eq. 9). The authors' code adds the means over real and
    generated samples, which is 2."""

    shared_gradient: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Factor of the discriminator's gradient in the layers that it shares with the classifier: 1 is Eq. 9 as written. With 0 only
    the discriminator's head learns from its loss, on the features that the classifier has learned. A gradient penalty is not
    scaled."""

    generator_loss: Literal["saturating", "non-saturating"] = "saturating"
    """``saturating``: E log(1 - D(G(z))), Eq. 3 as written. ``non-saturating``: -E log D(G(z)), as in the authors' code."""

    # The decay is AdamW's: added to the gradient, as Adam does, it outweighs the small gradients of the noise's embedding, and
    # the generator ends with one image a class (docs/results/dafkd.md).
    generator_optimizer: Optimizer = Optimizer(name="adamw", lr=1e-3, weight_decay=1e-3)
    """The generator's optimiser. The paper gives the rate and the decay, but names no optimiser."""

    discriminator_optimizer: Optimizer | None = None
    """Optimiser of the discriminator's own layers: its head, or all without sharing. That of local training if not set."""

    mode_seeking: Annotated[float, Field(ge=0)] = 0.0
    """Weight of mode seeking in the generator's loss: ``|z - z'| / |G(z, y) - G(z', y)|`` over pairs of one label (Mao et al.,
    CVPR 2019). Neither in the paper nor in the authors' code."""

    label: Annotated[float, Field(ge=0)] = 0.0
    """Weight, in the generator's loss, of the classifier's cross-entropy on the label that a sample was generated for. Labels are
    drawn from the client's own then; the discriminator still sees generated samples of all labels. Neither in the paper, where
    the label is in no loss, nor in the authors' code."""

    gradient_penalty: Annotated[float, Field(ge=0)] = 0.0
    """Weight of a gradient penalty on the discriminator; not in the paper, 0.3 in the authors' code."""

    penalty_norm: Literal["sample", "pixel"] = "sample"
    """The norm in the penalty: of a sample's whole gradient (``sample``), or over the channels of each pixel (``pixel``, the
    authors' code)."""

    rounds: Positive | None = None
    """The discriminator learns only in the first so many rounds; in all if not set."""

    generator_rounds: Positive | None = None
    """The generator learns only in the first so many rounds; in all if not set."""

    epochs: Positive | None = None
    """Discriminator and generator learn only in the first so many epochs of a round; in all if not set."""

    # "running" was the least stable in the one seed tried (docs/results/dafkd.md).
    generated_norm: Literal["batch", "updated", "running"] = "batch"
    """BatchNorm of generated samples in the shared layers. ``batch``: by their own statistics, without a change to the running
    ones. ``updated``: like any batch, so that the running statistics follow (the authors' code). ``running``: by the running
    statistics, as on the server."""


def adversarial_loss(real: Tensor, generated: Tensor) -> Tensor:
    """Eq. 2, of the discriminator's logits: ``-1/(D + D') [ sum log f(x) + sum log(1 - f(x')) ]``.

    >>> round(float(adversarial_loss(torch.zeros(3), torch.zeros(1))), 4)  # f = 1/2 everywhere: log 2
    0.6931
    """
    # log f = -softplus(-d) and log(1 - f) = -softplus(d): exact where the sigmoid would round to 0 or 1
    return (F.softplus(-real).sum() + F.softplus(generated).sum()) / (len(real) + len(generated))


def generator_loss(generated: Tensor, kind: str = "saturating") -> Tensor:
    """What the generator minimises, of the discriminator's logits: Eq. 3's ``E log(1 - f)``, or ``-E log f``.

    >>> d = torch.zeros(2)
    >>> round(float(generator_loss(d)), 4), round(float(generator_loss(d, "non-saturating")), 4)
    (-0.6931, 0.6931)
    """
    return -F.softplus(generated).mean() if kind == "saturating" else F.softplus(-generated).mean()


def mode_seeking(noise: Tensor, generated: Tensor) -> Tensor:
    """``|z - z'| / |G(z) - G(z')|``, each a mean over the pairs that the two halves of the batch form. It is large if the
    generator makes the same sample from different noise.

    >>> z = torch.tensor([[0.0], [2.0]])
    >>> [round(float(mode_seeking(z, x)), 3) for x in (torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [1.5]]))]
    [2.0, 4.0]
    """
    half = len(noise) // 2
    apart = (noise[:half] - noise[half : 2 * half]).abs().mean()
    return apart / ((generated[:half] - generated[half : 2 * half]).abs().mean() + 1e-5 * apart)


def gradient_penalty(
    discriminate: Callable[[Tensor], Tensor], real: Tensor, generated: Tensor, rng: torch.Generator, norm: str = "sample"
) -> Tensor:
    """``mean (||grad_x f(x~)|| - 1)^2`` at ``x~ = u x + (1 - u) x'``, with one uniform u per sample.

    ``norm`` is that of a sample's whole gradient, or of its channels at each ``pixel`` as in the authors' code.

    >>> linear = lambda x: x.flatten(1).sum(1) * 100  # the sigmoid is flat there: no gradient at all
    >>> x = torch.ones(2, 1, 2, 2)
    >>> gradient_penalty(linear, x, x, torch.Generator()).item()
    1.0
    """
    n = min(len(real), len(generated))
    u = torch.rand(n, *[1] * (real.ndim - 1), generator=rng).to(real.device)
    between = (u * real[:n] + (1 - u) * generated[:n]).detach().requires_grad_()
    (slope,) = torch.autograd.grad(torch.sigmoid(discriminate(between)).sum(), between, create_graph=True)
    size: Tensor = slope.norm(dim=1) if norm == "pixel" else slope.flatten(1).norm(dim=1)
    return (size - 1).square().mean()


class Discriminator(nn.Module):
    """``f(theta; x)`` as a logit: ``head`` on the features of a classifier, or of its ``own`` network if no layers are shared.

    >>> from fedstill.models import build
    >>> classifier = build("mlp", classes=3, shape=(1, 4, 4), hidden=[5], seed=0)
    >>> shared, alone = Discriminator(classifier), Discriminator(classifier, sharing=False)
    >>> sum(t.numel() for t in shared.state().values()), sum(t.numel() for t in alone.state().values())
    (6, 91)
    """

    def __init__(self, classifier: Network, state: Mapping[str, Tensor] | None = None, *, sharing: bool = True):
        super().__init__()
        self.own: Network | None = None
        device = next(classifier.parameters()).device
        head = nn.Linear(classifier.feature_dim, 1).to(device)
        # start undecided, f = 1/2 everywhere: the same for every client, without a random draw
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        if not sharing:
            self.own = copy.deepcopy(classifier)  # starts as a copy of the classifier, then trains separately
            self.own.head = head
        self.head = head
        if state:
            self.load(state)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a :meth:`state`."""
        whole = self.own if self.own is not None else nn.ModuleDict({"head": self.head})
        whole.load_state_dict(dict(state))

    def state(self) -> State:
        """The tensors of the discriminator alone: its head, or a whole network."""
        whole = self.own if self.own is not None else nn.ModuleDict({"head": self.head})
        return clone(whole.state_dict())

    def body(self, classifier: Network) -> Network:
        """The network whose features the head reads."""
        return self.own if self.own is not None else classifier

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        """Logits (n,) of inputs ``x`` whose features in the classifier are ``features``."""
        return self.judge(self.own.features(x) if self.own is not None else features)

    def judge(self, features: Tensor) -> Tensor:
        """Logits (n,) of features of the network that the head reads."""
        logits: Tensor = self.head(features)
        return logits.squeeze(1)


class Game:
    """One client's turn of the game (Algorithm 1, lines 19 to 25).

    :meth:`term` is the discriminator's part of the joint loss (Eq. 9), :meth:`generator_step` the generator's answer (Eq. 3).
    With ``features`` the generator makes features of the layer before the head instead of samples (Appendix A).

    If the client trains by DP-SGD, ``expected`` is the expected size of a batch, which is public. Then :attr:`terms` are two: the
    real half of Eq. 2, clipped with each sample's loss, and the generated half, which uses no sample of the client, on batches of
    ``expected``. The generator sees only the discriminator, and its labels are uniform.
    """

    def __init__(
        self,
        discriminator: Discriminator,
        generator: Generator,
        options: Adversarial,
        *,
        round: int,
        steps_per_epoch: int,
        features: bool = False,
        expected: int | None = None,
    ):
        self.discriminator, self.generator, self.options, self.features = discriminator, generator, options, features
        self.optimizer = make_optimizer(options.generator_optimizer, list(generator.parameters()))
        self.own: torch.optim.Optimizer | None = None
        if options.discriminator_optimizer is not None:
            self.own = make_optimizer(options.discriminator_optimizer, list(discriminator.parameters()))
        self.expected = expected
        self.round, self.last = round, options.epochs * steps_per_epoch if options.epochs else None
        generator.train()

    def discriminator_learns(self, step: int) -> bool:
        """Whether the discriminator takes this step."""
        return self.round <= (self.options.rounds or self.round) and (self.last is None or step < self.last)

    def generator_learns(self, step: int) -> bool:
        """Whether the generator takes this step."""
        return self.round <= (self.options.generator_rounds or self.round) and (self.last is None or step < self.last)

    def generate(self, batch: Batch) -> Tensor:
        """As many generated samples as the batch has, of all labels: the discriminator learns which of them are not the
        client's, as in Theorem 1, where it compares p_k with p."""
        return self.made(*self.drawn(batch))

    def drawn(self, batch: Batch, mine: bool = False, pairs: bool = False) -> tuple[Tensor, Tensor | None]:
        """Noise, and the labels of a conditional generator: uniform, or those of the batch if ``mine`` and training is not
        private. At least two, since the generator's BatchNorm cannot learn from one. ``pairs`` gives both halves the same labels.
        """
        n = max(2, len(batch.x) if self.expected is None else self.expected)
        noise = self.generator.draw(n, batch.rng)
        if not self.generator.conditional:
            return noise, None
        if mine and self.expected is None:
            labels = batch.y.repeat(n)[:n]
        else:
            labels = torch.randint(self.generator.classes, (n,), generator=batch.rng, device=batch.rng.device).to(noise.device)
        if pairs:
            half = n // 2
            labels = torch.cat([labels[:half], labels[:half], labels[2 * half :]])
        return noise, labels

    def made(self, noise: Tensor, labels: Tensor | None) -> Tensor:
        """The samples that the generator makes from these."""
        samples: Tensor = self.generator(noise) if labels is None else self.generator(noise, labels)
        return samples

    def told(self, generated: Tensor, network: Network, classify: bool) -> tuple[Tensor, Tensor | None]:
        """The discriminator's logits of generated samples (or features), and the classifier's if wanted: both heads read the
        same features where layers are shared, so one pass through them serves both."""
        if not classify:
            return self.discriminate(generated, network), None
        if self.features:
            return self.discriminator.judge(generated), network.head(generated)
        with generated_statistics(network, self.options.generated_norm):
            found = network.features(generated)
        apart = self.discriminator.own is not None
        judged = self.discriminate(generated, network) if apart else self.discriminator.judge(found)
        return judged, network.head(found)

    def discriminate(self, generated: Tensor, network: Network, share: float = 1.0) -> Tensor:
        """The discriminator's logits of generated samples (or features). ``share`` scales the gradient in shared layers."""
        if self.features:
            return self.discriminator.judge(generated)
        body = self.discriminator.body(network)
        alone = self.discriminator.own is not None
        with generated_statistics(body, self.options.generated_norm), torch.set_grad_enabled(alone or share > 0):
            found = body.features(generated)
        return self.discriminator.judge(found if alone else scaled_gradient(found, share))

    def real(self, batch: Batch) -> Tensor:
        """The discriminator's logits of the batch."""
        logits: Tensor = self.discriminator(batch.x, scaled_gradient(batch.features, self.options.shared_gradient))
        return logits

    @property
    def terms(self) -> list[Term]:
        """The discriminator's part of the joint loss; in two if gradients are clipped sample by sample."""
        return [self.term] if self.expected is None else [PerSample(self.real_term), DataFree(self.generated_term)]

    def real_term(self, batch: Batch) -> Tensor:
        """The half of Eq. 2 on real samples, where real and generated ones are equally many: a mean over the batch."""
        if not self.discriminator_learns(batch.step):
            return batch.x.new_zeros(())
        return self.options.weight / 2 * F.softplus(-self.real(batch)).mean()

    def generated_term(self, batch: Batch) -> Tensor:
        """The other half of Eq. 2, which uses no real sample."""
        if not self.discriminator_learns(batch.step):
            return batch.x.new_zeros(())
        with torch.no_grad():
            generated = self.generate(batch)
        return (
            self.options.weight / 2 * F.softplus(self.discriminate(generated, batch.network, self.options.shared_gradient)).mean()
        )

    def term(self, batch: Batch) -> Tensor:
        """Line 22: Eq. 2 on the batch and as many generated samples, weighed as in Eq. 9."""
        if not self.discriminator_learns(batch.step):
            return batch.x.new_zeros(())
        with torch.no_grad():
            generated = self.generate(batch)  # line 21
        real, made = self.real(batch), self.discriminate(generated, batch.network, self.options.shared_gradient)
        loss = self.options.weight * adversarial_loss(real, made)
        if self.options.gradient_penalty:
            seen = batch.features.detach() if self.features else batch.x
            judge = lambda x: self.discriminate(x, batch.network)
            penalty = gradient_penalty(judge, seen, generated, batch.rng, self.options.penalty_norm)
            loss = loss + self.options.gradient_penalty * penalty
        return loss

    def trained(self, network: Network) -> list[nn.Parameter]:
        """What the joint loss trains: the classifier, and the discriminator unless it has an optimiser of its own."""
        return [*network.parameters(), *(self.discriminator.parameters() if self.own is None else ())]

    @property
    def beside(self) -> Beside:
        """The discriminator, as :func:`~fedstill.training.fit.fit` needs to know it."""
        return Beside(self.discriminator, self.discriminator_learns)

    def answer(self, batch: Batch) -> None:
        """What follows a step of the joint loss: the discriminator's step, if its optimiser is its own, and the generator's."""
        if self.own is not None and self.discriminator_learns(batch.step):
            self.own.step()
            self.own.zero_grad(set_to_none=True)
        self.generator_step(batch)

    def generator_step(self, batch: Batch) -> None:
        """Lines 23 and 24: fresh noise, and a step of the generator against the discriminator as it now is."""
        if not self.generator_learns(batch.step):
            return
        options = self.options
        # a client's classifier knows nothing of labels that it never saw
        noise, labels = self.drawn(batch, mine=options.label > 0, pairs=options.mode_seeking > 0)
        generated = self.made(noise, labels)
        judged, logits = self.told(generated, batch.network, classify=options.label > 0 and labels is not None)
        loss = generator_loss(judged, options.generator_loss)
        if options.mode_seeking:
            loss = loss + options.mode_seeking * mode_seeking(noise, generated)
        if logits is not None and labels is not None:
            loss = loss + options.label * F.cross_entropy(logits, labels)
        parameters = list(self.generator.parameters())
        # only the generator's gradients are computed: the classifier's are neither needed nor touched
        for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = slope
        self.optimizer.step()


def scaled_gradient(features: Tensor, factor: float) -> Tensor:
    """The same features, with ``factor`` times their gradient.

    >>> x = torch.ones(1, requires_grad=True)
    >>> scaled_gradient(3 * x, 0.5).backward()
    >>> x.grad.item(), scaled_gradient(x, 0.0).requires_grad
    (1.5, False)
    """
    if factor == 1:
        return features
    return features.detach() if factor == 0 else factor * features + (1 - factor) * features.detach()


@contextlib.contextmanager
def generated_statistics(network: nn.Module, policy: str) -> Iterator[None]:
    """BatchNorm as :attr:`Adversarial.generated_norm` says, while generated samples pass."""
    layers = [module for module in network.modules() if isinstance(module, BatchNorm)]
    kept = [(layer, layer.training, layer.track_running_stats) for layer in layers]
    if policy == "running":
        freeze_statistics(network)
    elif policy == "batch":
        for layer in layers:
            layer.track_running_stats = False
    try:
        yield
    finally:
        for layer, training, tracking in kept:
            layer.train(training)
            layer.track_running_stats = tracking
