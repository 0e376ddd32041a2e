"""Teachers: who speaks in an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedstill.algorithm import Reply
from fedstill.message import State
from fedstill.models.network import Network

if TYPE_CHECKING:
    from fedstill.task import Task

__all__ = ["Teacher", "teacher_from", "teachers_of"]


@dataclass(frozen=True)
class Teacher:
    """One member of an ensemble; ``load`` brings its network, which may be the same object for the next teacher.

    A teacher that does not know every class says in ``places`` which of the ensemble's classes each of its outputs is.
    """

    name: str
    load: Callable[[], Network] = field(repr=False)
    reply: Reply | None = None
    places: tuple[int, ...] | None = None


def teachers_of(task: Task, replies: Sequence[Reply]) -> list[Teacher]:
    """The replies as teachers, each loaded into the one teaching network of its architecture when its turn comes."""
    return [
        Teacher(r.client, lambda r=r: task.load(r.prototype, r.model, role="teacher"), r)  # type: ignore[misc]
        for r in replies
    ]


def teacher_from(task: Task, name: str, prototype: str, state: Callable[[], State]) -> Teacher:
    """A teacher that is not a client: a sampled or averaged model."""
    return Teacher(name, lambda: task.load(prototype, state(), role="sampled"))
