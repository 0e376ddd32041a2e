"""A network's predictions, computed here or, in pieces, in the engine's worker processes: the same bits either way.

A piece is a whole number of batches, so every sample is in the same batch wherever it is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor

from fedstill.core.message import Message
from fedstill.data.samples import Samples, resident
from fedstill.models.network import Network
from fedstill.models.predict import BATCH, apply
from fedstill.task.task import Task

__all__ = ["Later", "ahead", "predict_later", "predicted", "right_later", "streamed"]

What = Literal["logits", "features"]
Later = Callable[[], Tensor]  # waits for predictions
JOB = "fedstill.task.predictions:predicted"


def predict_later(task: Task | None, network: Network, samples: Samples, size: int = BATCH, what: What = "logits") -> Later:
    """Start to compute the logits or features of every sample, with the network's present weights; returns what waits for them.

    Without workers, or for a network that they do not have, they are computed at once.
    """
    named = task.networks.named(network) if task is not None and task.jobs is not None and len(samples) > size else None
    if task is None or task.jobs is None or named is None or task.device.type != "cpu":
        device = next(network.parameters()).device
        found = apply(network if what == "logits" else network.features, network, Samples(resident(samples.x, device)), size)
        return lambda: found
    message = Message.of(model=network.state_dict(), prototype=named[0], role=named[1], size=size, what=what)
    batches = -(-len(samples) // size)
    share = -(-batches // task.jobs.processes) * size
    calls = [{"first": first, "last": first + share} for first in range(0, len(samples), share)]
    pieces = task.jobs.submit(JOB, message, {"x": samples.x}, calls)
    return lambda: torch.cat([piece().tensors["predicted/outputs"] for piece in pieces])


def predicted(task: Task, message: Message, shared: dict[str, Tensor]) -> Message:
    """One piece, in a worker process."""
    values = message.values
    network = task.networks.load(str(values["prototype"]), message.group("model"), str(values["role"]))
    samples = Samples(shared["x"][int(values["first"]) : int(values["last"])])
    function = network if values["what"] == "logits" else network.features
    return Message.of(predicted={"outputs": apply(function, network, samples, int(values["size"]))})


def ahead(task: Task | None) -> int:
    """How many networks predict at the same time, besides the one that is waited for."""
    return 0 if task is None or task.jobs is None else task.jobs.processes


def streamed(task: Task | None, loads: Iterable[Callable[[], Network]], samples: Samples, size: int = BATCH) -> Iterator[Tensor]:
    """The logits of one network after another, in their order, with only a few in memory or on their way."""
    waiting: deque[Later] = deque()
    for load in loads:
        waiting.append(predict_later(task, load(), samples, size))
        if len(waiting) > ahead(task):
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()


def right_later(task: Task, network: Network, samples: Samples, size: int = BATCH) -> Callable[[], float]:
    """The share of labelled samples that the network classifies correctly, as :func:`fedstill.models.predict.accuracy` has it."""
    labels = samples.y
    if labels is None or len(samples) == 0:
        return lambda: float("nan")
    found = predict_later(task, network, samples, size)

    def waited() -> float:
        said = found().argmax(1)
        return float((said == labels.to(said.device)).double().mean())

    return waited
