"""KDCL: sources train near the global model, and are merged by their contributions to the knowledge that they agree on.

Huang et al., A Federated Domain Adaptation Algorithm Based on Knowledge Distillation and Contrastive Learning, Wuhan University
Journal of Natural Sciences 27(6), 2022. The paper gives its method no name. Algorithm 1: contrastive local training (Eqs. 5, 6;
not in the first round), the vote on the target's unlabelled samples (section 2.2), contributions and weights (Eqs. 2 to 4),
``h_t = sum_k alpha_k h_k`` over the sources. No model is trained on the votes, except with ``train_target``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedstill.algorithm import Reply, Round, Server, algorithm
from fedstill.algorithms.feddf import FedDF, FedDFOptions
from fedstill.algorithms.moon import Contrastive
from fedstill.core.message import State
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.distillation.transfer import note_ceiling
from fedstill.fusion.line import Line
from fedstill.fusion.merges import MergeName
from fedstill.fusion.merges.contributions import Contributions, merge_by_contribution
from fedstill.fusion.outliers import Outliers, drop_far, median_scores
from fedstill.fusion.vote_norm import VoteNorm
from fedstill.training.options import Optimizer

__all__ = ["KDCL", "KDCLOptions"]


class KDCLOptions(FedDFOptions):
    """The paper's values. Its local training is
    ``local = { batch_size = 50, optimizer = { lr = 0.005, momentum = 0.9 }, schedule = { kind = "cosine", final = 0.001 } }``
    over 80 rounds."""

    merge: MergeName = "contributions"
    """How the sources are merged: by their contributions (Eqs. 2 to 4). Any other merge is an ablation."""

    contributions: Contributions = Contributions()
    """How contributions are measured."""

    vote_norm: VoteNorm = "pool"
    """BatchNorm statistics of the voting sources. ``pool``: those of the target's batches, as in KD3A's code. ``own``: their own
    running statistics, which are those of another domain. The paper does not say."""

    outliers: Outliers | None = None
    """Recognise false sources; the vote alone does not recognise mirrored updates. ``{}`` does it by distance and by FedRAD's
    scores. Not in the paper."""

    contrastive: Contrastive | None = Contrastive(mu=1.0, temperature=0.5)
    """The contrastive term in the sources' objective (Eqs. 5 and 6)."""

    weighting: str = "vote"
    """How much each source counts for each sample (section 2.2)."""

    line: Line | Literal[False] = False
    """How far a round goes from the merged model to the trained one: by default all the way, since the sources' labelled data
    cannot judge a model for the target."""

    train_target: bool = False
    """Also train the merged model on the votes; not in the paper."""

    distillation: Distillation = Distillation(
        epochs=1, optimizer=Optimizer(lr=0.005, momentum=0.9), schedule="constant", batch_size=50, student_norm="train"
    )
    """How the merged model learns the votes (``train_target``)."""

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """One vote: the contributions and the targets come from votes with the same options."""
        voting = given.get("contributions", {})
        voting = voting.model_dump() if isinstance(voting, Contributions) else voting
        if given.get("weighting", "vote") != "vote" or not isinstance(voting, Mapping):
            return {}
        found = {name: voting[name] for name in ("gate", "variant") if name in voting}
        return {"weighting_options": found | ({"vote_norm": given["vote_norm"]} if "vote_norm" in given else {})}


@algorithm
class KDCL(FedDF[KDCLOptions]):
    """Contrastive sources, merged by contribution."""

    name = "kdcl"
    title = "KDCL"
    paper = "Huang et al., Wuhan Univ. J. Nat. Sci. 2022"
    parts = {
        "local term": "model-contrastive",
        "merge": "contribution-weighted",
        "source": "the target's unlabelled data",
        "weighting": "knowledge vote",
        "distillation": "none (train_target: on the votes)",
    }
    needs = ("target",)
    Options = KDCLOptions

    def merge(self, server: Server, replies: Sequence[Reply], round: Round) -> dict[str, State]:
        """Lines 4, 5, 11 and 12: ``h_t = sum_k alpha_k h_k``."""
        if self.options.merge != "contributions":
            return super().merge(server, replies, round)
        chosen = self.options
        score = median_scores if chosen.outliers is not None and chosen.outliers.by != "distance" else None
        return merge_by_contribution(self.task, server, replies, chosen.contributions, round, chosen.vote_norm, score)

    def trusted(self, replies: Sequence[Reply], round: Round) -> Sequence[Reply]:
        """The replies that are neither the worst nor far from the others."""
        replies, outliers = super().trusted(replies, round), self.options.outliers
        return drop_far(self.task, replies, outliers, round) if outliers is not None and outliers.by != "scores" else replies

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Merge; with ``train_target``, also distil the votes into the merged model."""
        if self.options.train_target:
            server = super().fuse(server, replies, round)
        else:
            replies = self.trusted(replies, round)
            teachers = self.teachers(server, replies, round)
            merged = self.merge(server, replies, round)
            weighting = self.weighting(server, teachers, round)
            note_ceiling(self.task, merged, teachers, weighting, self.options.distillation, round, self.options.ensemble)
            server = Server(merged, server.parts, server.values)
        if "merge_weights" in round.notes:
            round.note(weights=round.notes["merge_weights"])  # in this system, a source's weight is alpha
        return server
