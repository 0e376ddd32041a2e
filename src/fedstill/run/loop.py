"""The loop, the same on every engine: sample clients, exchange messages, screen the replies, fuse, evaluate, write it down."""

from __future__ import annotations

import contextlib
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import safetensors.torch
import torch

from fedstill.algorithm import Algorithm, Reply, Round, Server
from fedstill.algorithms import create
from fedstill.data.images import png_grid
from fedstill.engine import EVALUATE, Engine, Outcome
from fedstill.engine.inprocess import InProcess
from fedstill.errors import FedstillError
from fedstill.fusion.norm import buffer_names
from fedstill.fusion.screen import fault
from fedstill.message import Message, State, atomic_write, to_json
from fedstill.models.binary import binary_weights, unpack_bits
from fedstill.run import history as records
from fedstill.run.checkpoint import load_checkpoint, save_checkpoint
from fedstill.run.config import Config, read, to_toml
from fedstill.streams import numpy_stream, seeded
from fedstill.task import Task

__all__ = ["Listener", "Result", "drive", "run", "sample_clients"]


class Listener:
    """Told what happens in a run; the command line draws it, a tracker records it."""

    def started(self, task: Task, rounds_done: int) -> None:
        """A run begins, or goes on after ``rounds_done`` rounds."""

    def progress(self, what: str, done: int, of: int) -> None:
        """A step of the round in progress."""

    def round(self, line: dict[str, Any]) -> None:
        """A round has ended; ``line`` is its line of the history."""

    def warn(self, text: str) -> None:
        """Something the user should know."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The run has ended."""


class Result:
    """What a run leaves: its folder, its history and summary, and the server's last state."""

    def __init__(self, folder: Path, history: list[dict[str, Any]], summary: dict[str, Any], server: Server, task: Task):
        self.folder, self.history, self.summary, self.server, self.task = folder, history, summary, server, task

    @property
    def accuracy(self) -> float:
        """The final accuracy."""
        return self.summary["final_accuracy"]


def sample_clients(ids: Sequence[str], count: int, seed: int, round: int) -> list[str]:
    """The clients of a round: a pure function of the seed and the round.

    >>> sample_clients(["a", "b", "c"], 2, 0, 1) == sample_clients(["a", "b", "c"], 2, 0, 1)
    True
    """
    if count >= len(ids):
        return list(ids)
    chosen = numpy_stream(seed, "sample", round).choice(len(ids), size=count, replace=False)
    return [ids[i] for i in sorted(chosen)]


def run(config: Config, out: Path, *, resume: bool = False, listeners: Sequence[Listener] = ()) -> Result:
    """Run a configuration to its end and write its folder; with ``resume`` go on from the last checkpoint there."""
    if config.engine.name == "flower-simulation":
        from fedstill.engine.flower import run_simulation

        return run_simulation(config, out, resume=resume, listeners=listeners)
    with threads(config.engine.threads):
        task = Task(config)
        algorithm = create(task)
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
    """torch with ``count`` threads (0: as it is)."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def drive(algorithm: Algorithm, engine: Engine, out: Path, *, resume: bool = False, listeners: Sequence[Listener] = ()) -> Result:
    """The rounds themselves, on any engine."""
    with alone(out):
        return _rounds(algorithm, engine, out, resume=resume, listeners=listeners)


def _rounds(algorithm: Algorithm, engine: Engine, out: Path, *, resume: bool, listeners: Sequence[Listener]) -> Result:
    task, config = algorithm.task, algorithm.task.config

    def tell(event: str, *what: Any) -> None:
        for listener in listeners:
            getattr(listener, event)(*what)

    def warn(text: str) -> None:
        tell("warn", text)

    path = out / "history.jsonl"
    done, server = _begin(algorithm, out, resume, warn)
    history = records.truncate(path, done)
    if len(history) != done:
        warn(f"{path} has {len(history)} of the {done} rounds before this one; the old file is {records.put_aside(path).name}")
    holders = to_json(who_holds_what(task))
    if done and (out / "clients.json").exists() and (out / "clients.json").read_text() != holders:
        warn(f"the clients' data is not what it was: {out / 'clients.json'} is written anew")
    atomic_write(out / "clients.json", holders)
    tell("started", task, done)
    ids = list(task.clients)
    count = config.clients.per_round or max(1, round(config.clients.fraction * len(ids)))
    if algorithm.everyone:
        count = len(ids)
    for number in range(done + 1, config.rounds + 1):
        context = Round(number, config.rounds, config.seed, progress=lambda *step: tell("progress", *step))
        chosen = sample_clients(ids, count, config.seed, algorithm.cohort(number))
        server, line, heard = _round(algorithm, engine, server, chosen, context)
        if not task.tests and history:  # this round's replies judge the model that the last round made
            judge(history[-1], heard, path, history)
            tell("round", history[-1])
        for text in line.pop("warnings", []):
            tell("warn", text)
        write_samples(out, algorithm, server, context)
        records.append(path, line)  # before the checkpoint: a line without its checkpoint is cut off and its round repeated
        history.append(line)
        save_checkpoint(out / "checkpoint", number, server)
        if task.tests:
            tell("round", line)
    if not task.tests and history and history[-1]["accuracy"] is None:
        judge(history[-1], _hear(algorithm, engine, server, ids), path, history)
        tell("round", history[-1])
    write_models(out, algorithm.products(server), task)
    found = records.summary(config.algorithm["name"], config.seed, history, config.evaluation.targets)
    atomic_write(out / "summary.json", to_json(found) + "\n")
    tell("finished", found)
    return Result(out, history, found, server, task)


Heard = dict[str, list[tuple[float, int]]]  # by domain: clients' own accuracies, each on so many samples


def judge(line: dict[str, Any], heard: Heard, path: Path, history: list[dict[str, Any]]) -> None:
    """Complete a round's line with what the clients measured on their own test data, and write the history again."""
    domains = {name: sum(a * n for a, n in found) / sum(n for _, n in found) for name, found in sorted(heard.items())}
    line.update(accuracy=fmean(domains.values()) if domains else None, domains=domains, measured_by="clients")
    records.rewrite(path, history)


