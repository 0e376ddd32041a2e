"""FedRAD: distil the median of the teachers, and average the clients by how often they are the median.

Sturluson et al., FedRAD: Federated Robust Adaptive Distillation, NeurIPS 2021 workshop on new frontiers in federated learning.
A teacher that is malicious, or has seen little data, is seldom the median: it neither moves the targets nor has much weight in
the average that the student starts from. FedDF with ``weighting = "median"`` is the same without the scores.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.algorithm import Reply, Round, Server, algorithm
from fedstill.algorithms.feddf import FedDF, FedDFOptions
from fedstill.core.errors import FedstillError
from fedstill.fusion.distillation.options import Averaging, Distillation
from fedstill.fusion.distillation.transfer import learn, note_ceiling, note_weights
from fedstill.fusion.ensemble import ensemble_table
from fedstill.fusion.merges import merge_models
from fedstill.task import Task
from fedstill.training.options import Optimizer

__all__ = ["FedRAD", "FedRADOptions", "scored_shares"]


class FedRADOptions(FedDFOptions):
    """The values of the authors' code."""

    weighting: str = "median"
    """How much each teacher counts for each sample. Its mean weight, times its number of examples, is also its share in the
    average that the student starts from."""

    distillation: Distillation = Distillation(
        epochs=2,
        batch_size=16,
        optimizer=Optimizer(name="sgd", lr=1e-4, momentum=0.5, weight_decay=1e-4),
        clip=None,
        averaging=Averaging(every="epoch"),
    )
    """How the student learns."""


def scored_shares(scores: Sequence[float], samples: Sequence[int]) -> list[float]:
    """``score_k * n_k``, normalised; the shares by examples if every score is zero.

    >>> scored_shares([0.5, 0.25, 0.25], [10, 10, 20])
    [0.4, 0.2, 0.4]
    """
    raw = [score * n for score, n in zip(scores, samples, strict=True)]
    if sum(raw) == 0:
        raw = [float(n) for n in samples]
    return [value / sum(raw) for value in raw]


@algorithm
class FedRAD(FedDF[FedRADOptions]):
    """Median ensemble, median-based scores, distillation."""

    name = "fedrad"
    title = "FedRAD"
    paper = "Sturluson et al., 2021"
    parts = {
        "merge": "average by median scores and examples",
        "source": "unlabelled data",
        "weighting": "median",
        "distillation": "median of logits, KL, SGD, weight averaging",
    }
    Options = FedRADOptions

    def __init__(self, task: Task, options: FedRADOptions | None = None):
        super().__init__(task, options)
        if self.personal or self.options.distillation.fresh:
            raise FedstillError("fedrad scores clients on one fixed pool: remove model.student and distillation.fresh")
        if self.options.merge != "examples":
            raise FedstillError(f"fedrad merges by examples and the median's scores: remove merge = '{self.options.merge}'")

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """The teachers predict first: their scores decide where the student starts."""
        replies = self.trusted(replies, round)
        options, space = self.distillation(round), self.options.ensemble
        teachers, samples = self.teachers(server, replies, round), self.draw(server, round)
        weighting = self.weighting(server, teachers, round)
        table = ensemble_table(
            teachers,
            samples,
            weighting,
            space=space,
            temperature=options.temperature,
            direction=options.direction,
            progress=lambda k, of: round.progress("teachers", k, of),
        )
        note_weights(self.task, teachers, table, samples, round)
        # score_k: the share of (sample, class) pairs in which teacher k is the median
        score = dict(zip((teacher.name for teacher in teachers), table.weights.mean(0).tolist(), strict=True))

        def weigh(group: Sequence[Reply]) -> list[float]:  # clients that do not teach have no score
            return scored_shares([score.get(reply.client, 0.0) for reply in group], [reply.samples for reply in group])

        merged = merge_models(self.task, server, replies, weigh)
        starts = self.starts(server, merged, round)
        models = learn(self.task, starts, samples, table, options, round, snapshots=self.snapshots)
        note_ceiling(self.task, starts, teachers, weighting, options, round, space)
        round.offer(merged, models, plain=self.merge(server, replies, round) if self.options.line else None)
        return Server({**merged, **models}, server.parts, server.values)
