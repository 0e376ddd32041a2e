"""The loop, the same on every engine: sample clients, exchange messages, screen the replies, fuse, evaluate, keep a history."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from fedstill.algorithm import Algorithm, Reply, Round, Scores, Server
from fedstill.algorithms import create
from fedstill.config.tables import Config
from fedstill.core.accounting import SPENT
from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write, to_json
from fedstill.core.streams import numpy_stream, seeded
from fedstill.engine.exchange import EVALUATE, Engine, Outcome
from fedstill.engine.inprocess import InProcess
from fedstill.engine.prepared import prepare
from fedstill.run import history as records
from fedstill.run.budgets import client_budgets, said_epsilon
from fedstill.run.checkpoint import save_checkpoint
from fedstill.run.clients import as_json, client_records
from fedstill.run.confusion import write_confusion
from fedstill.run.folder import begin, folder_lock, keep_ensemble, write_features, write_generator, write_models, write_samples
from fedstill.run.history import Dropped, Line
from fedstill.run.judging import Settled, delivered, settle
from fedstill.run.listener import Listener, Listeners
from fedstill.run.result import Result
from fedstill.run.screening import screening
from fedstill.run.sent import add_items
from fedstill.task import Task

__all__ = ["Result", "drive", "run", "sample_clients", "sample_independently"]


def sample_clients(ids: Sequence[str], count: int, seed: int, round: int) -> list[str]:
    """The clients of a round: a pure function of the seed and the round.

    >>> sample_clients(["a", "b", "c"], 2, 0, 1) == sample_clients(["a", "b", "c"], 2, 0, 1)
    True
    """
    if count >= len(ids):
        return list(ids)
    chosen = numpy_stream(seed, "sample", round).choice(len(ids), size=count, replace=False)
    return [ids[i] for i in sorted(chosen)]


def sample_independently(ids: Sequence[str], fraction: float, seed: int | None, round: int) -> list[str]:
    """The clients of a round if each takes part with probability ``fraction``, whatever the others do: there may be none. This is
    the sampling that privacy is accounted for. Without a seed, the operating system draws.

    >>> sample_independently(["a", "b"], 1.0, 0, 1), sample_independently(["a", "b"], 1e-9, 0, 1)
    (['a', 'b'], [])
    """
    rng = numpy_stream(seed, "sample", round) if seed is not None else np.random.default_rng()
    return [name for name, draw in zip(ids, rng.random(len(ids)), strict=True) if draw < fraction]


def run(config: Config, out: Path, *, resume: bool = False, listeners: Sequence[Listener] = ()) -> Result:
    """Run a configuration to its end and write its folder; with ``resume``, continue from the last checkpoint there."""
    Listeners(listeners).preparing()
    try:
        if config.engine.name == "flower-simulation":
            from fedstill.run.federation import run_simulation  # optional: needs Flower

            return run_simulation(config, out, resume=resume, listeners=listeners)
        return _run_here(config, out, resume, listeners)
    finally:
        Listeners(listeners).closed()


def _run_here(config: Config, out: Path, resume: bool, listeners: Sequence[Listener]) -> Result:
    if config.engine.workers:
        prepare(config.engine.threads)  # it imports while the data is read
    with threads(config.engine.threads):
        task = Task(config)
        task.progress = Listeners(listeners).progress
        algorithm = create(task)
        if task.kept_trunk is not None:
            _ = task.domains  # features are computed here, with progress shown, before workers need them
        out.mkdir(parents=True, exist_ok=True)
        engine = InProcess(
            algorithm,
            out,
            workers=config.engine.workers,
            threads=config.engine.threads,
            timeout=config.clients.timeout,
        )
        with contextlib.closing(engine):
            return drive(algorithm, engine, out, resume=resume, listeners=listeners)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the block with ``count`` torch threads; 0 changes nothing."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def drive(algorithm: Algorithm, engine: Engine, out: Path, *, resume: bool = False, listeners: Sequence[Listener] = ()) -> Result:
    """Run the rounds, on any engine."""
    out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        return _rounds(algorithm, engine, out, resume=resume, listeners=listeners)


def _rounds(algorithm: Algorithm, engine: Engine, out: Path, *, resume: bool, listeners: Sequence[Listener]) -> Result:
    task, config = algorithm.task, algorithm.task.config

    if config.evaluation.keep_ensemble and not algorithm.has_ensemble:
        raise FedstillError(f"{algorithm.name} has no ensemble of teachers to keep: set evaluation.keep_ensemble = false")
    told = Listeners(listeners)
    path = out / "history.jsonl"
    done, server = begin(algorithm, out, resume, told.warn)
    history = records.truncate(path, done)
    if len(history) != done:
        told.warn(
            f"{path} has {len(history)} of the {done} rounds before this one; the old file is {records.put_aside(path).name}"
        )
    _write_clients(task, out / "clients.json", done, told)
    for note in task.notes:
        told.warn(note)
    told.started(task, done)
    ids = task.client_ids
    count = config.clients.per_round or max(1, round(config.clients.fraction * len(ids)))
    if algorithm.everyone:
        count = len(ids)
    ending = Ending()
    try:
        for number in range(done + 1, config.rounds + 1):
            context = Round(number, config.rounds, config.seed, progress=told.progress)
            private = config.privacy.client
            if private is None:
                chosen = sample_clients(ids, count, config.seed, algorithm.cohort(number))
            else:
                chosen = sample_independently(ids, config.clients.fraction, None if private.secret else config.seed, number)
            server, line_of, heard = _round(algorithm, engine, server, chosen, context, ending)
            if not task.tests and history:  # in this round, the clients tested the model of the last round
                judge(history[-1], heard, path, history)
                told.round(history[-1])
            if context.speakers is not None:  # they read the replies, which the next exchange removes
                keep_ensemble(out, task, context.speakers)
            ending = Ending(partial(_end, algorithm, server, context, line_of, out, history, told))
    finally:  # also if the next round fails
        ending.finish()
    if not task.tests and history and history[-1]["accuracy"] is None:
        judge(history[-1], _hear(algorithm, engine, delivered(server), ids), path, history)
        told.round(history[-1])
    write_models(out, algorithm.products(delivered(server)), task)
    write_confusion(out, algorithm, delivered(server))
    write_generator(out, algorithm, server)
    found = records.summary(config.algorithm["name"], config.seed, history, config.evaluation.targets)
    atomic_write(out / "summary.json", to_json(found) + "\n")
    told.finished(found)
    return Result(out, history, found, server, task, algorithm)


def _end(
    algorithm: Algorithm,
    server: Server,
    context: Round,
    line_of: Callable[[Line | None], Line],
    out: Path,
    history: list[Line],
    told: Listener,
) -> None:
    """The end of a round: what was measured, pictures, its line and the checkpoint."""
    line = line_of(history[-1] if history else None)
    for text in context.notes.get("warnings", []):
        told.warn(text)
    write_samples(out, algorithm, server, context)
    write_features(out, context)
    # before the checkpoint: a line without its checkpoint is cut off and its round repeated
    records.append(out / "history.jsonl", line)
    history.append(line)
    save_checkpoint(out / "checkpoint", context.number, server)
    if algorithm.task.tests:
        told.round(line)


def _write_clients(task: Task, path: Path, done: int, told: Listener) -> None:
    before = _mark_of(path) if done and path.exists() else None
    atomic_write(path, as_json(client_records(task)))
    if before not in (None, _mark_of(path)):
        told.warn(f"the clients' data has changed: rewriting {path}")


def _mark_of(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


class Ending:
    """What is left to do of a round. It is done once, while the clients of the next round already train."""

    def __init__(self, step: Callable[[], None] | None = None):
        self._step = step

    def finish(self) -> float:
        """Do it, unless that was tried before; returns the seconds that it took."""
        clock = time.perf_counter()
        step, self._step = self._step, None
        if step is not None:
            step()
        return time.perf_counter() - clock


Heard = dict[str, list[tuple[float, int]]]  # by domain: each client's accuracy and its number of test samples


def judge(line: Line, heard: Heard, path: Path, history: list[Line]) -> None:
    """Complete a round's line with the accuracies that clients measured on their own test data, and rewrite the history."""
    domains = {name: sum(a * n for a, n in found) / sum(n for _, n in found) for name, found in sorted(heard.items())}
    line.update({"accuracy": fmean(domains.values()) if domains else None, "domains": domains, "measured_by": "clients"})
    records.rewrite(path, history)


