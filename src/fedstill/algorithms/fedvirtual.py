"""FedVirtual: distil the sites' heads on features drawn from statistics that the sites report. No unlabelled data is needed.

This is a composition of known parts. Virtual representations come from Luo et al., No Fear of Heterogeneity: Classifier
Calibration for Federated Learning with Non-IID Data (CCVR, NeurIPS 2021), who retrain the averaged classifier on them with the
classes as labels. Fusion in one round with features from Gaussian mixtures comes from Beitollahi et al., Parametric Feature
Transfer (2024). Here each site's own model predicts the class of its features (or all models together, weighted as in FedD3A),
and the student starts from the average as in FedDF. Sites share a frozen backbone (``model.train``), so that features mean the
same everywhere; heads may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fedstill.algorithm import Reply, Round, Server, algorithm
from fedstill.algorithms.feddf import FedDF, FedDFOptions
from fedstill.core.errors import FedstillError
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.distillation.transfer import learn, note_ceiling, note_weights
from fedstill.fusion.ensemble import Space, ensemble_table
from fedstill.fusion.feature_map import note_features
from fedstill.fusion.sources import Source
from fedstill.fusion.sources.statistics import draw_virtual, note_statistics
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.virtual import own_table
from fedstill.local.reports.statistics import statistics_shape
from fedstill.task import Task
from fedstill.training.options import Optimizer

__all__ = ["FedVirtual", "FedVirtualOptions"]


class FedVirtualOptions(FedDFOptions):
    """Which targets virtual features get, and how the student learns them."""

    source: Source = Source(kind="statistics", size=10_000)
    """The features to draw; ``options`` are those of the sites' statistics."""

    targets: Literal["own", "label", "ensemble"] = "own"
    """Targets of virtual features. ``own``: the prediction of the site that a feature was drawn from. ``label``: the class that
    it was drawn for (its site's prediction if it was drawn for several rare classes). ``ensemble``: the prediction of all sites
    together, weighted by ``weighting``."""

    weighting: str = "uniform"
    """How much each site counts for each feature with ``targets = "ensemble"``, and in the measured accuracy of the ensemble."""

    ensemble: Space = "probabilities"
    """What is averaged over the sites with ``targets = "ensemble"``, and in the measured accuracy of the ensemble."""

    distillation: Distillation = Distillation(
        epochs=2, batch_size=128, optimizer=Optimizer(name="adam", lr=1e-3), schedule="cosine", clip=None
    )
    """How the student learns."""


@algorithm
class FedVirtual(FedDF[FedVirtualOptions]):
    """Average the heads, then distil on virtual features."""

    name = "fedvirtual"
    title = "FedVirtual"
    paper = "after Luo et al., NeurIPS 2021 (CCVR)"
    parts = {
        "report": "feature statistics by class",
        "merge": "average by examples",
        "source": "features drawn from the statistics",
        "weighting": "the site that a feature comes from",
        "distillation": "its own site's prediction, KL, Adam",
    }
    Options = FedVirtualOptions

    def __init__(self, task: Task, options: FedVirtualOptions | None = None):
        super().__init__(task, options)
        if self.options.source.kind != "statistics":
            raise FedstillError("fedvirtual draws from the sites' statistics alone: use feddf or fedd3a to mix them with a pool")
        if self.personal or self.options.distillation.fresh:
            raise FedstillError("fedvirtual takes neither model.student nor distillation.fresh: remove them")
        per_class = (self.options.source.options or {}).get("per_class", True)
        if self.options.targets == "label" and not per_class:
            raise FedstillError("targets = 'label' needs statistics of each class: set source.options.per_class = true")

    def fused(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Average, draw features, compute their targets, distil."""
        options, distillation = self.options, self.distillation(round)
        merged = self.merge(server, replies, round)
        teachers = self.teachers(server, replies, round)
        weighting = self.weighting(server, teachers, round)
        shape = statistics_shape(self.task, replies[0].prototype)
        virtual = draw_virtual(replies, options.source.size, shape, self.source_rng(round))
        if options.targets == "ensemble":
            speakers = [Teacher(t.name, lambda t=t: self.view(t.load()), t.reply, t.places) for t in teachers]  # type: ignore[misc]
            table = ensemble_table(
                speakers, virtual.samples, weighting, space=options.ensemble, temperature=distillation.temperature
            )
        else:
            table = own_table(self.view, teachers, virtual, len(self.task.classes), by_label=options.targets == "label")
        note_weights(self.task, teachers, table, virtual.samples, round)
        note_statistics(replies, round)
        note_features(self.task, server.models, replies, round)
        starts = self.starts(server, merged, round)
        models = learn(self.task, starts, virtual.samples, table, distillation, round, view=self.view, snapshots=self.snapshots)
        note_ceiling(self.task, merged, teachers, weighting, distillation, round, options.ensemble)
        round.offer(merged, models)
        return Server({**merged, **models}, server.parts, server.values)
