"""The training loop that every client runs: cross-entropy plus the objective's terms, on data that is already tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

__all__ = ["Batch", "Fit", "Term", "fit", "varied"]


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
    memory: Mapping[str, Tensor] | None = None,
) -> Fit:
    """Train ``network`` in place on ``data``: minimise ``base_loss(logits, y)`` plus the sum of ``terms``.

    ``parameters`` are those trained (by default all of the network's); ``after`` is called after each step, for an opponent's
    turn. A last batch of one sample is skipped if the network has batch statistics, which one sample cannot give. If a ``memory``
    is given, even an empty one, the optimiser continues from it, and its final state (:func:`optimizer_state`) is in the result.
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
    for index in batches(len(data), local.batch_size, rng, epochs=epochs, steps=steps, drop_last=drop_last, least=least):
        if device.type != "cpu":
            index = index.to(device)
        x = whole[index] if whole is not None else normalise(varied(network, data, index, local, rng))
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
    remembered = optimizer_state(optimizer, network.named_parameters()) if memory is not None else {}
    return Fit(step, float(torch.stack(last).mean()), remembered)


def varied(network: Network, data: Samples, index: Tensor, local: Local, rng: torch.Generator) -> Tensor:
    """The raw inputs at ``index``, augmented; if a frozen trunk's outputs are kept, drawn among those of augmented views."""
    if isinstance(network, Top) and data.x.is_floating_point():
        return data.viewed(index, rng)
    return augment(data.x[index], local.augment.flip, local.augment.crop, rng)
