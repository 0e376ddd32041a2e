"""The knowledge vote as a weighting: a sample's teachers are the sources that support its consensus class."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fedstill.fusion.vote import Gate, Variant, knowledge_vote
from fedstill.fusion.vote_norm import Voters
from fedstill.fusion.weightings.contract import Ballot, Voting, WeightingContext, weighting

__all__ = ["KnowledgeVote", "VoteOptions"]


class VoteOptions(Voters):
    """``weighting_options`` of ``vote``; the defaults are KDCL's."""

    gate: Gate = Gate()
    """The confidence that a source needs to be heard."""

    variant: Variant = "kdcl"
    """``kdcl``: sources vote with their confidence in every class, and those below the gate in the winning class are left out.
    ``kd3a``: each source votes only for its most likely class."""

    knowledge: Literal["soft", "hard"] = "soft"
    """The targets: the supporters' mean prediction (``soft``), or the consensus class alone (``hard``)."""

    count: Literal["mask", "support"] = "mask"
    """How much a sample with supporters counts: once (``mask``), or once per supporter (``support``)."""


@weighting("vote", summary="the confident sources that support the consensus class (KDCL, KD3A)", options=VoteOptions)
class KnowledgeVote(Voting):
    """Only confident teachers that agree are heard; a sample without supporters teaches nothing."""

    def __init__(self, context: WeightingContext):
        self.options = VoteOptions.model_validate(context.options)
        self.gate = self.options.gate.at(context.round, context.rounds)
        self.voters(context, self.options.vote_norm)

    def vote(self, logits: Tensor) -> Ballot:
        """The vote's knowledge. A sample without supporters counts 0, and all teachers have equal weights on it."""
        vote = knowledge_vote(logits.softmax(2), self.gate, variant=self.options.variant)
        used = vote.support > 0
        members = vote.supporters | ~used[:, None]
        targets = vote.hard() if self.options.knowledge == "hard" else vote.knowledge
        count = used.to(logits.dtype) if self.options.count == "mask" else vote.support
        return Ballot(targets, members / members.sum(1, keepdim=True), count)
