"""Teachers: the members of an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from fedstill.algorithm import Reply
from fedstill.core.message import State
from fedstill.models.network import Network
from fedstill.models.statistics import recalibrate
from fedstill.task import Task

__all__ = ["Teacher", "network_of", "teacher_from", "teachers_of"]


@dataclass(frozen=True)
class Teacher:
    """One member of an ensemble; ``load`` returns its network, and the next teacher may reuse the same object.

    For a teacher that does not know every class, ``places`` gives the ensemble's class of each of its outputs.
    """

    name: str
    load: Callable[[], Network] = field(repr=False)
    reply: Reply | None = None
    places: tuple[int, ...] | None = None
    prototype: str | None = None  # its architecture, if not that of its reply


def network_of(task: Task, reply: Reply) -> Network:
    """A reply's model, loaded into the one teacher network of its architecture. If BatchNorm statistics stay with the clients
    (``model.buffers = "local"``), they are estimated on the server's data."""
    network = task.networks.load(reply.prototype, reply.model, role="teacher")
    return recalibrate(network, task.statistics_data) if task.config.model.buffers == "local" else network


def teachers_of(task: Task, replies: Sequence[Reply]) -> list[Teacher]:
    """The replies as teachers, each loaded when its turn comes."""
    return [Teacher(reply.client, partial(network_of, task, reply), reply) for reply in replies]


def teacher_from(task: Task, name: str, prototype: str, state: Callable[[], State]) -> Teacher:
    """A teacher that is not a client: a sampled or averaged model."""
    return Teacher(name, lambda: task.networks.load(prototype, state(), role="sampled"), prototype=prototype)
