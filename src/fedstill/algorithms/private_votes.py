"""Private votes in rounds: what FedDF refuses with them, and what their epsilon covers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedstill.algorithm import Round, Server
from fedstill.config.votes import Votes
from fedstill.core.errors import FedstillError
from fedstill.fusion.weightings import WeightingContext
from fedstill.fusion.weightings.private_votes import PrivateVotes, restored

if TYPE_CHECKING:  # it imports this module
    from fedstill.algorithms.feddf import FedDF

__all__ = ["check_votes", "covered", "note_votes", "private_votes"]


def check_votes(system: FedDF) -> None:
    """Refuse what cannot go with private votes, before any client trains."""
    task, options = system.task, system.options
    if task.config.privacy.votes is None:
        return
    if options.weighting != "uniform":
        raise FedstillError(f"privacy.votes counts every teacher's vote once: remove weighting = '{options.weighting}'")
    if task.config.evaluation.keep_ensemble:
        raise FedstillError("evaluation.keep_ensemble would publish the teachers that privacy.votes hides: remove one of them")
    if options.source.kind != "data":
        raise FedstillError(
            f"privacy.votes is about samples of the server's own: source.kind must be 'data', not '{options.source.kind}'"
        )
    if options.distillation.fresh:
        raise FedstillError("distillation.fresh asks the teachers in every step, and privacy.votes counts questions: remove it")
    if options.line and options.line.judge == "pool":
        raise FedstillError("the judge 'pool' compares with the average, which privacy.votes hides: set algorithm.line = false")


def private_votes(votes: Votes, context: WeightingContext, server: Server) -> PrivateVotes:
    """The weighting of a round; it goes on from what earlier rounds spent."""
    return PrivateVotes(replace(context, options=votes.model_dump()), restored(server.values))


def covered(system: FedDF) -> str:
    """What epsilon covers, in words. The server has the clients' weights in every round, whatever the votes hide."""
    options = system.options
    if not system.personal and (options.distillation.start == "average" or options.line):
        return (
            "epsilon covers the answers about the pool only: the student also contains the average of the clients' weights; "
            "set algorithm.distillation.start = 'previous' and algorithm.line = false to cover the student"
        )
    if options.drop_worst is not None:
        return "epsilon covers the answers about the pool only: drop_worst chooses teachers by their accuracy"
    return "epsilon covers the student, against everyone but the server, which receives the clients' weights"


def note_votes(system: FedDF, weighting: PrivateVotes, server: Server, round: Round) -> dict[str, Any]:
    """Note what the votes have spent so far; returns the server's values with it."""
    told = weighting.spent.to_json(weighting.votes, weighting.left_out)
    round.note(votes={**told, "covers": covered(system) + weighting.votes.limits})
    return {**server.values, "votes": {"asked": weighting.spent.asked, "answered": weighting.spent.answered}}
