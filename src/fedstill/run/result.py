"""The result of a run: its figures, and its model ready for use."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, overload

import torch
from torch import Tensor

from fedstill.algorithm import Algorithm, Server
from fedstill.core.errors import FedstillError, unknown
from fedstill.data.inputs import Inputs
from fedstill.models.classifier import Classifier
from fedstill.models.confusion import Confusion
from fedstill.models.network import Network
from fedstill.models.trunk import Top
from fedstill.run.confusion import domain_tables
from fedstill.run.history import Line, Summary
from fedstill.run.judging import delivered
from fedstill.task import Task

__all__ = ["Result", "classifiers_of"]


@dataclass(frozen=True)
class Result:
    """The result of a run: its folder, its history and summary, and the server's last state."""

    folder: Path
    history: list[Line] = field(repr=False)
    summary: Summary
    server: Server = field(repr=False)
    task: Task = field(repr=False)
    algorithm: Algorithm = field(repr=False)

    @property
    def accuracy(self) -> float | None:
        """The final accuracy; None if nothing was evaluated."""
        return self.summary["final_accuracy"]

    @cached_property
    def classifiers(self) -> dict[str, Classifier]:
        """Every model of the run, by name, with the names of its classes and its preprocessing."""
        return classifiers_of(self.algorithm, delivered(self.server))

    @property
    def classifier(self) -> Classifier:
        """The run's only model."""
        if not self.classifiers:
            raise FedstillError(f"{self.algorithm.title} has no model on the server: its clients keep their own")
        if len(self.classifiers) > 1:
            names = ", ".join(self.classifiers)
            raise FedstillError(f"this run has {len(self.classifiers)} models ({names}): choose one of result.classifiers")
        return next(iter(self.classifiers.values()))

    @property
    def model(self) -> Network:
        """The trained network, in eval mode and independent of the run; ``model(model.normalise(images))`` gives logits."""
        return self.classifier.network

    @overload
    def predict(self, inputs: Inputs, *, probabilities: Literal[False] = False) -> list[str]: ...

    @overload
    def predict(self, inputs: Inputs, *, probabilities: Literal[True]) -> Tensor: ...

    def predict(self, inputs: Inputs, *, probabilities: bool = False) -> list[str] | Tensor:
        """The class of each image, text or row, or with ``probabilities`` a tensor (n, classes); see
        :meth:`fedstill.models.classifier.Classifier.predict`."""
        return self.classifier.predict(inputs, probabilities=True) if probabilities else self.classifier.predict(inputs)

    def confusion(self, domain: str | None = None) -> Confusion:
        """The confusion matrix on a domain's test samples, or on those of all domains if none is named. If the run has several
        models, it is summed over them."""
        tests = self.task.tests
        if domain is not None and domain not in tests:
            raise unknown("test domain", domain, tests)
        chosen = [table for name, table in self._tables.items() if domain in (None, name)]
        if not chosen:
            raise FedstillError("this run has no test data on the server, or no model")
        return Confusion(tuple(self.task.classes), torch.stack(chosen).sum(0))

    @cached_property
    def _tables(self) -> dict[str, Tensor]:
        return domain_tables(self.algorithm, delivered(self.server))


def classifiers_of(algorithm: Algorithm, server: Server) -> dict[str, Classifier]:
    """The models of a finished run, ready for use and independent of the run's networks."""
    task, found = algorithm.task, {}
    for name, (prototype, state) in algorithm.products(server).items():
        network = copy.deepcopy(algorithm.loaded(prototype, state)).cpu()
        network = network.whole if isinstance(network, Top) else network
        network.input_shape = tuple(task.raw_shape) if task.kind == "image" else None
        found[name] = Classifier(network.eval(), tuple(task.classes), task.preprocessing)
    return found
