"""Averages of the replies' weights, streamed so that one reply is in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from fedstill.algorithm import Reply, Round, Server
from fedstill.core.message import State, clone
from fedstill.fusion.merges.contract import merge
from fedstill.models.statistics import recalibrate
from fedstill.task import Task

__all__ = [
    "average",
    "by_examples",
    "merge_models",
    "note_shares",
    "uniform",
    "weighted_sum",
    "with_statistics",
]


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
                total[name].add_(tensor.to(total[name].device, torch.float64), alpha=weight)  # one may come from a file
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
    """Each prototype averaged over its own clients, never across architectures; one without clients this round stays unchanged.

    BatchNorm statistics follow ``model.buffers``: averaged with the weights, or re-estimated on the server's data.
    """
    merged = {}
    for name, before in server.models.items():
        group = [reply for reply in replies if reply.prototype == name]
        merged[name] = with_statistics(task, name, average(group, weigh)) if group else before
    return merged


def with_statistics(task: Task, prototype: str, state: State) -> State:
    """``state`` with the BatchNorm statistics that ``model.buffers`` selects: its own, or re-estimated for it."""
    if task.config.model.buffers == "average":
        return state
    return clone(recalibrate(task.networks.load(prototype, state, role="student"), task.statistics_data).state_dict())


def note_shares(name: str, replies: Sequence[Reply], round: Round) -> None:
    """Note each client's weight in the average that it enters, if the merge ``name`` is an average."""
    weigh = {"examples": by_examples, "uniform": uniform}.get(name)
    if weigh is None:  # another merge notes its own
        own = round.notes.get("merge_weights")
        if own is not None:
            round.note(weights=own)
        return
    shares: dict[str, float] = {}
    for prototype in dict.fromkeys(reply.prototype for reply in replies):
        group = [reply for reply in replies if reply.prototype == prototype]
        shares |= {reply.client: float(f"{share:.5g}") for reply, share in zip(group, weigh(group), strict=True)}
    round.note(weights={reply.client: shares[reply.client] for reply in replies})


@merge("examples")
def _by_examples(task: Task, server: Server, replies: Sequence[Reply], round: Round) -> dict[str, State]:
    """Each prototype's average, weighted by the numbers of examples."""
    return merge_models(task, server, replies, by_examples)


@merge("uniform")
def _uniform(task: Task, server: Server, replies: Sequence[Reply], round: Round) -> dict[str, State]:
    """Each prototype's plain average."""
    return merge_models(task, server, replies, uniform)
