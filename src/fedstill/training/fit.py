"""The training loop that every client runs: cross-entropy plus the objective's terms, on data that is already tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstill.core.errors import FedstillError
from fedstill.data.augment import augment
from fedstill.data.samples import Samples
from fedstill.models.network import Network
from fedstill.models.trunk import Top
from fedstill.training.batches import batches, smallest_batch, steps_an_epoch
from fedstill.training.optimizers import by_depth, make_optimizer, optimizer_state, restore_optimizer
from fedstill.training.options import Local
from fedstill.training.private import DPSGD, check_sums, forget, poisson_batches, privatise, sampling_rate, with_sample_gradients

__all__ = ["Batch", "Beside", "DataFree", "Fit", "PerSample", "Term", "fit", "steps_of", "varied"]


@dataclass
class Batch:
    """What a term of the objective may look at in one step."""

    network: Network
    x: Tensor
    y: Tensor
    features: Tensor
    logits: Tensor
    step: int
    rng: torch.Generator


Term = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class DataFree:
    """A term that uses none of the batch's samples: with DP-SGD its gradient is added after the noise."""

    term: Term

    def __call__(self, batch: Batch) -> Tensor:
        return self.term(batch)


@dataclass(frozen=True)
class PerSample:
    """A term that is the mean over the batch of something about each sample alone: with DP-SGD it is clipped with the loss."""

    term: Term

    def __call__(self, batch: Batch) -> Tensor:
        return self.term(batch)


@dataclass(frozen=True)
class Beside:
    """A module that terms of the objective train beside the network on the same batches: a discriminator. With DP-SGD it counts
    as a part of the network, in the steps in which it learns, whichever optimiser it has."""

    module: nn.Module
    learns: Callable[[int], bool]

    def parameters(self, step: int) -> list[nn.Parameter]:
        """What learns in this step."""
        return list(self.module.parameters()) if self.learns(step) else []


@dataclass(frozen=True)
class Fit:
    """The outcome of training."""

    steps: int
    loss: float  # mean over the last epoch's steps
    memory: dict[str, Tensor] = field(default_factory=dict, repr=False)  # the optimiser's, where it is kept


def fit(
    network: Network,
    data: Samples,
    local: Local,
    *,
    rng: torch.Generator,
    lr: float | None = None,
    terms: Sequence[Term] = (),
    parameters: Sequence[nn.Parameter] | None = None,
    base_loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    after: Callable[[Batch], None] | None = None,
    beside: Beside | None = None,
    memory: Mapping[str, Tensor] | None = None,
    private: DPSGD | None = None,
) -> Fit:
    """Train ``network`` in place on ``data``: minimise ``base_loss(logits, y)`` plus the sum of ``terms``.

    ``parameters`` are those trained (by default all of the network's); ``after`` is called after each step, for an opponent's
    turn. A last batch of one sample is skipped if the network has batch statistics, which one sample cannot give. If a ``memory``
    is given, even an empty one, the optimiser continues from it, and its final state (:func:`optimizer_state`) is in the result.
    With ``private``, gradients are clipped sample by sample and noised (:mod:`fedstill.training.private`), on Poisson batches,
    for the network and what learns ``beside`` it; ``after`` then gets an empty batch, so that an opponent learns from no sample.
    """
    network.train()
    chosen = list(parameters) if parameters is not None else [p for p in network.parameters() if p.requires_grad]
    rate = local.optimizer.lr if lr is None else lr
    optimizer = make_optimizer(local.optimizer, by_depth(network, chosen, local.backbone_rate, rate), rate)
    if memory:
        restore_optimizer(optimizer, network.named_parameters(), memory)
    least = smallest_batch(network)
    fixed = not (local.augment.flip or local.augment.crop)
    device = next(network.parameters()).device
    data = data.to(device)
    y_all = data.y
    assert y_all is not None, "local training needs labels"
    normalise = network.normalise
    whole = normalise(data.x) if fixed else None  # a client's data is small: normalise it once
    losses: list[Tensor] = []
    per_epoch = steps_an_epoch(len(data), local, network)
    step = 0
    epochs, steps, drop_last = local.epochs, local.steps, local.drop_last
    if private is None:
        indices = batches(len(data), local.batch_size, rng, epochs=epochs, steps=steps, drop_last=drop_last, least=least)
        free: list[Term] = []
    else:
        check_terms(terms, base_loss)
        indices = poisson_batches(len(data), local.batch_size, steps_of(len(data), local, network), private.rng)
        free, terms = [t for t in terms if isinstance(t, DataFree)], [t for t in terms if isinstance(t, PerSample)]
    expected = sampling_rate(len(data), local.batch_size) * len(data)
    watched = network if beside is None else nn.ModuleList([network, beside.module])
    with with_sample_gradients(watched) if private is not None else nullcontext() as pause:
        for index in indices:
            if device.type != "cpu":
                index = index.to(device)
            optimizer.zero_grad(set_to_none=True)
            batch: Batch | None = None
            if len(index):  # a Poisson batch may be empty
                x = whole[index] if whole is not None else normalise(varied(network, data, index, local, rng))
                y = y_all[index]
                if terms or after:
                    features = network.features(x)
                    logits = network.head(features)
                    loss = base_loss(logits, y)
                    batch = Batch(network, x, y, features, logits, step, rng)
                    for term in terms:
                        loss = loss + term(batch)
                else:
                    loss = base_loss(network(x), y)
                loss.backward()
                if private is not None and not losses:
                    check_sums([(name, p) for name, p in watched.named_parameters() if p.requires_grad], len(index))
                losses.append(loss.detach())
            if private is not None and pause is not None:
                batch = no_samples(network, step, rng)
                learning = trained_in(step, chosen, beside)
                with pause():
                    extra = free_gradients(batch, learning, free)
                privatise(learning, private, expected, extra)
                forget(watched)
            if local.clip is not None:
                nn.utils.clip_grad_norm_(chosen, local.clip)
            optimizer.step()
            if after is not None:
                assert batch is not None
                with pause() if private is not None and pause is not None else nullcontext():
                    after(batch)
            step += 1
    if not step:
        raise FedstillError(
            f"BatchNorm learns nothing from single samples: {len(data)} in batches of {local.batch_size} leave no batch of two"
        )
    last = losses[-per_epoch:] or [torch.zeros(())]
    remembered = optimizer_state(optimizer, network.named_parameters()) if memory is not None else {}
    return Fit(step, float(torch.stack(last).mean()), remembered)


