"""What ``[privacy.reports]`` refuses, before any client trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedstill.algorithm import Algorithm, Client
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.local.reports.noise import report_noise

__all__ = ["COVERED", "check_reports", "with_spent"]

COVERED = ("projection", "counts", "statistics", "predictions")  # the groups of a reply that are noised
WEIGHTS = ("model", "layer", "masked")


def check_reports(algorithm: Algorithm) -> None:
    """Refuse reports whose change by one sample is not bounded, and budgets that do not say how they are divided."""
    config = algorithm.task.config
    reports, sample = config.privacy.reports, config.privacy.sample
    if reports is None:
        return
    trained = algorithm.private_items if sample is not None else ()  # by DP-SGD
    sent = [item for item in algorithm.sent() if item not in WEIGHTS and (item in COVERED or item not in trained)]
    other = next((item for item in sent if item not in COVERED), None)
    if other is not None or not sent:
        found = f"'{other}' of {algorithm.name} is none of them" if other else f"{algorithm.name} sends none of them"
        raise FedstillError(f"privacy.reports noises {', '.join(COVERED)}, and {found}")
    if len(sent) > 1 and reports.noise is None:
        raise FedstillError(f"privacy.reports.epsilon plans for one report, and clients send {' and '.join(sent)}: set noise")
    if sample is not None and (reports.noise is None or reports.delta != sample.delta):
        raise FedstillError("beside privacy.sample there is one budget: set privacy.reports.noise, and the same delta in both")
    if config.model.buffers == "local" and ("statistics" in sent or "projection" in sent):
        raise FedstillError("privacy.reports needs features of one network, and model.buffers = 'local' adds the client's own")
    if _option(algorithm, "weighting_options", "sample") is not None:
        raise FedstillError("privacy.reports bounds what a sample adds, not what it displaces: remove weighting_options.sample")
    report_noise(reports, config.rounds)  # a budget that no noise can keep is a mistake of the configuration


def with_spent(client: Client, reply: Message) -> Message:
    """The reply with what the client has spent, if it keeps a ledger of its reports."""
    reports = client.task.config.privacy.reports
    if reports is None:
        return reply
    return reply.with_parts(epsilon=client.ledger.epsilon(reports.delta))


def _option(algorithm: Algorithm, table: str, name: str) -> Any:
    found = getattr(algorithm.options, table, None)
    return found.get(name) if isinstance(found, Mapping) else None
