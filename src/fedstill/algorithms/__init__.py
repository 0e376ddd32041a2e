"""Every system, one per file. ``create`` makes the system that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedstill.algorithm import ALGORITHMS, Algorithm, Options
from fedstill.core.errors import FedstillError
from fedstill.core.options import validated
from fedstill.fusion.sources.generator import check_generated
from fedstill.local.private import check_private
from fedstill.local.reports.checks import check_reports
from fedstill.task import Task

__all__ = ["algorithms", "create", "options_of"]


def algorithms() -> dict[str, type[Algorithm]]:
    """Every system by its name.

    >>> "fedavg" in algorithms()
    True
    """
    return dict(sorted(ALGORITHMS.items()))


def options_of(table: Mapping[str, Any]) -> Options:
    """The validated options in an ``[algorithm]`` table."""
    given = {key: value for key, value in table.items() if key != "name"}
    return validated(ALGORITHMS.get(table["name"]).Options, given, "algorithm", ["name"])


def create(task: Task) -> Algorithm:
    """The algorithm that the task's configuration names. Refuses a task that lacks what the algorithm needs."""
    kind = ALGORITHMS.get(task.config.algorithm["name"])
    data = task.config.data
    if "pool" in kind.needs and not (data.server or data.target or data.holdout):
        raise FedstillError(f"{kind.name} distils on unlabelled data: set data.server, data.target or data.holdout")
    if "target" in kind.needs and not data.target:
        raise FedstillError(f"{kind.name} adapts to an unlabelled target domain: set data.target")
    if "generator" in kind.needs:
        check_generated(task, kind.name)
    voting = kind.name == "feddf" and task.config.privacy.votes is not None  # whose votes can be summed
    if task.config.privacy.secure is not None and not kind.sums_models and not voting:
        summed = ", ".join(name for name, other in algorithms().items() if other.sums_models)
        raise FedstillError(
            f"privacy.secure shows the server only a sum of models, and {kind.name} needs more than that from each client: "
            f"use {summed}"
            + (", or algorithm.secure = true" if kind.name == "dafkd" else "")
            + (", or add privacy.votes" if kind.name == "feddf" else "")
        )
    if task.config.privacy.client is not None and not kind.sums_models:
        summed = ", ".join(name for name, other in algorithms().items() if other.sums_models)
        raise FedstillError(f"privacy.client noises the sum of updates, and {kind.name} needs more of each client: use {summed}")
    if task.config.privacy.votes is not None and kind.name != "feddf":
        raise FedstillError(f"privacy.votes is for feddf, whose student can learn from votes alone; {kind.name} needs more")
    made = kind(task, options_of(task.config.algorithm))
    check_reports(made)
    check_private(made)
    return made
