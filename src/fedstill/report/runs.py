"""Run folders read back: whole, unfinished or damaged, never an exception; ``Run.problems`` says what is wrong."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError

__all__ = ["Run", "find_runs", "load_run", "load_runs", "number"]

Line = dict[str, Any]

_NUMBERS = ("accuracy", "merged_accuracy", "ensemble_accuracy", "bytes_down", "bytes_up")
_NUMBERS_BY_NAME = ("domains", "prototypes", "seconds", "weights", "losses")
_NUMBERS_BY_TWO_NAMES = ("weights_by_domain", "distillation")
_RUN_FILES = ("history.jsonl", "config.toml", "summary.json")


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it; every value is None or empty where the folder does not say."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    history: list[Line] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    clients: list[dict[str, Any]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def algorithm(self) -> str:
        """The system's name: the summary's, else the configuration's, else what the folder is called."""
        named = self.config.get("algorithm")
        name = self.summary.get("algorithm") or (named.get("name") if isinstance(named, dict) else named)
        if isinstance(name, str) and name:
            return name
        # compare writes DIR/<algorithm>/seed<k>
        return self.folder.parent.name if re.fullmatch(r"seed\d+", self.folder.name) else self.folder.name

    @property
    def seed(self) -> int | None:
        """The seed, where a file says it."""
        for source in (self.summary, self.config):
            if isinstance(source.get("seed"), int):
                return source["seed"]
        named = re.fullmatch(r"seed(\d+)", self.folder.name)
        return int(named[1]) if named else None

    @property
    def planned_rounds(self) -> int | None:
        """How many rounds the configuration asks for."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def finished(self) -> bool:
        """Whether the run wrote its summary, which it does last."""
        return bool(self.summary)

    @property
    def final_accuracy(self) -> float | None:
        """Accuracy after the last round that was evaluated."""
        said = number(self.summary.get("final_accuracy"))
        return said if said is not None else next(reversed(self._accuracies()), None)

    @property
    def best_accuracy(self) -> float | None:
        """The highest accuracy of any round."""
        said = number(self.summary.get("best_accuracy"))
        return said if said is not None else max(self._accuracies(), default=None)

    @property
    def bytes_total(self) -> int | None:
        """Bytes sent down and up, over all rounds."""
        said = number(self.summary.get("bytes_total"))
        return int(said) if said is not None else self._bytes_until(None)

    @property
    def seconds(self) -> float | None:
        """Seconds of all phases of all rounds."""
        spent = [s for line in self.history for s in line.get("seconds", {}).values() if s is not None]
        return sum(spent) if spent else None

    @property
    def targets(self) -> list[str]:
        """The accuracies for which the summary says when they were first reached, as it spells them."""
        reached = self.summary.get("rounds_to")
        return [target for target in reached if _is_number(target)] if isinstance(reached, dict) else []

    def rounds_to(self, target: str) -> int | None:
        """The first round that reached ``target``: as the summary says, else from the history."""
        reached = self.summary.get("rounds_to")
        if isinstance(reached, dict) and target in reached:
            said = number(reached[target])
            return int(said) if said is not None else None
        wanted = float(target)
        return next((line["round"] for line in self.history if (line.get("accuracy") or 0.0) >= wanted), None)

    def bytes_to(self, target: str) -> int | None:
        """Bytes sent down and up until ``target`` was first reached."""
        reached = self.rounds_to(target)
        return None if reached is None else self._bytes_until(reached)

    def _accuracies(self) -> list[float]:
        return [line["accuracy"] for line in self.history if line.get("accuracy") is not None]

    def _bytes_until(self, last: int | None) -> int | None:
        sent = [
            int((line.get("bytes_down") or 0) + (line.get("bytes_up") or 0))
            for line in self.history
            if ("bytes_down" in line or "bytes_up" in line) and (last is None or line["round"] <= last)
        ]
        return sum(sent) if sent else None


def number(value: Any) -> float | None:
    """``value`` where it is a finite number, else None.

    >>> number(3), number(float("nan")), number("3"), number(True)
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The run folders among and below ``folders``, in order, each once.

    A folder is a run where it has a history; one with only a configuration or a summary is a run that lost
    the rest, unless there are runs below it (a comparison keeps such files of its own).
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FedstillError(f"no such folder: {folder}")
        for run in _runs_below(folder):
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _runs_below(folder: Path) -> list[Path]:
    if (folder / "history.jsonl").exists():
        return [folder]
    below = sorted((p for p in folder.iterdir() if p.is_dir() and not p.is_symlink()), key=_natural)
    runs = [run for child in below if not child.name.startswith(".") for run in _runs_below(child)]
    if not runs and any((folder / name).exists() for name in _RUN_FILES):
        return [folder]
    return runs


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Sorts seed2 before seed10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", path.name)]


def load_runs(folders: Iterable[Path]) -> list[Run]:
    """Every run among and below ``folders``."""
    return [load_run(folder) for folder in find_runs(folders)]


def load_run(folder: Path) -> Run:
    """The run in ``folder``, with whatever can be read of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     lines = '{"round": 1, "accuracy": 0.5}', '{"round": 2, "accu'
    ...     _ = (Path(name) / "history.jsonl").write_text(chr(10).join(lines))
    ...     run = load_run(Path(name))
    >>> run.final_accuracy
    0.5
    >>> for problem in run.problems:
    ...     print(problem)
    config.toml is missing
    history.jsonl: skipped 1 damaged line (2)
    summary.json is missing: the run is in progress or was interrupted
    """
    problems: list[str] = []
    config = _config(folder, problems)
    history = _history(folder, problems)
    summary = _summary(folder, problems)
    clients, classes = _clients(folder, problems)
    run = Run(folder, config, history, summary, clients, classes, problems)
    problems += _disagreements(run)
    return run


