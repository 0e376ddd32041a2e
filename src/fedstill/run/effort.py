"""How much work a run is, and roughly how long it will take: steps are counted, and a few of them are timed."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedstill.core.console import counted, duration

if TYPE_CHECKING:  # slow: bring torch
    from fedstill.task import Task

__all__ = ["Effort", "effort_of"]

TRIED = 2  # steps to time, after one warm-up step
FEW = 50  # a run with fewer steps is not worth the trial


@dataclass(frozen=True)
class Effort:
    """The steps of a round, and the seconds that all rounds take together; None if unknown."""

    clients: int
    train: int  # steps of the clients, in a round
    distil: int  # of the server
    rounds: int
    seconds: float | None = None

    def __str__(self) -> str:
        """In words.

        >>> print(Effort(3, 57, 64, 4, 130.0))
        a round: 57 steps of training by 3 clients, 64 steps of distillation; 4 rounds take roughly 2 min
        """
        told = f"a round: {counted(self.train, 'step')} of training by {counted(self.clients, 'client')}"
        told += f", {counted(self.distil, 'step')} of distillation" if self.distil else ""
        takes = "takes" if self.rounds == 1 else "take"
        return told + (f"; {counted(self.rounds, 'round')} {takes} roughly {duration(self.seconds)}" if self.seconds else "")


def effort_of(task: Task, rounds: int) -> Effort:
    """The work in ``rounds`` rounds. Only steps that all systems take are counted; those of a generator are extra."""
    config, clients = task.config, task.clients
    taking = min(len(clients), config.clients.per_round or max(1, round(config.clients.fraction * len(clients))))
    steps = sum(_local_steps(config.local, info.samples) for info in clients.values())
    train = round(steps * taking / len(clients))
    distil = _distilling(task)
    found = Effort(taking, train, distil, rounds)
    if rounds * (train + distil) < FEW:
        return found
    # forward passes of every teacher over the pool, and over the test sets: a third of a step each
    looked = sum(len(test) for test in task.tests.values()) + (taking * len(task.pool) if distil and task.pool else 0)
    one = _step_seconds(task)
    training = train * one / max(1, min(config.engine.workers, taking))
    other = (distil + looked / config.local.batch_size / 3) * one
    return Effort(taking, train, distil, rounds, rounds * (training + other))


def _local_steps(local: Any, samples: int) -> int:
    return int(local.steps or local.epochs * -(-samples // local.batch_size))


def _distilling(task: Task) -> int:
    """The server's steps in a round, if the system distils."""
    options = task.config.algorithm.get("distillation")
    if not isinstance(options, dict):
        return 0
    source = task.config.algorithm.get("source") or {}
    size = source["size"] if source.get("kind", "data") != "data" else len(task.pool) if task.pool else 0
    epochs = options.get("epochs")
    each = epochs * -(-size // options["batch_size"]) if epochs else options.get("steps", 0)
    students = 1 if task.config.model.student else len(task.networks.prototypes)
    return int(each * students)


def _step_seconds(task: Task) -> float:
    """How long a step of local training takes, on average over the architectures, timed on copies of the networks."""
    import torch  # slow
    from torch.nn import functional as F  # slow

    from fedstill.training.optimizers import make_optimizer  # slow

    took = []
    with torch.random.fork_rng(devices=[]):  # the run's random numbers stay the same
        for prototype in task.networks.prototypes:
            info = next((one for one in task.clients.values() if one.prototype == prototype), None)
            if info is None or info.samples == 0:
                continue
            network = copy.deepcopy(task.networks.get(prototype)).eval()  # BatchNorm would need two samples in train mode
            data = task.domains[info.domain].train.take(torch.from_numpy(info.indices[: task.config.local.batch_size]))
            assert data.y is not None
            optimizer = make_optimizer(task.config.local.optimizer, [p for p in network.parameters() if p.requires_grad])
            seconds = []
            for _ in range(1 + TRIED):
                clock = time.perf_counter()
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(network(network.normalise(data.x.to(task.device))), data.y.to(task.device)).backward()
                optimizer.step()
                seconds.append(time.perf_counter() - clock)
            took.append(min(seconds[1:]))
    return sum(took) / len(took) if took else 0.0
