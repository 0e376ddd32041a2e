"""Where the student starts: averages of the replies' weights, streamed so that one reply is in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedstill.algorithm import Reply, Server
from fedstill.fusion.norm import recalibrate
from fedstill.message import State, clone

if TYPE_CHECKING:
    from fedstill.task import Task

__all__ = ["average", "by_examples", "merge_models", "uniform", "weighted_sum"]


def by_examples(replies: Sequence[Reply]) -> list[float]:
    """Weights ``n_k / sum n`` (FedAvg; FedDF Alg. 1, line 6)."""
    total = sum(reply.samples for reply in replies)
    return [reply.samples / total for reply in replies]


def uniform(replies: Sequence[Reply]) -> list[float]:
    """Weights ``1 / K``."""
    return [1 / len(replies)] * len(replies)


def weighted_sum(states: Iterable[State], weights: Sequence[float]) -> State:
    """``sum_k w_k * state_k``. Floating tensors are summed in float64 and returned in their own type; an integer tensor (a
    counter such as BatchNorm's ``num_batches_tracked``) is summed too, rounded, and stays an integer.

    >>> one, other = {"w": torch.tensor([1.0]), "n": torch.tensor(3)}, {"w": torch.tensor([3.0]), "n": torch.tensor(5)}
    >>> state = weighted_sum([one, other], [0.5, 0.5])
    >>> state["w"].tolist(), state["n"].item(), state["n"].dtype
    ([2.0], 4, torch.int64)
    """
    total: State = {}
    kinds: dict[str, torch.dtype] = {}
    for state, weight in zip(states, weights, strict=True):
        for name, tensor in state.items():
            if name not in total:
                kinds[name] = tensor.dtype
                total[name] = tensor.to(torch.float64) * weight
            else:
                total[name].add_(tensor.to(torch.float64), alpha=weight)
    return {name: _back(tensor, kinds[name]) for name, tensor in total.items()}


def _back(tensor: Tensor, kind: torch.dtype) -> Tensor:
    return tensor.to(kind) if kind.is_floating_point else tensor.round().to(kind)


def average(replies: Sequence[Reply], weigh: Callable[[Sequence[Reply]], Sequence[float]] = by_examples) -> State:
    """The weighted average of the replies' models, buffers included."""
    return weighted_sum((reply.model for reply in replies), weigh(replies))


def merge_models(
    task: Task,
    server: Server,
    replies: Sequence[Reply],
    weigh: Callable[[Sequence[Reply]], Sequence[float]] = by_examples,
) -> dict[str, State]:
    """Each prototype averaged over its own clients, never across architectures; one without clients this round carries on.

    BatchNorm statistics follow ``model.buffers``: averaged with the weights, or estimated anew on the server's own data.
    """
    merged = {}
    for name, before in server.models.items():
        group = [reply for reply in replies if reply.prototype == name]
        merged[name] = average(group, weigh) if group else before
        if group and task.config.model.buffers != "average":
            merged[name] = clone(recalibrate(task.load(name, merged[name]), task.statistics_data).state_dict())
    return merged
