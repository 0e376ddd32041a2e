"""What each source contributes to the knowledge that all sources agree on, and the weights that follow from it.

KDCL (Huang et al., 2022), Eqs. 2 to 4: the quality Q of a set of sources is that of their vote, and a source contributes what Q
loses when it is removed. KD3A's code takes the Shapley value of Q instead, the mean loss over every order in which
sources could leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedstill.algorithm import Reply, Round, Server
from fedstill.core.errors import FedstillError
from fedstill.core.message import State
from fedstill.core.options import Part, Positive
from fedstill.fusion.ensemble import SpooledLogits, spooled_logits
from fedstill.fusion.merges.average import merge_models
from fedstill.fusion.merges.contract import merge
from fedstill.fusion.teacher import teachers_of
from fedstill.fusion.vote import Gate, Variant, above, knowledge_vote
from fedstill.fusion.vote_norm import VoteNorm, voters
from fedstill.task import Task

__all__ = [
    "Contributions",
    "Focus",
    "contribution_weights",
    "contributions_of",
    "leave_one_out",
    "merge_by_contribution",
    "note_focus",
    "qualities",
    "shapley",
    "shapley_sampled",
]

EXACT = 12  # sources up to which the Shapley value is computed over the power set
CELLS = 1 << 22  # numbers in memory at once for each of the vote's arrays

Value = Callable[[Tensor], Tensor]  # subsets (subsets, sources) -> value of each (subsets,)


class Contributions(Part):
    """How contributions are measured; the defaults are KDCL's."""

    gate: Gate = Gate()
    """The confidence that a source needs to be heard."""

    variant: Variant = "kdcl"
    """``kdcl``: sources vote with their confidence in every class, and those below the gate in the winning class are left out.
    ``kd3a``: each source votes only for its most likely class."""

    method: Literal["leave-one-out", "shapley"] = "leave-one-out"
    """A source's contribution: what the vote's quality loses without it (KDCL, Eq. 3), or its Shapley value (KD3A's code)."""

    permutations: Positive = 1000
    """Random orders from which Shapley values are estimated if there are more than 12 sources."""


@dataclass(frozen=True)
class Focus:
    """Every source's contribution, the quality of all together, and the standard errors of sampled contributions."""

    values: Tensor  # (sources,)
    quality: float
    error: Tensor | None = None