def _config(folder: Path, problems: list[str]) -> dict[str, Any]:
    text = _text(folder / "config.toml", problems)
    if text is None:
        return {}
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(f"config.toml is damaged: {error}")
        return {}


def _summary(folder: Path, problems: list[str]) -> dict[str, Any]:
    text = _text(folder / "summary.json", problems, ": the run is in progress or was interrupted")
    if text is None:
        return {}
    summary = _json(text)
    if not isinstance(summary, dict):
        problems.append("summary.json is damaged: its figures are taken from the history")
        return {}
    return summary


def _history(folder: Path, problems: list[str]) -> list[Line]:
    text = _text(folder / "history.jsonl", problems)
    if text is None:
        return []
    rounds: dict[int, Line] = {}
    damaged: list[int] = []
    unusable: dict[str, list[int]] = {}
    for place, raw in enumerate(text.splitlines(), start=1):
        if not raw.strip():
            continue
        line = _json(raw)
        if not isinstance(line, dict) or not isinstance(line.get("round"), int) or isinstance(line["round"], bool):
            damaged.append(place)
            continue
        cleaned, dropped = _clean(line)
        # A resumed run may repeat its last round: the later line is the one the model continued from.
        rounds[line["round"]] = cleaned
        for name in dropped:
            unusable.setdefault(name, []).append(line["round"])
    if damaged:
        problems.append(f"history.jsonl: skipped {_count(len(damaged), 'damaged line')} ({_few(damaged)})")
    for name, where in unusable.items():
        problems.append(f"history.jsonl: '{name}' is not a finite number in {_count(len(where), 'round')} ({_few(where)})")
    if not rounds and not damaged:
        problems.append("history.jsonl has no round yet")
    history = [rounds[r] for r in sorted(rounds)]
    if history:
        first, last = history[0]["round"], history[-1]["round"]
        lacking = last - first + 1 - len(history)
        if lacking:
            where = list(itertools.islice((r for r in range(first, last) if r not in rounds), 9))
            problems.append(f"history.jsonl: {_count(lacking, 'round')} missing ({_few(where)})")
    return history


def _clean(line: Line) -> tuple[Line, list[str]]:
    """``line`` with every known field in the shape it should have, and the names of values that had to go."""
    unusable: list[str] = []

    def numbers(values: Any, name: str) -> dict[str, float | None]:
        if not isinstance(values, dict):
            unusable.append(name)
            return {}
        kept = {str(key): number(value) for key, value in values.items()}
        unusable.extend(f"{name}.{key}" for key, value in values.items() if value is not None and kept[key] is None)
        return kept

    cleaned = dict(line)
    for name in _NUMBERS:
        if line.get(name) is not None:
            cleaned[name] = number(line[name])
            if cleaned[name] is None:
                unusable.append(name)
    for name in _NUMBERS_BY_NAME:
        if name in line:
            cleaned[name] = numbers(line[name] or {}, name)
    for name in _NUMBERS_BY_TWO_NAMES:
        if name in line:
            outer = line[name] if isinstance(line[name], dict) else {}
            if any(number(value) is not None for value in outer.values()):  # a system with one student need not name it
                outer = {"student": outer}
            cleaned[name] = {str(key): numbers(values, f"{name}.{key}") for key, values in outer.items()}
    for name in ("clients", "dropped"):
        if name in line and not isinstance(line[name], list):
            cleaned[name] = []
            unusable.append(name)
    if "dropped" in cleaned:
        cleaned["dropped"] = [
            {"client": str(d.get("client", "?")), "reason": str(d.get("reason", "no reason given"))}
            for d in cleaned["dropped"]
            if isinstance(d, dict)
        ]
    return cleaned, unusable


def _clients(folder: Path, problems: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    path = folder / "clients.json"
    text = _text(path, problems) if path.exists() else None
    if text is None:
        return [], []
    found = _json(text)
    classes = found.get("classes") if isinstance(found, dict) else None
    clients = found.get("clients") if isinstance(found, dict) else found
    if not isinstance(clients, list) or not all(isinstance(c, dict) and "id" in c for c in clients):
        problems.append("clients.json is damaged: who holds what is not shown")
        return [], []
    return clients, [str(c) for c in classes] if isinstance(classes, list) else []


def _disagreements(run: Run) -> list[str]:
    found = []
    done = run.history[-1]["round"] if run.history else 0
    planned = run.planned_rounds
    if planned is not None and len(run.history) < planned and (run.history or not run.finished):
        last_seen = f"; the last is round {done}" if run.history else ""
        found.append(f"{len(run.history)} of {planned} rounds are in the history{last_seen}")
    last = next((line["accuracy"] for line in reversed(run.history) if line.get("accuracy") is not None), None)
    said = number(run.summary.get("final_accuracy"))
    if last is not None and said is not None and not math.isclose(last, said, abs_tol=1e-6):
        found.append(f"summary.json says a final accuracy of {said:.4f}, history.jsonl {last:.4f}")
    return found


def _text(path: Path, problems: list[str], consequence: str = "") -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        problems.append(f"{path.name} is missing{consequence}")
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {os.strerror(error.errno or 0)}")
    return None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _few(places: list[int], most: int = 8) -> str:
    return ", ".join(map(str, places[:most])) + (", ..." if len(places) > most else "")
