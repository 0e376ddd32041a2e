"""Screening: a client's outcome is read and checked, and becomes a :class:`Reply` or a reason to drop it."""

from __future__ import annotations

from fedstill.algorithm import Algorithm, Reply, Server
from fedstill.core.errors import FedstillError, first_line
from fedstill.engine.exchange import Outcome
from fedstill.engine.wire import expected
from fedstill.fusion.screening import fault

__all__ = ["screened"]


def screened(algorithm: Algorithm, server: Server, phase: str, outcome: Outcome) -> tuple[Reply | None, str]:
    """The reply of an outcome and an empty reason, or None and the reason to drop it."""
    if outcome.read is None:
        return None, outcome.reason or "no reply"
    info = algorithm.task.clients[outcome.client]
    try:
        message = outcome.read()
    except FedstillError as error:
        return None, first_line(error)
    template, decode = expected(algorithm, info.prototype, server, phase)
    problem = fault(message, algorithm.required(phase), template) or algorithm.screen(server, outcome.client, message)
    if problem:
        return None, problem
    return Reply(outcome.client, info.domain, info.prototype, int(message.values["samples"]), outcome.read, decode), ""
