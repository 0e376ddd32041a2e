"""How much each teacher counts for each sample. Every weighting works with every system that distils.

A weighting is made for one fusion, by name, from a :class:`Scene`. There are three kinds, by what they must see:
:class:`Ready` knows its weights before any teacher speaks, :class:`Scored` asks each teacher's network as it streams by, and
:class:`Voting` needs every teacher's word on a sample at once.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedstill.algorithm import Reply, Server
from fedstill.core.errors import FedstillError, unknown
from fedstill.core.message import State
from fedstill.core.options import Part
from fedstill.data.samples import Samples
from fedstill.fusion.teacher import Teacher
from fedstill.models.network import Network

if TYPE_CHECKING:
    from fedstill.task import Task

__all__ = [
    "Ballot",
    "Ready",
    "Scene",
    "Scored",
    "Voting",
    "Weighting",
    "fault_of",
    "make_weighting",
    "options_kind",
    "register",
    "report_of",
    "weightings",
]


@dataclass(frozen=True)
class Scene:
    """What a weighting may look at: the round's teachers and their replies, the server's state, a random stream, its options."""

    teachers: Sequence[Teacher]
    rng: torch.Generator
    task: Task | None = None
    server: Server | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    round: int = 1
    rounds: int = 1
    reference: Network | None = None  # the backbone of all reports, where it is not the server's own model

    @property
    def replies(self) -> list[Reply]:
        """The teachers' replies; teachers that are not clients have none."""
        return [teacher.reply for teacher in self.teachers if teacher.reply is not None]


class Ready:
    """Weights known before the teachers speak."""

    def weights(self, samples: Samples) -> Tensor:
        """(n, teachers), rows summing to one."""
        raise NotImplementedError


class Scored:
    """Each teacher's own score of a sample; weights are the scores divided by their sum over the teachers."""

    def score(self, k: int, network: Network, x: Tensor, features: Tensor) -> Tensor:
        """Teacher ``k``'s non-negative score (b,) of the inputs ``x`` whose features in its network are ``features``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ballot:
    """The outcome of a vote on b samples."""

    targets: Tensor  # (b, classes), probabilities
    weights: Tensor  # (b, teachers)
    sample_weight: Tensor | None = None  # (b,)


class Voting:
    """All teachers' logits on a sample at once."""

    def vote(self, logits: Tensor) -> Ballot:
        """The outcome for logits (teachers, b, classes), already divided by the temperature."""
        raise NotImplementedError


Weighting = Ready | Scored | Voting


@dataclass(frozen=True)
class _Kind:
    make: Callable[[Scene], Weighting]
    report: str | None
    summary: str
    options: type[Part] | None
    fault: Callable[[State, int], str | None] | None


_KINDS: dict[str, _Kind] = {}


def register(
    name: str,
    *,
    report: str | None = None,
    summary: str = "",
    options: type[Part] | None = None,
    fault: Callable[[State, int], str | None] | None = None,
) -> Callable:
    """Add a weighting to the common set.

    ``report`` names the group of tensors that clients must send for it, ``options`` what ``weighting_options`` may hold (checked
    before the run starts), ``fault`` says what is wrong with a report, given the width of the features, before it is used.
    """

    def add(make: Callable[[Scene], Weighting]) -> Callable[[Scene], Weighting]:
        _KINDS[name] = _Kind(make, report, summary or (make.__doc__ or "").strip().split("\n")[0], options, fault)
        return make

    return add


def _kind(name: str) -> _Kind:
    _load_all()
    if name not in _KINDS:
        raise unknown("weighting", name, _KINDS)
    return _KINDS[name]


def _load_all() -> None:
    # the members register themselves when their modules are imported
    import fedstill.fusion.weightings as members

    for module in pkgutil.iter_modules(members.__path__):
        importlib.import_module(f"{members.__name__}.{module.name}")


def weightings() -> dict[str, str]:
    """Every weighting and what it does.

    >>> "uniform" in weightings()
    True
    """
    _load_all()
    return {name: kind.summary for name, kind in sorted(_KINDS.items())}


def report_of(name: str) -> str | None:
    """What clients must report for this weighting, or None."""
    return _kind(name).report


def fault_of(name: str, part: State, width: int) -> str | None:
    """Why a client's report cannot be used by this weighting, or None. ``width`` is that of the features it was made from."""
    kind = _kind(name)
    if kind.report is None:
        return None
    if not part:
        return f"no '{kind.report}' in the reply"
    return kind.fault(part, width) if kind.fault is not None else None


def options_kind(name: str) -> type[Part] | None:
    """The options that this weighting takes, or None where it checks them itself."""
    return _kind(name).options


def make_weighting(name: str, scene: Scene) -> Weighting:
    """The weighting called ``name``, for one fusion."""
    kind = _kind(name)
    if kind.report is not None:
        silent = [t.name for t in scene.teachers if t.reply is None or not t.reply.part(kind.report)]
        if silent:
            raise FedstillError(f"weighting '{name}' needs a '{kind.report}' report, which {', '.join(silent[:3])} did not send")
    return kind.make(scene)
