"""Private votes: confident-GNMax (Papernot et al., Scalable Private Learning with PATE, ICLR 2018, Algorithm 1).

For a sample let n_j be the number of teachers whose most likely class is j.

1. It is answered only if ``max_j n_j + N(0, sigma_1^2) >= T``.
2. The answer is ``argmax_j (n_j + N(0, sigma_2^2))``.

If one teacher is replaced, one vote moves: the largest count changes by at most 1, and the histogram by at most sqrt(2) in the
Euclidean norm. The Gaussian mechanism with sensitivity s has Renyi differential privacy ``alpha s^2 / (2 sigma^2)`` of order
alpha, so that asking costs ``alpha / (2 sigma_1^2)``, answering ``alpha / sigma_2^2``, and all of it ``alpha c`` with

    c = asked / (2 sigma_1^2) + answered / sigma_2^2.                                                    (1)

For every alpha > 1 this is (epsilon, delta) differential privacy with ``epsilon = alpha c + log(1 / delta) / (alpha - 1)``
(Mironov, 2017, Proposition 3). The best order is ``alpha = 1 + sqrt(log(1 / delta) / c)``, which gives

    epsilon = c + 2 sqrt(c log(1 / delta)).                                                              (2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstill.config.votes import Votes
from fedstill.core.accounting import gaussian_cost
from fedstill.core.streams import secret_stream
from fedstill.fusion.weightings.contract import Ballot, Voting, WeightingContext, weighting

__all__ = ["NAME", "PrivateVotes", "Spent", "budget_cost", "restored", "spent_epsilon"]

NAME = "private-votes"
THRESHOLD_SENSITIVITY = 1.0  # of the largest count, if one teacher changes its vote
HISTOGRAM_SENSITIVITY = math.sqrt(2.0)  # of all counts: one falls by 1, another grows by 1


def spent_epsilon(cost: float, delta: float) -> float:
    """Eq. 2: the epsilon of a cost c at the best order.

    >>> spent_epsilon(1.0, math.exp(-4))
    5.0
    """
    return cost + 2 * math.sqrt(cost * math.log(1 / delta))


def budget_cost(epsilon: float, delta: float) -> float:
    """The largest cost c whose epsilon is within a budget; Eq. 2 solved for c.

    >>> round(budget_cost(5.0, math.exp(-4)), 12)
    1.0
    """
    log = math.log(1 / delta)
    return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2


@dataclass(frozen=True)
class Spent:
    """How many samples the teachers were asked about, and how many were answered.

    >>> round(Spent(100, 60).epsilon(Votes(sigma=20, sigma_threshold=10, threshold=5)), 3)
    6.121
    """

    asked: int = 0
    answered: int = 0

    def cost(self, votes: Votes) -> float:
        """Eq. 1."""
        return self.asked * gaussian_cost(THRESHOLD_SENSITIVITY, votes.sigma_threshold) + self.answered * gaussian_cost(
            HISTOGRAM_SENSITIVITY, votes.sigma
        )

    def epsilon(self, votes: Votes) -> float:
        """What they spent."""
        return spent_epsilon(self.cost(votes), votes.delta)

    def to_json(self, votes: Votes, left_out: int) -> dict[str, Any]:
        """For the history. ``left_out`` is the number of this fusion's samples without an answer."""
        epsilon = self.epsilon(votes)
        return {
            "asked": self.asked,
            "answered": self.answered,
            "left_out": left_out,
            "epsilon": epsilon,
            "epsilon_each": epsilon / self.answered if self.answered else None,
            "delta": votes.delta,
        }


@weighting(NAME, summary="the noised majority, epsilon stated (confident-GNMax)", options=Votes)
class PrivateVotes(Voting):
    """Each teacher has one vote; a sample without an answer teaches nothing. ``before`` is what earlier fusions spent."""

    private = True

    def __init__(self, context: WeightingContext, before: Spent | None = None):
        self.votes = Votes.model_validate(context.options)
        self.spent = before or Spent()
        self.left_out = 0
        self.rng = secret_stream() if self.votes.secret else context.rng

    def vote(self, logits: Tensor) -> Ballot:
        """Confident-GNMax on the samples of a batch, in their order, until the budget is spent."""
        teachers, n, classes = logits.shape
        counts = F.one_hot(logits.argmax(2), classes).sum(0).cpu().double()  # n_j, (n, classes)
        votes = self.votes
        checks = torch.randn(n, generator=self.rng, dtype=torch.float64) * votes.sigma_threshold
        noises = torch.randn(n, classes, generator=self.rng, dtype=torch.float64) * votes.sigma
        confident = counts.amax(1) + checks >= votes.threshold  # line 1
        asked = self._within_budget(confident)
        answered = asked & confident
        answers = (counts + noises).argmax(1)  # line 2
        self.spent = Spent(self.spent.asked + int(asked.sum()), self.spent.answered + int(answered.sum()))
        self.left_out += n - int(answered.sum())
        # a sample without an answer keeps no trace of its votes
        targets = torch.where(answered[:, None], F.one_hot(answers, classes).double(), 1 / classes)
        even = torch.full((n, teachers), 1 / teachers)
        return Ballot(*(part.to(logits.device, logits.dtype) for part in (targets, even, answered.double())))

    def _within_budget(self, confident: Tensor) -> Tensor:
        """Which samples are asked: those before which a question and its answer are within the budget. What was spent before a
        sample never falls, so that these are the first ones."""
        if self.votes.epsilon is None:
            return torch.ones_like(confident)
        question, answer = Spent(1, 0).cost(self.votes), Spent(0, 1).cost(self.votes)
        costs = question + answer * confident.double()
        before = self.spent.cost(self.votes) + costs.cumsum(0) - costs
        limit = budget_cost(self.votes.epsilon, self.votes.delta)
        return before + question + answer <= limit * (1 + 1e-12)


def restored(values: Mapping[str, Any]) -> Spent:
    """What earlier rounds spent, from the server's state."""
    found = values.get("votes", {})
    return Spent(int(found.get("asked", 0)), int(found.get("answered", 0)))
