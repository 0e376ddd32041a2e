"""The end of a round with distillation: a judge compares points between average and student; one is delivered and one carried."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedstill.algorithm import Algorithm, Ends, Round, Server
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State
from fedstill.engine.exchange import JUDGE, Engine
from fedstill.fusion.judges import AVERAGE, OTHER, PAST, STUDENT, Verdict, agreements, fault, judged, right_answers, verdict_of
from fedstill.fusion.line import (
    Judge,
    Line,
    Past,
    averaged,
    candidates,
    carried_point,
    cautious_scores,
    delivered_point,
    is_full,
    judge_of,
    line_of,
    point,
)
from fedstill.fusion.merges import weighted_sum

__all__ = ["Settled", "delivered", "settle"]

DELIVERED = "delivered "  # before a prototype's name among the server's parts
CARRIED = "carried "  # before a number from 0 and a prototype's name: what the last rounds carried on, the newest first
JUDGED = "judged"  # among the server's values: by prototype, the last judged rounds with the scores of their candidates


@dataclass
class Settled:
    """The outcome of a round's judging, and its cost."""

    server: Server
    bytes_down: int = 0
    bytes_up: int = 0
    faults: dict[str, str] = field(default_factory=dict)  # clients without a usable verdict


def delivered(server: Server) -> Server:
    """The server's state with the delivered models instead of the carried ones."""
    found = {name.removeprefix(DELIVERED): state for name, state in server.parts.items() if name.startswith(DELIVERED)}
    return replace(server, models={**server.models, **found}) if found else server


def settle(
    algorithm: Algorithm, engine: Engine, server: Server, clients: Sequence[str], round: Round, before: Server | None = None
) -> Settled:
    """Choose the points of this round, note them, and put them into the server's state. ``before`` is the state at the start of
    the round, if it is not known that the system kept all parts of it."""
    line = line_of(algorithm)
    if line is None:
        return Settled(_without(server))
    config, server = algorithm.task.config, _with_carried(server, before if before is not None else server)
    judge, full = judge_of(line, config), is_full(line, config, round.number)
    keeps = line.past if judge != "none" else 0
    if not round.ends:
        return Settled(_carried_on(_without(server), keeps))
    past = {name: mean for name in round.ends if (mean := _past(server, name, line)) is not None} if keeps else {}
    done = Settled(server)
    models, parts, values = dict(server.models), _without(server).parts, dict(server.values)
    notes: dict[str, Any] = {"judge": judge, "points": list(line.points), "scores": {}, "delivered": {}, "carried": {}}
    if full:
        scores, notes["judged_in"] = _earlier(server, line, round, past)
    else:
        scores = _scores(judge, line, algorithm, engine, clients, round, past, done)
        if judge == "clients" and line.full_rounds:
            values[JUDGED] = _remembered(server, line, round, scores)
    for name, ends in round.ends.items():
        _choose(name, ends, line, past.get(name), scores.get(name), full, models, parts, notes)
    if done.faults:
        notes["faults"] = done.faults
    round.note(line=notes)
    done.server = _carried_on(Server(models, parts, values), keeps)
    return done


def _choose(
    name: str,
    ends: Ends,
    line: Line,
    past: Past | None,
    scores: Sequence[float] | None,
    full: bool,
    models: dict[str, State],
    parts: dict[str, State],
    notes: dict[str, Any],
) -> None:
    """Put what one prototype carries on into ``models``, what it delivers into ``parts``, and both into ``notes``."""
    on_line = None if scores is None else scores[: len(line.points)]
    carried = carried_point(line.points, on_line, line)
    if on_line is not None:
        taken = delivered_point(line.points, on_line)
    else:
        taken = 0.0 if full else carried  # what no verdict of any round supports is not delivered
    models[name] = point(ends.average, ends.student, carried)
    if taken != carried:
        parts[DELIVERED + name] = point(ends.average, ends.student, taken)
    notes["delivered"][name], notes["carried"][name] = taken, carried
    if scores is None or on_line is None:
        return
    notes.setdefault("cautious_scores" if full else "scores", {})[name] = [_rounded(score) for score in on_line]
    best, others = max(on_line), list(scores[len(line.points) :])  # in the order of `candidates`
    if past is not None:
        means, others = others[: len(past.points)], others[len(past.points) :]
        notes.setdefault("past", {})[name] = _mean(name, ends, past, means, best, parts)
        best = max(best, *means)
    early, others = others[: len(ends.snapshots)], others[len(ends.snapshots) :]
    if early:
        notes.setdefault("snapshots", {})[name] = _snapshot(name, ends, early, best, parts)
        best = max(best, *early)
    if ends.plain is not None:
        kept = on_line[line.points.index(carried)] if carried in line.points else max(on_line)
        told = _plain(name, ends.plain, others[0], best, kept, models, parts)
        notes.setdefault("plain", {})[name] = told
        for what in ("delivered", "carried"):
            if told[what]:
                notes[what][name] = 0.0


