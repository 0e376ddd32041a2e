"""FedD3A: weight each teacher, for each sample of the pool, by how near the sample is to the teacher's domain.

Su, Li and Xue, Domain Discrepancy Aware Distillation for Model Aggregation in Federated Learning, 2022. Algorithm 1: before
training, a client extracts the features of its data with the global model's backbone and sends the projection matrix of their
subspace (Eq. 5, :mod:`fedstill.local.reports.projection`). The server weights the teachers of a sample by the angles between its
feature and that feature's projections (Eq. 6, :mod:`fedstill.fusion.weightings.projection`), mixes their probabilities (Eq. 7)
and distils them into the average (Eq. 8). The rest is FedDF. With ``model.student`` set, its heterogeneous clients are those of
the paper: each keeps its own model and learns from the global one.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.algorithm import Reply, Round, Server, algorithm
from fedstill.algorithms.feddf import FedDF, FedDFOptions
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Space
from fedstill.fusion.merges import MergeName
from fedstill.training.options import Optimizer, Schedule
from fedstill.training.schedules import learning_rate

__all__ = ["FedD3A", "FedD3AOptions"]


class FedD3AOptions(FedDFOptions):
    """The paper's values, as far as it gives them."""

    merge: MergeName = "uniform"
    """How the clients' models are merged into the student's start: "Average(...)" in Algorithm 1."""

    weighting: str = "soft"
    """How much each teacher counts for each sample (Eq. 6). Table 1 also has ``onehot``, ``avg`` and ``random``."""

    ensemble: Space = "probabilities"
    """What is averaged over the teachers (Eq. 7)."""

    distillation: Distillation = Distillation(
        direction="forward",  # Eq. 8 has the other direction, which was no better in measurements: docs/fedd3a.md
        epochs=1,
        batch_size=256,
        optimizer=Optimizer(name="sgd", lr=0.01, momentum=0.9),  # "momentum SGD", momentum not given
        schedule="constant",
        clip=None,
    )
    """How the student learns (Eq. 8)."""

    rate: Schedule = Schedule(kind="cosine", final=1e-4)
    """The server's learning rate over the rounds."""


@algorithm
class FedD3A(FedDF[FedD3AOptions]):
    """FedDF with teachers weighted by domain, sample by sample."""

    name = "fedd3a"
    title = "FedD3A"
    paper = "Su, Li and Xue, 2022"
    parts = {
        "report": "subspace projection",
        "merge": "uniform average",
        "source": "unlabelled data",
        "weighting": "projection (soft)",
        "distillation": "mean of probabilities, KL, SGD with momentum",
    }
    Options = FedD3AOptions

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Algorithm 1, the server's part; the size of the matrices goes into the history."""
        if self.report == "projection":
            sent, whole, models = (sum(column) for column in zip(*map(self._bytes, replies), strict=True))
            round.note(projection={"bytes": sent, "of_model": float(f"{sent / models:.4g}"), "saved": whole - sent})
        return super().fuse(server, replies, round)

    def _bytes(self, reply: Reply) -> tuple[int, int, int]:
        """The bytes of one reply's report, of the whole d x d matrix, and of its model."""
        part = reply.part("projection")
        d = part["matrix" if "matrix" in part else "vectors"].shape[0]
        size = [sum(t.numel() * t.element_size() for t in group.values()) for group in (part, reply.part("model"))]
        return size[0], d * d * 4, size[1]

    def distillation(self, round: Round) -> Distillation:
        """The options of distillation, with a server learning rate that decays over the rounds."""
        options = super().distillation(round)
        rate = learning_rate(options.optimizer.lr, self.options.rate, round.number, round.total)
        return options.model_copy(update={"optimizer": options.optimizer.model_copy(update={"lr": rate})})
