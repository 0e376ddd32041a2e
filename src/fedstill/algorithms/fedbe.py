"""FedBE: distil an ensemble that includes models sampled around the clients' models.

Chen and Chao, FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning, ICLR 2021. Teachers are the average, all
clients and samples from a posterior over weights fitted to the clients. The student starts from the average, learns the teachers'
sharpened mean prediction, and is itself an average of its weights over training (SWA). With ``posterior = "swag"`` it is what
FedDF's Table 7 calls SWAG.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from fedstill.algorithm import Reply, Round, Server, algorithm
from fedstill.algorithms.feddf import FedDF, FedDFOptions
from fedstill.core.message import State
from fedstill.fusion.distillation.options import Averaging, Distillation
from fedstill.fusion.ensemble import Space
from fedstill.fusion.merges import by_examples
from fedstill.fusion.merges.posterior import (
    dirichlet_sample,
    gaussian_sample,
    moments,
    swag_sample,
    unit_gaussian_sample,
    unit_moments,
)
from fedstill.fusion.teacher import Teacher, teacher_from
from fedstill.models.statistics import recalibrate
from fedstill.training.options import Optimizer

__all__ = ["FedBE", "FedBEOptions"]


class FedBEOptions(FedDFOptions):
    """The values of the paper or, if it gives none, of the authors' code."""

    posterior: Literal["gaussian", "unit-gaussian", "dirichlet", "swag"] = "gaussian"
    """Where sampled teachers come from. ``gaussian``: mean and variance of the clients' weights. ``unit-gaussian``: of their
    normalised updates (the authors' code). ``dirichlet``: random averages of the clients. ``swag``: SWAG around the clients, with
    the other defaults of FedDF's Table 7 and code."""

    samples: Annotated[int, Field(ge=0)] = 10
    """Number of sampled teachers."""

    scale: Annotated[float, Field(gt=0)] = 1.0
    """Factor of the variance (gaussian, swag); the SWAG paper has 0.5."""

    spread: Annotated[float, Field(gt=0)] = 0.1
    """Factor of the standard deviation (unit-gaussian)."""

    alpha: Annotated[float, Field(gt=0)] = 0.5
    """Concentration of the Dirichlet distribution (dirichlet). The value is ours: the paper gives none, and the authors' code
    reads an argument that it never defines."""

    clients_teach: bool = True
    """Whether the clients teach, in addition to the samples."""

    average_teaches: bool = True
    """Whether the clients' average teaches as well."""

    recalibrate: bool = False
    """Estimate each sampled teacher's BatchNorm statistics on the server's data."""

    ensemble: Space = "probabilities"
    """What is averaged over the teachers."""

    distillation: Distillation = Distillation(
        sharpen=0.5,  # p^2, normalised
        reduction="mean",
        epochs=20,
        optimizer=Optimizer(name="sgd", lr=1e-3, momentum=0.9, weight_decay=1e-5),
        schedule="constant",  # the cyclical rate of the paper's SWA is not in its code
        clip=None,
        averaging=Averaging(start=500, every=25),
    )
    """How the student learns."""

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The defaults that come with the SWAG posterior."""
        return SWAG if given.get("posterior") == "swag" else {}


# the SWAG variant of FedDF's Table 7 (clients and samples teach) and of its code (the student; BatchNorm re-estimated per sample)
SWAG: Mapping[str, Any] = {
    "average_teaches": False,
    "recalibrate": True,
    "ensemble": "logits",
    "distillation": {
        "epochs": 0,
        "steps": 250,
        "sharpen": None,
        "reduction": "batchmean",
        "optimizer": {"name": "sgd", "lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0},
        "averaging": {"start": 0, "every": 25},
    },
}


@algorithm
class FedBE(FedDF[FedBEOptions]):
    """FedDF with sampled teachers, sharpened targets and an averaged student."""

    name = "fedbe"
    title = "FedBE"
    paper = "Chen and Chao, ICLR 2021"
    parts = {
        "merge": "average by examples",
        "source": "unlabelled data",
        "weighting": "uniform over the average, the clients and sampled models",
        "distillation": "mean of probabilities, sharpened, KL, SGD, weight averaging",
    }
    public_structure = False  # it samples models of the clients' architectures
    Options = FedBEOptions

    def teachers(self, server: Server, replies: Sequence[Reply], round: Round) -> list[Teacher]:
        """The average, the samples and the clients, prototype by prototype."""
        wanted = self.options
        merged = self.merge(server, replies, round)
        teachers = super().teachers(server, replies, round) if wanted.clients_teach else []
        for name in dict.fromkeys(reply.prototype for reply in replies):
            group = [reply for reply in replies if reply.prototype == name]
            suffix = f"-{name}" if len(server.models) > 1 else ""
            if wanted.average_teaches:
                teachers.append(teacher_from(self.task, f"average{suffix}", name, partial(dict, merged[name])))
            sample = self.sampler(name, group, server.models[name], merged[name])
            for s in range(wanted.samples):
                state = partial(_sampled, sample, round, name, s)
                drawn = teacher_from(self.task, f"sample{s}{suffix}", name, state)
                teachers.append(self.calibrated(drawn) if wanted.recalibrate else drawn)
        return teachers

    def sampler(self, name: str, group: Sequence[Reply], before: State, base: State) -> Callable[[torch.Generator], State]:
        """A function that draws a model from the posterior, given a random stream; buffers are always those of the average."""
        wanted = self.options
        names = {key for key, _ in self.task.networks.get(name).named_parameters()}
        if wanted.posterior == "dirichlet":
            return lambda rng: dirichlet_sample(group, names, base, wanted.alpha, rng)
        if wanted.posterior == "unit-gaussian":
            found = unit_moments(group, names, before)
            return lambda rng: unit_gaussian_sample(found, before, base, wanted.spread, rng)
        if wanted.posterior == "swag":
            equal = moments(group, names, [1 / len(group)] * len(group))
            return lambda rng: swag_sample(group, equal, base, wanted.scale, rng)
        around = moments(group, names, by_examples(group))
        return lambda rng: gaussian_sample(around, base, wanted.scale, rng)

    def calibrated(self, teacher: Teacher) -> Teacher:
        """The same teacher with BatchNorm statistics of the server's data."""
        return Teacher(teacher.name, lambda: recalibrate(teacher.load(), self.task.statistics_data))


def _sampled(sample: Callable[[torch.Generator], State], round: Round, prototype: str, number: int) -> State:
    # its own stream, so that a sampled teacher is the same whenever it is loaded
    return sample(round.rng("posterior", prototype, number))
