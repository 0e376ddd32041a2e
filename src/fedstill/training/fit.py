"""The training loop that every client runs: cross-entropy plus the objective's terms, on data that is already tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstill.core.errors import FedstillError
from fedstill.data.augment import augment
from fedstill.data.samples import Samples
from fedstill.models.network import Network
from fedstill.training.options import Local, Optimizer, Schedule

__all__ = [
    "Batch",
    "Fit",
    "Term",
    "batches",
    "fit",
    "learning_rate",
    "memory_of",
    "optimiser",
    "remind",
    "smallest_batch",
    "steps_an_epoch",
]


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
class Fit:
    """What training did."""

    steps: int
    loss: float  # mean over the last epoch's steps
    memory: dict[str, Tensor] = field(default_factory=dict, repr=False)  # the optimiser's, where it is kept


def memory_of(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Tensor]:
    """All that an optimiser remembers of these parameters (velocities, moments, step counts), as ``"what name"``."""
    return {
        f"{what} {name}": value.detach().clone()
        for name, parameter in named
        for what, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def remind(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]], memory: Mapping[str, Tensor]) -> None:
    """Let an optimiser go on from what :func:`memory_of` found.

    >>> weight = nn.Parameter(torch.ones(1))
    >>> def step(memory):
    ...     adam = torch.optim.Adam([weight], lr=0.1)
    ...     remind(adam, [("w", weight)], memory)
    ...     weight.grad = torch.ones(1)
    ...     adam.step()
    ...     return memory_of(adam, [("w", weight)])
    >>> sorted(step(step({})))
    ['exp_avg w', 'exp_avg_sq w', 'step w']
    >>> step(step({}))["step w"].item()
    2.0
    """
    parameters = dict(named)
    for key, value in memory.items():
        what, name = key.split(" ", 1)
        optimizer.state[parameters[name]][what] = value.clone() if what == "step" else value.to(parameters[name].device).clone()


def optimiser(options: Optimizer, parameters: Sequence[nn.Parameter], lr: float | None = None) -> torch.optim.Optimizer:
    """The torch optimiser that the options name."""
    rate = options.lr if lr is None else lr
    if options.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=rate,
            momentum=options.momentum,
            nesterov=options.nesterov and options.momentum > 0,
            weight_decay=options.weight_decay,
            foreach=True,
        )
    kind = torch.optim.Adam if options.name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, betas=options.betas, weight_decay=options.weight_decay, foreach=True)


def learning_rate(base: float, schedule: Schedule, round: int, rounds: int) -> float:
    """The rate in ``round`` (from 1) of ``rounds``.

    >>> learning_rate(0.01, Schedule(kind="cosine", final=0.0001), 1, 30)
    0.01
    >>> round(learning_rate(0.01, Schedule(kind="cosine", final=0.0001), 30, 30), 6)
    0.0001
    """
    done = (round - 1) / max(1, rounds - 1)
    if schedule.kind == "cosine":
        return schedule.final + (base - schedule.final) * (1 + math.cos(math.pi * min(1.0, done))) / 2
    if schedule.kind == "exponential":
        return base * schedule.factor ** (round - 1)
    return base


def batches(
    n: int, size: int, rng: torch.Generator, *, epochs: int = 1, steps: int | None = None, drop_last: bool = False, least: int = 1
) -> Iterator[Tensor]:
    """Shuffled index batches: whole epochs, or exactly ``steps`` batches over as many epochs as that takes.

    A last batch of fewer than ``least`` samples is left out, and is no step.

    >>> [len(b) for b in batches(5, 2, torch.Generator().manual_seed(0))]
    [2, 2, 1]
    >>> len(list(batches(5, 2, torch.Generator().manual_seed(0), steps=7)))
    7
    >>> [len(b) for b in batches(5, 2, torch.Generator().manual_seed(0), steps=5, least=2)]
    [2, 2, 2, 2, 2]
    """
    if min(n, size) < least:
        return
    done = 0
    epoch = 0
    while steps is not None or epoch < epochs:
        order = torch.randperm(n, generator=rng)
        for index in order.split(size):
            if len(index) < (min(size, n) if drop_last else least):
                break
            yield index
            done += 1
            if steps is not None and done == steps:
                return
        epoch += 1


def smallest_batch(network: nn.Module) -> int:
    """How many samples a batch must have: two where batch statistics are needed, which one sample cannot give."""
    return 2 if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()) else 1


def steps_an_epoch(samples: int, local: Local, network: nn.Module) -> int:
    """The batches of one pass; what is too small, or to be dropped, is none.

    >>> [steps_an_epoch(33, Local(batch_size=32), network) for network in (nn.Linear(1, 1), nn.BatchNorm1d(1))]
    [2, 1]
    """
    full, rest = divmod(samples, local.batch_size)
    return max(1, full + (rest >= smallest_batch(network) and not local.drop_last))


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
    memory: Mapping[str, Tensor] | None = None,
) -> Fit:
    """Train ``network`` in place on ``data``: minimise ``base_loss(logits, y)`` plus the sum of ``terms``.

    ``parameters`` says what is trained (all of the network by default); ``after`` is called when a step has been taken, for
    an opponent's turn. A last batch of one sample is skipped where the network has
    batch statistics, which one sample cannot give. Where a ``memory`` is given, be it empty, the optimiser goes on from it, and
    what it remembers in the end (:func:`memory_of`) is in the result.
    """
    network.train()
    chosen = list(parameters) if parameters is not None else [p for p in network.parameters() if p.requires_grad]
    optimizer = optimiser(local.optimizer, chosen, lr)
    if memory:
        remind(optimizer, network.named_parameters(), memory)
    least = smallest_batch(network)
    flip, crop = local.augment.flip, local.augment.crop
    device = next(network.parameters()).device
    data = data.to(device)
    x_all, y_all = data.x, data.y
    assert y_all is not None, "local training needs labels"
    normalise = network.normalise
    whole = None if flip or crop else normalise(x_all)  # a client's data is small: normalise it once
    losses: list[Tensor] = []
    per_epoch = steps_an_epoch(len(data), local, network)
    step = 0
    epochs, steps, drop_last = local.epochs, local.steps, local.drop_last
    for index in batches(len(data), local.batch_size, rng, epochs=epochs, steps=steps, drop_last=drop_last, least=least):
        if device.type != "cpu":
            index = index.to(device)
        x = whole[index] if whole is not None else normalise(augment(x_all[index], flip, crop, rng))
        y = y_all[index]
        optimizer.zero_grad(set_to_none=True)
        batch: Batch | None = None
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
        if local.clip is not None:
            nn.utils.clip_grad_norm_(chosen, local.clip)
        optimizer.step()
        if after is not None:
            assert batch is not None
            after(batch)
        losses.append(loss.detach())
        step += 1
    if not losses:
        raise FedstillError(
            f"BatchNorm learns nothing from single samples: {len(data)} in batches of {local.batch_size} leave no batch of two"
        )
    last = losses[-per_epoch:]
    remembered = memory_of(optimizer, network.named_parameters()) if memory is not None else {}
    return Fit(step, float(torch.stack(last).mean()), remembered)
