"""A run's folder: who may write to it, whether its run can be resumed, and what a run saves there."""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedstill.algorithm import Algorithm, Round, Server
from fedstill.config.tables import Config, to_toml
from fedstill.config.trees import read
from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write, to_json
from fedstill.core.message import State
from fedstill.core.scratch import remove_parts
from fedstill.data.images import png_grid
from fedstill.engine.memory import Memory
from fedstill.fusion.kept import Speakers, write_ensemble
from fedstill.fusion.line import held_share, is_full, line_of
from fedstill.models.files import state_bytes
from fedstill.models.text import is_encoder
from fedstill.run import history as records
from fedstill.run.checkpoint import any_checkpoint, load_checkpoint
from fedstill.task import Task

__all__ = [
    "about_model",
    "begin",
    "finished_run",
    "folder_lock",
    "keep_ensemble",
    "same_run",
    "write_features",
    "write_generator",
    "write_models",
    "write_samples",
]

FREE = ("rounds", "engine", "evaluation")  # what may change when a run is continued
NAMED = 3  # of the keys that differ, this many are named
# what a run writes
RESULTS = (
    "config.toml",
    "summary.json",
    "confusion.json",
    "features.json",
    "model.safetensors",
    "models",
    "generator.safetensors",
    "ensemble",
    "checkpoint",
)


def begin(algorithm: Algorithm, out: Path, resume: bool, warn: Callable[[str], None]) -> tuple[int, Server]:
    """The last finished round and the state after it. No other run's files are overwritten, and no finished round is lost. A
    folder whose first round never ended is started anew."""
    config = algorithm.task.config
    remove_parts(out)  # partly written files of a killed run
    history, kept = out / "history.jsonl", out / "config.toml"
    finished = len(records.read_history(history))
    if not resume and (finished or any_checkpoint(out / "checkpoint")):
        raise FedstillError(f"{out} already holds a run: continue it (resume), or choose another folder (out)")
    found = load_checkpoint(out / "checkpoint", warn) if resume else None
    if finished > 1 and found is None:  # the first line is written before its checkpoint
        raise FedstillError(
            f"{out} has a history of {finished} rounds but no checkpoint to resume from; choose another folder (out)"
        )
    if not history.exists():
        others = [name for name in RESULTS if (out / name).exists()]
        if others:
            raise FedstillError(f"{out} holds {', '.join(others)} but no history of a run; choose another folder (out)")
        if resume:
            warn(f"there is no run in {out} to resume: starting a new one")
        records.rewrite(history, [])
    if found is not None:
        Memory(out / "clients").check(found[0] + 1)
        if not kept.exists():
            raise FedstillError(f"{kept} is missing, so its checkpoints cannot be used; choose another folder (out)")
        before = read(kept)
        odd = _differences(before, config)
        if odd:
            more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
            raise FedstillError(
                f"{kept} differs from this configuration in {', '.join(odd[:NAMED])}{more}: "
                "continuing a run (resume) needs the same one (rounds may grow)"
            )
        if config.rounds < found[0]:
            raise FedstillError(f"{out} already has {found[0]} rounds, but rounds = {config.rounds}: raise rounds")
        if before.get("rounds") != config.rounds:
            warn(f"rounds were {before.get('rounds')} and are now {config.rounds}: schedules continue with the new number")
            if seen_by_training(algorithm, found[0], before.get("rounds", 0)):
                warn("clients have trained on the samples that they hold out, so later verdicts favour what they know by heart")
    atomic_write(kept, to_toml(algorithm.task.complete))
    return found if found is not None else (0, algorithm.start())


def seen_by_training(algorithm: Algorithm, done: int, planned: int) -> bool:
    """Whether one of the ``done`` rounds of a run of ``planned`` rounds trained on samples that clients now hold out again."""
    line = line_of(algorithm)
    before = algorithm.task.config.model_copy(update={"rounds": planned})
    return line is not None and held_share(algorithm, done + 1) > 0 and is_full(line, before, done)


def same_run(before: Mapping[str, Any], now: Config) -> bool:
    """Whether two configurations agree in everything but the number of rounds, the engine and the evaluation."""
    return not _differences(before, now)