def _hear(algorithm: Algorithm, engine: Engine, server: Server, ids: Sequence[str]) -> Heard:
    """One exchange after the last round, in which every client judges the final model."""
    config = algorithm.task.config
    context = Round(config.rounds, config.rounds, config.seed, phase=algorithm.phases(config.rounds)[0])
    messages = [(client, algorithm.instruct(server, client, context)) for client in ids]
    heard: Heard = {}
    for outcome in engine.exchange(config.rounds + 1, EVALUATE, messages):
        _note(algorithm, outcome, heard)
    return heard


def _note(algorithm: Algorithm, outcome: Outcome, heard: Heard) -> None:
    if outcome.accuracy is not None and 0 <= outcome.accuracy <= 1 and outcome.tested > 0:  # a client's word, so checked
        heard.setdefault(algorithm.task.clients[outcome.client].domain, []).append((outcome.accuracy, outcome.tested))


RESULTS = ("config.toml", "summary.json", "model.safetensors", "models", "checkpoint")  # what a run writes


def _begin(algorithm: Algorithm, out: Path, resume: bool, warn: Callable[[str], None]) -> tuple[int, Server]:
    """The last finished round and the state after it. Nothing that others wrote is overwritten, and no finished round lost; a
    folder whose first round never ended is begun anew."""
    config = algorithm.task.config
    history, kept = out / "history.jsonl", out / "config.toml"
    finished = len(records.read_history(history))
    found = load_checkpoint(out / "checkpoint", warn) if resume else None
    if finished and not resume:
        raise FedstillError(f"{out} already holds a run; use --resume to go on, or another --out")
    if finished > 1 and found is None:  # one line may have come before its checkpoint
        raise FedstillError(f"{out} has a history of {finished} rounds and no checkpoint to go on from; choose another --out")
    if not history.exists():
        others = [name for name in RESULTS if (out / name).exists()]
        if others:
            raise FedstillError(f"{out} holds {', '.join(others)} and no run's history; choose another --out")
        if resume:
            warn(f"there is no run in {out} to go on with: it is begun")
        records.rewrite(history, [])
    if found is not None:
        if not kept.exists():
            raise FedstillError(f"{kept} is missing: what its checkpoints are of is not known; choose another --out")
        before = read(kept)
        if not same_run(before, config):
            raise FedstillError(f"{kept} differs from this configuration; --resume needs the same one (rounds may grow)")
        if config.rounds < found[0]:
            raise FedstillError(f"{out} has {found[0]} rounds already, and rounds = {config.rounds}")
        if before.get("rounds") != config.rounds:
            warn(f"rounds were {before.get('rounds')} and are {config.rounds}: schedules over the rounds go on by the new number")
    atomic_write(kept, to_toml(config))
    return found if found is not None else (0, algorithm.start())


def same_run(before: Mapping[str, Any], now: Config) -> bool:
    """Whether two configurations describe the same run: all but the number of rounds, the engine and what is evaluated."""
    trees = [dict(before), tomllib.loads(to_toml(now))]
    for tree in trees:
        for free in ("rounds", "engine", "evaluation"):
            tree.pop(free, None)
    return trees[0] == trees[1]


def finished_run(folder: Path, config: Config) -> bool:
    """Whether this very configuration has been run to its end there."""
    kept = folder / "config.toml"
    return (folder / "summary.json").exists() and kept.exists() and read(kept) == tomllib.loads(to_toml(config))


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """One process at a time writes to a run's folder; the system forgets the claim of one that dies."""
    try:
        import fcntl
    except ImportError:  # not on this system
        yield
        return
    held = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FedstillError(f"another process is writing to {out}") from None
        yield
    finally:
        os.close(held)