def _hear(algorithm: Algorithm, engine: Engine, server: Server, ids: Sequence[str]) -> Heard:
    """One exchange after the last round, in which every client tests the final model."""
    config = algorithm.task.config
    context = Round(config.rounds, config.rounds, config.seed, phase=algorithm.phases(config.rounds)[0])
    messages = [(client, algorithm.instruct(server, client, context)) for client in ids]
    heard: Heard = {}
    for outcome in engine.exchange(config.rounds + 1, EVALUATE, messages):
        _note(algorithm, outcome, heard)
    return heard


def _note(algorithm: Algorithm, outcome: Outcome, heard: Heard) -> None:
    if outcome.accuracy is not None and 0 <= outcome.accuracy <= 1 and outcome.tested > 0:  # reported by a client, so checked
        heard.setdefault(algorithm.task.clients[outcome.client].domain, []).append((outcome.accuracy, outcome.tested))


# notes that are not a system's own fields: every line has a place for them, or they are reported elsewhere
TAKEN = ("merged_accuracy", "ensemble_accuracy", "evaluate_seconds", "warnings")


def _round(
    algorithm: Algorithm, engine: Engine, server: Server, chosen: list[str], context: Round, before: Ending
) -> tuple[Server, Callable[[Line | None], Line], Heard]:
    """Exchange and fuse. ``before`` ends the last round once this one's clients are at work. Returns the state after the round,
    what makes the round's line from the line before it once everything is measured, and what clients measured."""
    config = algorithm.task.config
    heard: Heard = {}
    seconds = {"train": 0.0, "fuse": 0.0, "evaluate": 0.0}
    down = up = 0
    dropped: list[Dropped] = []
    sent: dict[str, int] = {}
    spent: dict[str, float] = {}  # by client, where each keeps a privacy ledger
    present, began = list(chosen), server
    for phase in algorithm.phases(context.number):
        context.phase = phase
        clock = time.perf_counter()
        messages = [(client, algorithm.instruct(server, client, context)) for client in present]
        down += sum(message.nbytes for _, message in messages)
        found: dict[str, Reply] = {}
        outcomes = engine.exchange(context.number, phase, messages)
        # clients train meanwhile, but that time is the last round's: the seconds of all rounds add up to what passed
        seconds["train"] -= before.finish()
        screened = screening(algorithm, server, phase)
        for outcome in outcomes:
            up += outcome.nbytes
            _note(algorithm, outcome, heard)
            reply, reason = screened(outcome)
            if reply is not None:
                found[outcome.client] = reply
                message = reply.message
                add_items(sent, message)
                if (epsilon := said_epsilon(message.values)) is not None:
                    spent[outcome.client] = epsilon
            else:
                dropped.append({"client": outcome.client, "reason": reason})
            context.progress(phase, len(found) + len(dropped), len(chosen))
        present = [client for client in present if client in found]  # in the order of sampling, not of arrival
        seconds["train"] += time.perf_counter() - clock
        stopped = not present and bool(dropped) and all(SPENT in one["reason"] for one in dropped)
        if stopped and config.privacy.client is None:
            break  # every client of the round has stopped: the model stays, and others may be drawn next
        least = config.clients.min_replies if config.privacy.client is None else min(config.clients.min_replies, len(chosen))
        if len(present) < least and not stopped:  # with privacy.client few may be drawn, and a round of nobody is one of noise
            reasons = "; ".join(f"{d['client']}: {d['reason']}" for d in dropped[:3])
            raise FedstillError(
                f"round {context.number} has {len(present)} usable replies, fewer than min_replies = "
                f"{config.clients.min_replies} ({reasons})"
                + (f"; the checkpoint of round {context.number - 1} can be resumed" if context.number > 1 else "")
            )
        clock = time.perf_counter()
        evaluated = context.notes.get("evaluate_seconds", 0.0)
        with seeded(config.seed, "fuse", context.number, phase, device=algorithm.task.device):
            server = algorithm.fuse(server, [found[client] for client in present], context)
        took = time.perf_counter() - clock
        measured = context.notes.get("evaluate_seconds", 0.0) - evaluated
        seconds["fuse"] += took - measured
        seconds["evaluate"] += measured
    clock = time.perf_counter()
    settled = settle(algorithm, engine, server, present, context, began) if present else Settled(server)
    server, down, up = settled.server, down + settled.bytes_down, up + settled.bytes_up
    if context.ends:
        seconds["judge"] = time.perf_counter() - clock
    scores: Callable[[], Scores] | None = None
    if config.evaluation.due(context.number, config.rounds) and algorithm.task.tests:
        clock = time.perf_counter()
        scores = algorithm.evaluate_later(delivered(server))
        seconds["evaluate"] += time.perf_counter() - clock

    def line_of(last: Line | None) -> Line:
        line: Line = {"round": context.number, "accuracy": None, "domains": {}}
        if scores is not None:
            clock = time.perf_counter()
            scored = scores()
            seconds["evaluate"] += time.perf_counter() - clock
            line.update({"accuracy": scored.mean, "domains": scored.domains})
            if len(scored.prototypes) > 1:
                line["prototypes"] = scored.prototypes
        line.update(
            {
                "merged_accuracy": context.notes.get("merged_accuracy", line["accuracy"]),
                "ensemble_accuracy": context.notes.get("ensemble_accuracy"),
                "bytes_down": down,
                "bytes_up": up,
                "sent": dict(sorted(sent.items())),
                "seconds": {name: round(value, 4) for name, value in seconds.items()},
                "clients": present,
                "dropped": dropped,
            }
        )
        own = {name: value for name, value in context.notes.items() if name not in TAKEN}
        budgets = {**own.pop("privacy", {}), **client_budgets(config.privacy, spent, last)}
        if budgets:
            line["privacy"] = budgets
        return records.with_notes(line, own)

    return server, line_of, heard
