"""The knowledge vote: what several source models agree on about unlabelled samples.

KDCL, section 2.2 (Huang et al., 2022), and the form in which KD3A's code votes (Feng et al., ICML 2021). Everything is a few
tensor operations over samples, classes, sources and, for contributions, many subsets of the sources at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.core.options import Part

__all__ = ["Gate", "Variant", "Vote", "above", "knowledge_vote"]

Variant = Literal["kdcl", "kd3a"]


class Gate(Part):
    """The confidence that a source needs to be heard, growing linearly with the rounds.

    >>> [round(Gate().at(r, 4), 3) for r in (1, 2, 4)], round(Gate(reach=False).at(4, 4), 4)
    ([0.8, 0.85, 0.95], 0.9125)
    """

    start: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """Gate in the first round."""

    end: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Gate in the last round, or just short of it (``reach``)."""

    reach: bool = True
    """Whether the last round has ``end`` itself. Otherwise round r of R has ``start + (end - start) * (r - 1) / R``, as in KD3A's
    code."""

    def at(self, round: int, rounds: int) -> float:
        """The gate in ``round`` (from 1) of ``rounds``."""
        done = (round - 1) / (max(1, rounds - 1) if self.reach else rounds)
        return self.start + (self.end - self.start) * min(1.0, done)


@dataclass(frozen=True)
class Vote:
    """The outcome on n samples, with a leading axis of subsets if subsets voted."""

    knowledge: Tensor  # (..., n, classes): p_i, the mean prediction of the supporters, or of all members if there are none
    consensus: Tensor  # (..., n): the consensus class
    supporters: Tensor  # (..., n, sources): which sources support it
    support: Tensor  # (..., n): n_p, the number of supporters; 0 if the sample is not used
    quality: Tensor  # (..., n): n_p * max p_i, the sample's part of Eq. 2

    def hard(self) -> Tensor:
        """The consensus class as one-hot targets, which KD3A's code trains on."""
        return torch.nn.functional.one_hot(self.consensus, self.knowledge.shape[-1]).to(self.knowledge.dtype)


def knowledge_vote(probabilities: Tensor, gate: float, *, variant: Variant = "kdcl", members: Tensor | None = None) -> Vote:
    """The vote of sources with predictions ``probabilities`` (sources, n, classes).

    ``kdcl``: (1) sources whose highest confidence is below the gate are filtered out; (2) the others' confidences are summed
    class by class, the largest sum is the consensus class, and sources whose confidence *in that class* is below the gate are
    filtered out; (3) those left support it: p is their mean, n_p their number. A sample without supporters does not count. That
    happens if no source passes the gate, and also if the consensus class is every source's second choice.

    ``kd3a``: only sources above the gate vote (all if none is), each for its most likely class with its confidence in it; the
    class with the largest sum wins. A sample counts only if some source is above the gate.

    ``members`` (subsets, sources) is a boolean mask for many electorates at once.

    >>> q = torch.tensor([[[0.95, 0.05]], [[0.92, 0.08]], [[0.6, 0.4]]])
    >>> vote = knowledge_vote(q, 0.9)
    >>> vote.consensus.tolist(), vote.support.tolist(), [round(p, 3) for p in vote.knowledge[0].tolist()]
    ([0], [2.0], [0.935, 0.065])
    """
    q = probabilities.permute(1, 0, 2)  # (n, sources, classes)
    n, sources, classes = q.shape
    electorate = torch.ones(1, sources, dtype=torch.bool, device=q.device) if members is None else members.to(q.device)
    confidence, best = q.max(2)  # (n, sources)
    heard = above(confidence, gate, variant)
    voting = heard & electorate[:, None]  # (subsets, n, sources)
    if variant == "kdcl":
        consensus = _sums(voting, q).argmax(2)  # (subsets, n)
        on_consensus = q.transpose(1, 2).gather(1, consensus.T[:, :, None].expand(-1, -1, sources)).transpose(0, 1)
        supporters = voting & (on_consensus >= gate)
        counted = supporters
    else:
        anybody = voting.any(2, keepdim=True)
        voting = torch.where(anybody, voting, electorate[:, None])
        votes = torch.zeros_like(q).scatter_(2, best[:, :, None], confidence[:, :, None])
        consensus = _sums(voting, votes).argmax(2)
        supporters = voting & (best == consensus[:, :, None])
        counted = supporters & anybody
    support = counted.sum(2)
    total = _sums(supporters, q)
    number = supporters.sum(2, keepdim=True)
    size = electorate.sum(1)[:, None, None]
    everybody = _sums(electorate[:, None].expand_as(voting), q) / size.clamp_min(1)
    knowledge = torch.where(number > 0, total / number.clamp_min(1), everybody)
    quality = support * knowledge.amax(2)  # the summand of Eq. 2; KD3A's mask times its winning score is the same number
    vote = Vote(knowledge, consensus, supporters, support.to(q.dtype), quality)
    if members is not None:
        return vote
    return Vote(*(part[0] for part in (vote.knowledge, vote.consensus, vote.supporters, vote.support, vote.quality)))


def above(confidence: Tensor, gate: float, variant: Variant) -> Tensor:
    """Which confidences are heard: KDCL filters out those below the gate, KD3A's code also those equal to it."""
    return confidence >= gate if variant == "kdcl" else confidence > gate


def _sums(who: Tensor, q: Tensor) -> Tensor:
    """(subsets, n, classes): the predictions q (n, sources, classes) summed over the sources in who (subsets, n, sources)."""
    return torch.matmul(who.transpose(0, 1).to(q.dtype), q).transpose(0, 1)