def steps_of(samples: int, local: Local, network: nn.Module) -> int:
    """The number of steps of one call of :func:`fit`.

    >>> steps_of(33, Local(batch_size=32, epochs=3), nn.Linear(1, 1)), steps_of(33, Local(steps=5), nn.Linear(1, 1))
    (6, 5)
    """
    return local.steps if local.steps is not None else local.epochs * steps_an_epoch(samples, local, network)


def check_terms(terms: Sequence[Term], base_loss: Callable[..., Tensor]) -> None:
    """Refuse an objective that is not a sum over samples, whose gradients cannot be clipped one by one."""
    if not all(isinstance(term, DataFree | PerSample) for term in terms):
        raise FedstillError("privacy.sample clips the gradient of each sample, but a term of this objective couples samples")
    if base_loss is not F.cross_entropy:
        raise FedstillError("privacy.sample is for cross-entropy, but this system minimises another loss")


def trained_in(step: int, parameters: Sequence[nn.Parameter], beside: Beside | None) -> list[nn.Parameter]:
    """What learns in a step: the network's ``parameters``, and those of the module beside it unless it rests."""
    if beside is None:
        return [p for p in parameters if p.requires_grad]
    other = {id(p) for p in beside.module.parameters()}
    return [p for p in [*(p for p in parameters if id(p) not in other), *beside.parameters(step)] if p.requires_grad]


def no_samples(network: Network, step: int, rng: torch.Generator) -> Batch:
    """What terms and opponents see that may use no sample of the client."""
    empty = torch.empty(0, device=next(network.parameters()).device)
    return Batch(network, empty, empty, empty, empty, step, rng)


def free_gradients(batch: Batch, parameters: Sequence[nn.Parameter], terms: Sequence[Term]) -> list[Tensor | None] | None:
    """The gradient of terms that use no sample; None if there is none."""
    total = torch.stack([term(batch) for term in terms]).sum() if terms else batch.x.sum()
    return list(torch.autograd.grad(total, list(parameters), allow_unused=True)) if total.requires_grad else None


def varied(network: Network, data: Samples, index: Tensor, local: Local, rng: torch.Generator) -> Tensor:
    """The raw inputs at ``index``, augmented; if a frozen trunk's outputs are kept, drawn among those of augmented views."""
    if isinstance(network, Top) and data.x.is_floating_point():
        return data.viewed(index, rng)
    return augment(data.x[index], local.augment.flip, local.augment.crop, rng)
