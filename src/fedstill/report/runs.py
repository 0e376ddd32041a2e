"""Read run folders, whether complete, unfinished or damaged, without an exception; ``Run.problems`` says what is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.core.errors import FedstillError
from fedstill.report.reading import clients_of, config_of, confusion_of, feature_map_of, history_of, number, summary_of
from fedstill.run.history import Line, Summary, rounds_to

if TYPE_CHECKING:  # slow: it imports torch, which reading does not need
    from fedstill.fusion.feature_map import FeatureMap
    from fedstill.run.confusion import Tables

__all__ = ["Run", "find_runs", "load_run", "load_runs"]

_RUN_FILES = ("history.jsonl", "config.toml", "summary.json")


@dataclass(frozen=True)
class Run:
    """One run, as read from its folder; values that the folder lacks are None or empty."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    history: list[Line] = field(default_factory=list)
    summary: Summary = field(default_factory=Summary)
    clients: list[dict[str, Any]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    confusion: Tables | None = None
    feature_map: FeatureMap | None = None

    @property
    def algorithm(self) -> str:
        """The system's name from the summary, otherwise from the configuration, otherwise the folder's name."""
        named = self.config.get("algorithm")
        name = self.summary.get("algorithm") or (named.get("name") if isinstance(named, dict) else named)
        if isinstance(name, str) and name:
            return name
        # compare writes DIR/<algorithm>/seed<k>
        return self.folder.parent.name if re.fullmatch(r"seed\d+", self.folder.name) else self.folder.name

    @property
    def seed(self) -> int | None:
        """The seed, if a file or the folder's name has it."""
        for said in (self.summary.get("seed"), self.config.get("seed")):
            if isinstance(said, int):
                return said
        named = re.fullmatch(r"seed(\d+)", self.folder.name)
        return int(named[1]) if named else None

    @property
    def planned_rounds(self) -> int | None:
        """The number of rounds in the configuration."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def finished(self) -> bool:
        """Whether the run wrote its summary, which it does last."""
        return bool(self.summary)

    @property
    def final_accuracy(self) -> float | None:
        """Accuracy after the last evaluated round."""
        said = number(self.summary.get("final_accuracy"))
        return said if said is not None else next(reversed(self.accuracies), None)

    @property
    def best_accuracy(self) -> float | None:
        """The highest accuracy of any round."""
        said = number(self.summary.get("best_accuracy"))
        return said if said is not None else max(self.accuracies, default=None)

    @property
    def kept_ensemble(self) -> float | None:
        """The accuracy of the ensemble that the run kept; None if it kept none."""
        kept = (self.folder / "ensemble" / "ensemble.json").is_file() and self.history
        return number(self.history[-1].get("ensemble_accuracy")) if kept else None

    @property
    def bytes_total(self) -> int | None:
        """Bytes sent down and up, over all rounds."""
        said = number(self.summary.get("bytes_total"))
        return int(said) if said is not None else self._bytes_until(None)

    @property
    def seconds(self) -> float | None:
        """Seconds of all phases of all rounds."""
        spent = [seconds for line in self.history for seconds in line.get("seconds", {}).values()]
        return sum(spent) if spent else None

    @property
    def targets(self) -> list[str]:
        """The target accuracies in the summary's ``rounds_to``, as it spells them."""
        reached = self.summary.get("rounds_to")
        return [target for target in reached if _is_number(target)] if isinstance(reached, dict) else []

    def rounds_to(self, target: str) -> int | None:
        """The first round that reached ``target``, from the summary, otherwise from the history."""
        reached = self.summary.get("rounds_to")
        if isinstance(reached, dict) and target in reached:
            said = number(reached[target])
            return int(said) if said is not None else None
        return rounds_to(self.history, float(target))

    def bytes_to(self, target: str) -> int | None:
        """Bytes sent down and up until ``target`` was first reached."""
        reached = self.rounds_to(target)
        return None if reached is None else self._bytes_until(reached)

    @property
    def accuracies(self) -> list[float]:
        """The accuracies of the evaluated rounds, in order."""
        found = (line.get("accuracy") for line in self.history)
        return [accuracy for accuracy in found if accuracy is not None]

    def _bytes_until(self, last: int | None) -> int | None:
        sent = [
            int((line.get("bytes_down") or 0) + (line.get("bytes_up") or 0))
            for line in self.history
            if ("bytes_down" in line or "bytes_up" in line) and (last is None or line["round"] <= last)
        ]
        return sum(sent) if sent else None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The run folders among and below ``folders``, in order, each once.

    A folder with a history is a run. A folder with only a configuration or a summary is a run that lost the rest, unless there
    are runs below it (a comparison has such files of its own).
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
    """The run in ``folder``, as far as it can be read.

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
    config = config_of(folder, problems)
    history = history_of(folder, problems)
    summary = summary_of(folder, problems)
    clients, classes = clients_of(folder, problems)
    tables, feature_map = confusion_of(folder, problems), feature_map_of(folder, problems)
    run = Run(folder, config, history, summary, clients, classes, problems, tables, feature_map)
    problems += _disagreements(run)
    return run


def _disagreements(run: Run) -> list[str]:
    found = []
    done = run.history[-1]["round"] if run.history else 0
    planned = run.planned_rounds
    if planned is not None and len(run.history) < planned and (run.history or not run.finished):
        last_seen = f"; the last is round {done}" if run.history else ""
        found.append(f"{len(run.history)} of {planned} rounds are in the history{last_seen}")
    last = next(reversed(run.accuracies), None)
    said = number(run.summary.get("final_accuracy"))
    if last is not None and said is not None and not math.isclose(last, said, abs_tol=1e-6):
        found.append(f"summary.json says a final accuracy of {said:.4f}, history.jsonl {last:.4f}")
    return found
