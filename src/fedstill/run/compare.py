"""Several systems with several seeds, each run in its own folder. Finished runs are kept, interrupted ones resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.algorithms import create
from fedstill.config.tables import Config
from fedstill.config.trees import read
from fedstill.core.errors import FedstillError
from fedstill.run.configuration import resolve_each, tree_in
from fedstill.run.folder import finished_run, same_run
from fedstill.run.listener import Listener
from fedstill.run.loop import run
from fedstill.task import Task

__all__ = ["Planned", "complete", "folder_of", "plan", "run_planned"]


@dataclass(frozen=True)
class Planned:
    """One run of a comparison."""

    algorithm: str
    seed: int
    config: Config
    folder: Path
    note: str | None = None  # which settings do not apply to this system


def folder_of(out: Path, name: str, seed: int) -> Path:
    """The folder of one run of a comparison.

    >>> folder_of(Path("out"), "mine:System", 2).as_posix()
    'out/mine_System/seed2'
    """
    return out / name.replace(":", "_") / f"seed{seed}"


def plan(
    what: str | Path | Mapping[str, Any], names: Sequence[str], seeds: Sequence[int], out: Path, settings: Sequence[str] = ()
) -> list[Planned]:
    """The runs of a comparison. All are checked before the first one trains: an invalid configuration is refused, and so is a
    folder that holds another run.

    The settings of the file apply to every system that has them (:func:`fedstill.run.configuration.resolved`)."""
    raw = tree_in(what)
    by_seed = [resolve_each(raw, names, [*settings, f"seed={seed}"]) for seed in seeds]
    found = [
        Planned(name, seed, each[place].config, folder_of(out, name, seed), each[place].note)
        for place, name in enumerate(names)
        for seed, each in zip(seeds, by_seed, strict=True)
    ]
    for one in found:
        create(Task(one.config))
        kept = one.folder / "config.toml"
        if kept.exists() and not same_run(read(kept), one.config):
            raise FedstillError(f"{one.folder} holds a run of another configuration; choose another folder (out)")
    return found


def run_planned(plans: Sequence[Planned], listener: Callable[[Planned], Listener] = lambda one: Listener()) -> None:
    """Complete the runs that are not finished; ``listener`` makes the listener of each."""
    for one in plans:
        complete(one.config, one.folder, listener(one))


def complete(config: Config, folder: Path, listener: Listener) -> None:
    """Run a configuration to its end: from the start, from its last checkpoint, or not at all if it is finished."""
    if finished_run(folder, config):
        listener.kept(folder)
        listener.closed()
    else:
        run(config, folder, resume=(folder / "history.jsonl").exists(), listeners=[listener])
