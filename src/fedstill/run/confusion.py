"""What is taken for what: counts of class by predicted class on every test domain, in ``confusion.json``."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from fedstill.algorithm import Algorithm, Server
from fedstill.core.files import atomic_write, to_json

__all__ = ["MOST_CLASSES", "Confusion", "confused", "confusion_of", "write_confusion"]

MOST_CLASSES = 100  # a table of more is neither small nor read


class Confusion(TypedDict):
    """What is in ``confusion.json``."""

    classes: list[str]
    domains: dict[str, list[list[int]]]  # domain -> a row a class, a column a predicted class; summed over the models


def confused(truth: Tensor, said: Tensor, classes: int) -> Tensor:
    """How many samples of each class (down) were taken for each class (across).

    >>> confused(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return torch.bincount(truth * classes + said, minlength=classes**2).reshape(classes, classes)


def confusion_of(algorithm: Algorithm, server: Server) -> Confusion | None:
    """The tables of the models in ``server``; None where there are no test data, no model or too many classes."""
    classes = list(algorithm.task.classes)
    if len(classes) > MOST_CLASSES:
        return None
    domains = {}
    for name, test in algorithm.task.tests.items():
        if test.y is None:
            continue
        truth = test.y.cpu().long()
        tables = [confused(truth, said, len(classes)) for said in algorithm.predictions(server, test)]
        if tables:
            domains[name] = torch.stack(tables).sum(0).tolist()
    return {"classes": classes, "domains": domains} if domains else None


def write_confusion(out: Path, algorithm: Algorithm, server: Server) -> None:
    """Leave ``confusion.json`` in a run's folder, where there is something to tell."""
    found = confusion_of(algorithm, server)
    if found is not None:
        atomic_write(out / "confusion.json", to_json(found) + "\n")
