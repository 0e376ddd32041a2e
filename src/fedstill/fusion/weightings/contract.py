"""How much each teacher counts for each sample. Every weighting works with every system that distils.

A weighting is made for one fusion, by name, from a :class:`WeightingContext`. There are three kinds, by what they need:
:class:`Ready` knows its weights before any teacher predicts, :class:`Scored` asks each teacher's network in turn, and
:class:`Voting` needs all teachers' predictions on a sample at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedstill.algorithm import Reply, Server
from fedstill.core.errors import FedstillError
from fedstill.core.message import State
from fedstill.core.options import Part
from fedstill.core.registry import Registry
from fedstill.data.samples import Samples
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.vote_norm import Predict, VoteNorm, voters
from fedstill.models.network import Network
from fedstill.task import Task

__all__ = [
    "COMMON",
    "WEIGHTINGS",
    "Ballot",
    "Ready",
    "Scored",
    "Voting",
    "Weighting",
    "WeightingContext",
    "WeightingKind",
    "fault_of",
    "make_weighting",
    "options_kind",
    "report_of",
    "weighting",
    "weightings",
]


COMMON = ""  # stands for every prototype


@dataclass(frozen=True)
class WeightingContext:
    """What a weighting may use: the round's teachers and their replies, the server's state, a random stream, its options."""

    teachers: Sequence[Teacher]
    rng: torch.Generator
    task: Task | None = None
    server: Server | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    round: int = 1
    rounds: int = 1
    # the backbone of all reports, or one per prototype, if it is not the server's own model
    reference: Network | Mapping[str, Network] | None = None

    @property
    def replies(self) -> list[Reply]:
        """The teachers' replies; teachers that are not clients have none."""
        return [teacher.reply for teacher in self.teachers if teacher.reply is not None]


class Ready:
    """Weights known before any teacher predicts."""

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

    private: bool = False  # whether it answers with stated privacy, so that nothing else may be asked of the teachers
    predict: Predict | None = None  # how a teacher's logits are computed, if they are not its usual predictions

    def voters(self, context: WeightingContext, norm: VoteNorm | None) -> None:
        """Let the teachers vote with the statistics that ``norm`` names; if unset, with the pool's if there is a pool."""
        pooled = context.task is None or context.task.pool is not None
        self.predict = voters(norm or ("pool" if pooled else "own"), context.rng)

    def vote(self, logits: Tensor) -> Ballot:
        """The outcome for logits (teachers, b, classes), already divided by the temperature."""
        raise NotImplementedError


Weighting = Ready | Scored | Voting
Make = TypeVar("Make", bound=Callable[[WeightingContext], Weighting])


@dataclass(frozen=True)
class WeightingKind:
    """A weighting before it is made for one fusion."""

    make: Callable[[WeightingContext], Weighting]
    report: str | None = None  # the group of tensors that clients must send for it
    summary: str = ""
    options: type[Part] | None = None  # the valid weighting_options, checked before the run starts
    fault: Callable[[State, int], str | None] | None = None  # what is wrong with a report, given the features' width


WEIGHTINGS: Registry[WeightingKind] = Registry("weighting", group="fedstill.weightings", home="fedstill.fusion.weightings")


def weighting(
    name: str,
    *,
    report: str | None = None,
    summary: str = "",
    options: type[Part] | None = None,
    fault: Callable[[State, int], str | None] | None = None,
) -> Callable[[Make], Make]:
    """Register the decorated weighting; the arguments are those of :class:`WeightingKind`."""

    def kind(make: Make) -> WeightingKind:
        return WeightingKind(make, report, summary or (make.__doc__ or "").strip().split("\n")[0], options, fault)

    return WEIGHTINGS.register(name, kind)


def weightings() -> dict[str, str]:
    """Every weighting and what it does.

    >>> "uniform" in weightings()
    True
    """
    return {name: kind.summary for name, kind in sorted(WEIGHTINGS.items())}


def report_of(name: str) -> str | None:
    """What clients must report for this weighting, or None."""
    return WEIGHTINGS.get(name).report


def fault_of(name: str, part: State, width: int) -> str | None:
    """Why this weighting cannot use a client's report, or None. ``width`` is the width of the features that it was made from."""
    kind = WEIGHTINGS.get(name)
    if kind.report is None:
        return None
    if not part:
        return f"no '{kind.report}' in the reply"
    return kind.fault(part, width) if kind.fault is not None else None


def options_kind(name: str) -> type[Part] | None:
    """The options that this weighting takes, or None if it checks them itself."""
    return WEIGHTINGS.get(name).options


def make_weighting(name: str, context: WeightingContext, remedy: Callable[[str], str] = lambda report: "") -> Weighting:
    """The weighting called ``name``, for one fusion. If a report is missing, the error ends with the ``remedy`` for it."""
    kind = WEIGHTINGS.get(name)
    if kind.report is not None:
        silent = [t.name for t in context.teachers if t.reply is None or not t.reply.part(kind.report)]
        if silent:
            lack = f"weighting '{name}' needs a '{kind.report}' report, which {', '.join(silent[:3])} did not send"
            raise FedstillError(f"{lack}{remedy(kind.report)}")
    return kind.make(context)