def _round(
    algorithm: Algorithm, engine: Engine, server: Server, chosen: list[str], context: Round
) -> tuple[Server, dict[str, Any], Heard]:
    config = algorithm.task.config
    heard: Heard = {}
    seconds = {"train": 0.0, "fuse": 0.0, "evaluate": 0.0}
    down = up = 0
    dropped: list[dict[str, str]] = []
    present = list(chosen)
    for phase in algorithm.phases(context.number):
        context.phase = phase
        clock = time.perf_counter()
        messages = [(client, algorithm.instruct(server, client, context)) for client in present]
        down += sum(message.nbytes for _, message in messages)
        found: dict[str, Reply] = {}
        for outcome in engine.exchange(context.number, phase, messages):
            up += outcome.nbytes
            _note(algorithm, outcome, heard)
            reply, reason = _screened(algorithm, server, phase, outcome.client, outcome.read, outcome.reason)
            if reply is not None:
                found[outcome.client] = reply
            else:
                dropped.append({"client": outcome.client, "reason": str(reason)})
            context.progress(phase, len(found) + len(dropped), len(chosen))
        present = [client for client in present if client in found]  # in the order of sampling, whatever came first
        seconds["train"] += time.perf_counter() - clock
        if len(present) < config.clients.min_replies:
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
        spent = time.perf_counter() - clock
        measured = context.notes.get("evaluate_seconds", 0.0) - evaluated
        seconds["fuse"] += spent - measured
        seconds["evaluate"] += measured
    context.notes.pop("evaluate_seconds", None)
    notes = context.notes
    line: dict[str, Any] = {"round": context.number, "accuracy": None, "domains": {}}
    due = context.number % config.evaluation.every == 0 or context.number == config.rounds
    if due and algorithm.task.tests:
        clock = time.perf_counter()
        scores = algorithm.evaluate(server)
        seconds["evaluate"] += time.perf_counter() - clock
        line.update(accuracy=scores.mean, domains=scores.domains)
        if len(scores.prototypes) > 1:
            line["prototypes"] = scores.prototypes
    line.update(
        merged_accuracy=notes.pop("merged_accuracy", line["accuracy"]),
        ensemble_accuracy=notes.pop("ensemble_accuracy", None),
        bytes_down=down,
        bytes_up=up,
        seconds={name: round(value, 4) for name, value in seconds.items()},
        clients=present,
        dropped=dropped,
        **notes,
    )
    return server, line, heard


def _screened(
    algorithm: Algorithm, server: Server, phase: str, client: str, read: Callable[[], Message] | None, reason: str | None
) -> tuple[Reply | None, str | None]:
    if read is None:
        return None, reason or "no reply"
    info = algorithm.task.clients[client]
    try:
        message = read()
    except FedstillError as error:
        return None, str(error)
    template = None
    decode: Callable[[State], State] = dict
    required = algorithm.required(phase)
    if "model" in required:
        network = algorithm.task.network(info.prototype)
        template = algorithm.task.template(info.prototype)
        if binary_weights(network):  # 1-bit weights arrive packed
            decode = lambda state: unpack_bits(state, network)
        if algorithm.task.config.model.buffers == "local":  # statistics stay with the clients; the server's stand in
            kept = {name: server.models[info.prototype][name] for name in buffer_names(network)}
            template = {name: tensor for name, tensor in template.items() if name not in kept}
            unpacked = decode
            decode = lambda state: {**kept, **unpacked(state)}
    problem = fault(message, required, template) or algorithm.screen(server, client, message)
    if problem:
        return None, problem
    return Reply(client, info.domain, info.prototype, int(message.values["samples"]), read, decode), None


def who_holds_what(task: Task) -> dict[str, Any]:
    """The clients and their label counts, for ``clients.json`` and the bubble chart."""
    clients = []
    for info in task.clients.values():
        clients.append(
            {
                "id": info.id,
                "domain": info.domain,
                "prototype": info.prototype,
                "samples": info.samples,
                "counts": task.counts(info.id),
            }
        )
    return {"classes": list(task.classes), "clients": clients}


def write_samples(out: Path, algorithm: Algorithm, server: Server, round: Round) -> None:
    """What the system's generator makes, as ``samples/round_0005.png``, every few rounds and after the last."""
    every = algorithm.task.config.evaluation.samples_every
    if every and (round.number % every == 0 or round.number == round.total):
        images = algorithm.samples(server, round)
        if images is not None:
            atomic_write(out / "samples" / f"round_{round.number:04d}.png", png_grid(images, len(algorithm.task.classes)))


def write_models(out: Path, products: Mapping[str, tuple[str, State]], task: Task) -> None:
    """The final weights: ``model.safetensors``, or ``models/<name>.safetensors`` where there are several."""
    for name, (prototype, state) in products.items():
        path = out / "model.safetensors" if len(products) == 1 else out / "models" / f"{name.replace('/', '_')}.safetensors"
        plain = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in state.items()}
        # one entry: safetensors writes several in no fixed order, and equal models should be equal files
        about = {"fedstill": to_json({"model": task.served(prototype), "classes": list(task.classes), "shape": list(task.shape)})}
        atomic_write(path, safetensors.torch.save(plain, about))