def _differences(before: Mapping[str, Any], now: Config) -> list[str]:
    """The keys in which two configurations that should be the same run differ, with both values."""
    trees = [{key: value for key, value in tree.items() if key not in FREE} for tree in (before, _tree(now, before))]
    then, new = (_leaves(tree) for tree in trees)
    keys = [key for key in {**then, **new} if key not in then or key not in new or then[key] != new[key]]
    told = [[json.dumps(leaves[key], default=str) if key in leaves else "unset" for leaves in (then, new)] for key in keys]
    return [f"{key} ({was} then, {now} now)" for key, (was, now) in zip(keys, told, strict=True)]


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a tree by their dotted keys; an empty table is a value.

    >>> _leaves({"seed": 1, "data": {"limit": 200, "depth": {}}})
    {'seed': 1, 'data.limit': 200, 'data.depth': {}}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, Mapping) and value
        found |= _leaves(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def finished_run(folder: Path, config: Config) -> bool:
    """Whether exactly this configuration has been run to its end in ``folder``."""
    kept = folder / "config.toml"
    if not ((folder / "summary.json").exists() and kept.exists()):
        return False
    before = read(kept)
    return before == _tree(config, before)


def _tree(config: Config, before: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as a tree; if it leaves the network to the data, with the network of the tree ``before``."""
    tree = tomllib.loads(to_toml(config))
    if config.model.name is None and not config.model.clients:
        tree["model"] = {**tree["model"], "name": before.get("model", {}).get("name")}
    return tree


@contextlib.contextmanager
def folder_lock(out: Path) -> Iterator[None]:
    """Only one process at a time writes to a run's folder; the system releases the lock of one that dies."""
    try:
        import fcntl  # a platform's own: not on Windows
    except ImportError:  # not on this system
        yield
        return
    held = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FedstillError(f"another process is writing to {out}: wait for it, or choose another folder (out)") from None
        yield
    finally:
        os.close(held)


def write_samples(out: Path, algorithm: Algorithm, server: Server, round: Round) -> None:
    """Write images of the system's generator to ``samples/round_0005.png``, every few rounds and after the last."""
    every = algorithm.task.config.evaluation.samples_every
    if every and (round.number % every == 0 or round.number == round.total):
        images = algorithm.samples(server, round)
        if images is not None:
            atomic_write(out / "samples" / f"round_{round.number:04d}.png", png_grid(images, len(algorithm.task.classes)))


def write_features(out: Path, round: Round) -> None:
    """The map of real and virtual features of a round that has one, as ``features.json``."""
    if round.feature_map is not None:
        atomic_write(out / "features.json", to_json(round.feature_map) + "\n")


def write_models(out: Path, products: Mapping[str, tuple[str, State]], task: Task) -> None:
    """Write the final weights: ``model.safetensors``, or ``models/<name>.safetensors`` if there are several."""
    for name, (prototype, state) in products.items():
        path = out / "model.safetensors" if len(products) == 1 else out / "models" / f"{name.replace('/', '_')}.safetensors"
        atomic_write(path, state_bytes(task.networks.whole(prototype, state), about_model(task, prototype)))


def write_generator(out: Path, algorithm: Algorithm, server: Server) -> None:
    """Write the generator that a system trained to ``generator.safetensors``: another run can distil on its samples."""
    made = algorithm.trained_generator(server)
    if made is not None:
        atomic_write(out / "generator.safetensors", state_bytes(made.state_dict(), made.about()))


def keep_ensemble(out: Path, task: Task, speakers: Speakers) -> None:
    """Write the last round's teachers and their weighting to ``ensemble/``."""

    def about(prototype: str) -> dict[str, Any]:
        own = task.networks.architecture(prototype)
        return {**about_model(task, prototype), "model": own["name"], "options": own["options"]}

    write_ensemble(out / "ensemble", speakers, about)


def about_model(task: Task, prototype: str) -> dict[str, Any]:
    """The description in a file of weights: all that is needed to rebuild its network and to make inputs for it."""
    network = task.networks.architecture(prototype, task.networks.served(prototype))
    built = task.networks.get(prototype, "student")
    made = task.preprocessing.to_json()
    if is_encoder(network["name"]):
        made["text"].pop("tokenizer")  # the encoder's own, whose path may differ on another machine
    return {
        "model": network["name"],
        "norm": network["norm"],
        "options": network["options"],
        "classes": list(task.classes),
        "shape": list(task.raw_shape),
        "mean": built.mean,
        "std": built.std,
        **made,
    }
