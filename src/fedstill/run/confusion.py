"""Confusion matrices: counts of class by predicted class on every test domain, in ``confusion.json``."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from fedstill.algorithm import Algorithm, Server
from fedstill.core.files import atomic_write, to_json
from fedstill.models.confusion import confused

__all__ = ["MOST_CLASSES", "Tables", "domain_tables", "write_confusion"]

MOST_CLASSES = 100  # a larger table is too large to store or to read


class Tables(TypedDict):
    """The contents of ``confusion.json``."""

    classes: list[str]
    domains: dict[str, list[list[int]]]  # domain -> a row per class, a column per predicted class; summed over the models


def domain_tables(algorithm: Algorithm, server: Server) -> dict[str, Tensor]:
    """The confusion matrix of the models in ``server`` on each test domain; empty without test data or a model."""
    found, classes = {}, len(algorithm.task.classes)
    for name, test in algorithm.task.tests.items():
        tables = [confused(test.y, said, classes) for said in algorithm.predictions(server, test)] if test.y is not None else []
        if tables:
            found[name] = torch.stack(tables).sum(0)
    return found


def write_confusion(out: Path, algorithm: Algorithm, server: Server) -> None:
    """Write ``confusion.json`` to a run's folder, if there is test data and there are not too many classes."""
    classes = list(algorithm.task.classes)
    found = domain_tables(algorithm, server) if len(classes) <= MOST_CLASSES else {}
    if found:
        tables: Tables = {"classes": classes, "domains": {name: table.tolist() for name, table in found.items()}}
        atomic_write(out / "confusion.json", to_json(tables) + "\n")