def qualities(slices: Iterable[Tensor], gate: float, members: Tensor, variant: Variant = "kdcl") -> Tensor:
    """Eq. 2 for every subset in ``members`` (subsets, sources): ``Q(S) = sum_i n_p_i(S) * max p_i(S)``, in float64.

    ``slices`` are predictions (sources, b, classes) for consecutive slices of the samples. The empty set has quality 0.

    >>> q = torch.tensor([[[0.9, 0.1]], [[0.95, 0.05]]])
    >>> [round(x, 3) for x in qualities([q], 0.8, torch.tensor([[True, True], [True, False], [False, False]])).tolist()]
    [1.85, 0.9, 0.0]
    """
    found = torch.zeros(len(members), dtype=torch.float64)
    members = members.to(torch.bool)
    for probabilities in slices:
        sources, _, classes = probabilities.shape
        part = max(1, CELLS // max(1, len(members) * (sources + classes)))
        for some in probabilities.split(part, 1):
            for rows, audible in _by_audience(some, gate, variant):
                # sources that are not heard change nothing, so many subsets are one and the same
                distinct, place = (members & audible).unique(dim=0, return_inverse=True)
                step = max(1, CELLS // (rows.shape[1] * (sources + classes)))
                worth = [knowledge_vote(rows, gate, variant=variant, members=m).quality.sum(1) for m in distinct.split(step)]
                found += torch.cat(worth).to("cpu", torch.float64)[place]
    return found


def _by_audience(probabilities: Tensor, gate: float, variant: Variant) -> Iterator[tuple[Tensor, Tensor]]:
    """The samples in groups with the same sources above the gate, and which these are. With many sources hardly two samples have
    the same, so all samples are one group and every source may be heard. Samples of which no source is sure have quality 0."""
    sources = probabilities.shape[0]
    heard = above(probabilities.amax(2).T, gate, variant)
    if sources > EXACT:
        yield probabilities, torch.ones(sources, dtype=torch.bool)
        return
    codes = (heard.long() << torch.arange(sources, device=heard.device)).sum(1)
    for code in codes.unique().tolist():
        if code:
            yield probabilities[:, codes == code], (code >> torch.arange(sources)) & 1 == 1


def leave_one_out(value: Value, sources: int) -> Focus:
    """Eq. 3: ``C_k = Q(S) - Q(S without k)``. It can be negative: a source may have turned the vote to a class with less
    support.

    >>> leave_one_out(lambda subsets: subsets.double().sum(1) ** 2, 3).values.tolist()
    [5.0, 5.0, 5.0]
    """
    everyone = torch.ones(1, sources, dtype=torch.bool)
    worth = value(torch.cat([everyone, ~torch.eye(sources, dtype=torch.bool)]))
    return Focus(worth[0] - worth[1:], float(worth[0]))


def shapley(value: Value, sources: int) -> Focus:
    """The exact Shapley value: ``sum_S |S|! (K - |S| - 1)! / K! * (v(S with k) - v(S))``, 2^K evaluations.

    >>> shapley(lambda subsets: subsets.double().sum(1) ** 2, 3).values.tolist()
    [3.0, 3.0, 3.0]
    """
    codes = torch.arange(2**sources)
    members = (codes[:, None] >> torch.arange(sources)) & 1 == 1
    worth = value(members)
    size = members.sum(1)
    factorial = torch.tensor([math.factorial(i) for i in range(sources + 1)], dtype=torch.float64)
    found = []
    for k in range(sources):
        without = codes[~members[:, k]]
        s = size[without]
        share = factorial[s] * factorial[sources - s - 1] / factorial[sources]
        found.append((share * (worth[without | (1 << k)] - worth[without])).sum())
    return Focus(torch.stack(found), float(worth[-1]))


def shapley_sampled(value: Value, sources: int, permutations: int, rng: torch.Generator) -> Focus:
    """The Shapley value estimated from random orders of arrival, with its standard error; its sum is exact.

    >>> found = shapley_sampled(lambda subsets: subsets.double().sum(1) ** 2, 3, 200, torch.Generator().manual_seed(0))
    >>> round(float(found.values.sum()), 6), bool(((found.values - 3).abs() < 4 * found.error).all())
    (9.0, True)
    """
    orders = torch.stack([torch.randperm(sources, generator=rng) for _ in range(permutations)])
    ranks = orders.argsort(1)  # when each source arrives
    arrived = ranks[:, None] < torch.arange(sources + 1)[:, None]  # (orders, 0..K arrived, sources)
    distinct, which = arrived.flatten(0, 1).unique(dim=0, return_inverse=True)  # many orders share their first and last sets
    worth = value(distinct)[which].view(permutations, sources + 1)
    marginal = worth.diff(dim=1).gather(1, ranks)
    error = marginal.std(0) / permutations**0.5 if permutations > 1 else torch.full((sources,), torch.inf)
    return Focus(marginal.mean(0), float(worth[0, -1]), error)


def contribution_weights(contributions: Tensor) -> Tensor:
    """Eq. 4: ``alpha_k = C_k / sum C``. The paper leaves two cases open. Here a negative contribution counts as 0, and if no
    source contributes (no source passes the gate), all have equal weights.

    >>> contribution_weights(torch.tensor([3.0, -1.0, 1.0])).tolist(), contribution_weights(torch.zeros(2)).tolist()
    ([0.75, 0.0, 0.25], [0.5, 0.5])
    """
    positive = contributions.clamp_min(0)
    total = positive.sum()
    return positive / total if total > 0 else torch.full_like(positive, 1 / len(positive))


def contributions_of(spooled: SpooledLogits, options: Contributions, gate: float, rng: torch.Generator) -> Focus:
    """The contributions of the teachers with these logits."""
    sources = spooled.spool.shape[0]

    def value(members: Tensor) -> Tensor:
        return qualities((logits.softmax(2) for logits in spooled.slices(4096)), gate, members, options.variant)

    if options.method == "leave-one-out":
        return leave_one_out(value, sources)
    return shapley(value, sources) if sources <= EXACT else shapley_sampled(value, sources, options.permutations, rng)


def merge_by_contribution(
    task: Task,
    server: Server,
    replies: Sequence[Reply],
    options: Contributions,
    round: Round,
    norm: VoteNorm = "pool",
    score: Callable[[SpooledLogits], Tensor] | None = None,
) -> dict[str, State]:
    """Each prototype's average with the weights of Eq. 4, from the replies' votes on the server's pool, each with the BatchNorm
    statistics that ``norm`` names. ``score`` computes factors of the contributions from the sources' logits.

    Notes in the round: the weights as ``merge_weights``, the contributions, the gate and the quality.
    """
    teachers = teachers_of(task, replies)
    if task.pool is None:
        raise FedstillError("merge = 'contributions' votes on unlabelled data: set data.server, data.target or data.holdout")
    gate = options.gate.at(round.number, round.total)
    predict = voters(norm, round.rng("vote"))
    spooling = spooled_logits(teachers, task.pool.samples, predict=predict, progress=lambda k, of: round.progress("vote", k, of))
    with spooling as spooled:
        focus = contributions_of(spooled, options, gate, round.rng("contributions"))
        factors = score(spooled) if score is not None else None
    names = [teacher.name for teacher in teachers]
    shares = contribution_weights(focus.values)
    if factors is not None:
        shares = contribution_weights(shares * factors)
        round.note(scores=dict(zip(names, factors.tolist(), strict=True)))
    weights = dict(zip(names, shares.tolist(), strict=True))
    note_focus(focus, names, gate, round)
    round.note(merge_weights=weights)

    def weigh(replies: Sequence[Reply]) -> list[float]:
        # the weights of a prototype's clients are normalised; if all are 0, the clients share equally
        return contribution_weights(torch.tensor([weights[reply.client] for reply in replies])).tolist()

    return merge_models(task, server, replies, weigh)


@merge("contributions")
def _leave_one_out(task: Task, server: Server, replies: Sequence[Reply], round: Round) -> dict[str, State]:
    """Each prototype's average, weighted by each client's contribution to the knowledge vote (KDCL)."""
    return merge_by_contribution(task, server, replies, Contributions(), round)


@merge("shapley")
def _shapley(task: Task, server: Server, replies: Sequence[Reply], round: Round) -> dict[str, State]:
    """Each prototype's average, weighted by the clients' Shapley values in KD3A's vote."""
    return merge_by_contribution(task, server, replies, Contributions(variant="kd3a", method="shapley"), round)


def note_focus(focus: Focus, names: Sequence[str], gate: float, round: Round) -> None:
    """Note every source's contribution, the quality of all together, and the standard errors if contributions were sampled."""
    round.note(gate=gate, quality=focus.quality, contributions=dict(zip(names, focus.values.tolist(), strict=True)))
    if focus.error is not None:
        round.note(contributions_error=dict(zip(names, focus.error.tolist(), strict=True)))
