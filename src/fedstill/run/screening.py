"""Screening: a client's outcome is read and checked, and becomes a :class:`Reply` or a reason to drop it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from fedstill.algorithm import Algorithm, Reply, Server
from fedstill.core.errors import FedstillError, first_line
from fedstill.engine.exchange import Outcome
from fedstill.engine.wire import expected
from fedstill.fusion.screening import fault

__all__ = ["screening"]


def screening(algorithm: Algorithm, server: Server, phase: str) -> Callable[[Outcome], tuple[Reply | None, str]]:
    """What makes of an outcome of this exchange the reply and an empty reason, or None and the reason to drop it."""
    wanted = cache(lambda prototype: expected(algorithm, prototype, server, phase))

    def screened(outcome: Outcome) -> tuple[Reply | None, str]:
        if outcome.read is None:
            return None, outcome.reason or "no reply"
        info = algorithm.task.clients[outcome.client]
        try:
            message = outcome.read()
        except FedstillError as error:
            return None, first_line(error)
        template, decode = wanted(info.prototype)
        problem = fault(message, algorithm.required(phase), template) or algorithm.screen(server, outcome.client, message)
        if problem:
            return None, problem
        return Reply(outcome.client, info.domain, info.prototype, int(message.values["samples"]), outcome.read, decode), ""

    return screened