def _past(server: Server, name: str, line: Line) -> Past | None:
    """The mean of the models that the last rounds carried on, and the points to average with it; None before the second round."""
    places = (f"{CARRIED}{i} {name}" for i in range(line.past))
    kept = [server.parts[place] for place in places if place in server.parts]
    if not kept:
        return None
    mean = weighted_sum(kept, [1 / len(kept)] * len(kept)) if len(kept) > 1 else kept[0]
    return Past(mean, len(kept), [t for t in line.points if t <= line.reach])


def _with_carried(server: Server, before: Server) -> Server:
    """The state with the models that the rounds before carried on, as ``before`` has them."""
    parts = {name: state for name, state in server.parts.items() if not name.startswith(CARRIED)}
    return replace(server, parts={**parts, **{n: state for n, state in before.parts.items() if n.startswith(CARRIED)}})


def _carried_on(server: Server, count: int) -> Server:
    """The state with the models that this round carries on before those of the rounds before, at most ``count`` of each."""
    parts = {name: state for name, state in server.parts.items() if not name.startswith(CARRIED)}
    for name, model in server.models.items():
        before = (server.parts.get(f"{CARRIED}{i} {name}") for i in range(count - 1))
        kept = [model, *(state for state in before if state is not None)][:count]
        parts |= {f"{CARRIED}{i} {name}": state for i, state in enumerate(kept)}
    return replace(server, parts=parts)


def _remembered(server: Server, line: Line, round: Round, scores: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The scores of the last judged rounds with this one's, for the rounds that will not be judged."""
    before = server.values.get(JUDGED, {})
    now = {name: [*before.get(name, []), [round.number, list(found)]][-line.window :] for name, found in scores.items()}
    return {**before, **now}


def _earlier(
    server: Server, line: Line, round: Round, past: Mapping[str, Past]
) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """The scores of each prototype's candidates by the last judged rounds, and which rounds these are."""
    found, rounds = {}, {}
    for name, ends in round.ends.items():
        wanted, safe = _count(line, ends, past.get(name)), 0 if ends.plain is None else -1  # its own average may not be safe
        judged_then = []
        for number, scores in server.values.get(JUDGED, {}).get(name, []):
            if name in past and len(scores) == wanted - len(past[name].points):  # the first round: there was nothing before it
                points = len(line.points)
                scores = [*scores[:points], *[scores[safe]] * len(past[name].points), *scores[points:]]
            if len(scores) == wanted:
                judged_then.append((number, scores))
        if judged_then:
            found[name] = cautious_scores([scores for _, scores in judged_then], safe)
            rounds[name] = [number for number, _ in judged_then]
    return found, rounds


def _mean(name: str, ends: Ends, past: Past, scores: Sequence[float], best: float, parts: dict[str, State]) -> dict[str, Any]:
    """Deliver the best mean with the rounds before if its score is above ``best``; returns the note about it."""
    t = delivered_point(past.points, scores)
    taken = max(scores) > best
    if taken:
        parts[DELIVERED + name] = averaged(point(ends.average, ends.student, t), past)
    return {
        "rounds": past.rounds + 1,
        "points": list(past.points),
        "scores": [_rounded(score) for score in scores],
        "delivered": t if taken else None,
    }


def _snapshot(name: str, ends: Ends, scores: Sequence[float], best: float, parts: dict[str, State]) -> dict[str, Any]:
    """Deliver the best early state of a student if its score is above ``best``; returns the note about it."""
    first = max(range(len(scores)), key=lambda i: scores[i])
    taken = scores[first] > best
    if taken:
        parts[DELIVERED + name] = dict(ends.snapshots[first])
    return {"scores": [_rounded(score) for score in scores], "delivered": first if taken else None}


def _plain(
    name: str, plain: State, score: float, best: float, kept: float, models: dict[str, State], parts: dict[str, State]
) -> dict[str, Any]:
    """Deliver the average by examples if it is better than every other candidate, and carry it on if it is better than the
    carried point; returns the note about it."""
    if score > kept:
        parts.setdefault(DELIVERED + name, models[name])  # unless a better model is already delivered
        models[name] = plain
    if score > best:
        parts[DELIVERED + name] = plain
    return {"score": _rounded(score), "delivered": score > best, "carried": score > kept}


def _rounded(score: float) -> float:
    return float(f"{score:.5f}")


def _without(server: Server) -> Server:
    """The state without the delivered models of an earlier round."""
    return replace(server, parts={name: state for name, state in server.parts.items() if not name.startswith(DELIVERED)})


def _scores(
    judge: Judge,
    line: Line,
    algorithm: Algorithm,
    engine: Engine,
    clients: Sequence[str],
    round: Round,
    past: Mapping[str, Past],
    done: Settled,
) -> dict[str, list[float]]:
    """The judge's score of each candidate, by prototype; a prototype that was not judged is missing."""
    task = algorithm.task
    if judge == "none":
        return {}
    if judge == "clients":
        return _asked(line, algorithm, engine, clients, round, past, done)
    found: dict[str, list[float]] = {}
    for name, ends in round.ends.items():
        if judge == "server":
            data = task.validation
            if data is None:
                raise FedstillError("line.judge = 'server' needs labelled data on the server: set data.validation, e.g. 0.1")
            right = right_answers(task.networks.get(name, "student"), _candidates(ends, line, past.get(name)), data)
            found[name] = (right.double() / len(data)).tolist()
        elif ends.held is not None:
            found[name] = agreements(
                task.networks.get(name, "student"), _candidates(ends, line, past.get(name)), *ends.held, view=ends.view
            )
    return found


def _candidates(ends: Ends, line: Line, past: Past | None) -> Iterator[State]:
    return candidates(ends.average, ends.student, line.points, past, _others(ends))


def _count(line: Line, ends: Ends, past: Past | None) -> int:
    return len(line.points) + (len(past.points) if past is not None else 0) + len(_others(ends))


def _others(ends: Ends) -> list[State]:
    """The candidates beside the line: the student's early states, then the average by examples."""
    return [*ends.snapshots, *([ends.plain] if ends.plain is not None else [])]


def _asked(
    line: Line,
    algorithm: Algorithm,
    engine: Engine,
    clients: Sequence[str],
    round: Round,
    past: Mapping[str, Past],
    done: Settled,
) -> dict[str, list[float]]:
    """One exchange in which every client of the round compares the points of its own architecture."""
    task = algorithm.task
    messages = {name: _message(ends, line.points, past.get(name)) for name, ends in round.ends.items()}
    counts = {name: _count(line, ends, past.get(name)) for name, ends in round.ends.items()}
    asked = [
        (client, messages[task.clients[client].prototype]) for client in clients if task.clients[client].prototype in messages
    ]
    done.bytes_down = sum(message.nbytes for _, message in asked)
    verdicts: dict[str, dict[str, Verdict]] = {name: {} for name in messages}
    for outcome in engine.exchange(round.number, JUDGE, asked):
        done.bytes_up += outcome.nbytes
        info = task.clients[outcome.client]
        if outcome.read is None:
            done.faults[outcome.client] = outcome.reason or "no reply"
            continue
        try:
            message = outcome.read()
            problem = fault(message, counts[info.prototype], info.samples)
        except FedstillError as error:
            problem = str(error)
        if problem is None:
            verdicts[info.prototype][outcome.client] = verdict_of(message, info.domain)
        else:
            done.faults[outcome.client] = problem
    # in the order of the round's clients, not of arrival
    return {
        name: judged([given[client] for client in clients if client in given], line.trim)
        for name, given in verdicts.items()
        if given
    }


def _message(ends: Ends, points: Sequence[float], past: Past | None) -> Message:
    parts: Mapping[str, State] = {AVERAGE: ends.average, STUDENT: ends.student, **({PAST: past.mean} if past is not None else {})}
    others: Mapping[str, State] = {f"{OTHER}{i}": dict(state) for i, state in enumerate(_others(ends))}
    mixed, rounds = (list(past.points), past.rounds) if past is not None else ([], 0)
    told = {"points": json.dumps(list(points)), "past_points": json.dumps(mixed)}
    return Message.of(**parts, **others, **told, past_rounds=rounds, others=len(others))
