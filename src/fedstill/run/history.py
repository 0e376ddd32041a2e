"""The history: one line of JSON per round, in ``history.jsonl``; and the summary of a run, ``summary.json``.

The loop writes both; the console, the trackers, the report and the studies read them, all through here.
"""

from __future__ import annotations

import json
import os
import platform
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Required, TypedDict, cast

from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write, naming, to_json
from fedstill.core.version import __version__

__all__ = [
    "Dropped",
    "Line",
    "Summary",
    "append",
    "encoded",
    "put_aside",
    "read_history",
    "read_summary",
    "rewrite",
    "rounds_to",
    "sound_json",
    "sound_lines",
    "sound_summary",
    "summary",
    "truncate",
    "with_notes",
]


CHECK = "check"  # the last field of every line: a checksum of the others


class Dropped(TypedDict):
    """A client whose reply was not used, and why."""

    client: str
    reason: str


class Line(TypedDict, total=False):
    """A round's line. These are the common fields; systems note further ones."""

    round: Required[int]  # from 1
    accuracy: float | None  # the mean over the domains; None if the round was not evaluated
    domains: dict[str, float]
    prototypes: dict[str, float]  # if there are several
    merged_accuracy: float | None  # before distillation
    ensemble_accuracy: float | None  # of the ensemble of teachers
    confident: dict[str, float | None]  # of a vote on the test set: share of samples with a vote, accuracy on these
    target_accuracy: float  # of KD3A's target model before it is merged
    bytes_down: int
    bytes_up: int
    sent: dict[str, int]  # bytes of each item in the replies that were used, summed over the clients
    seconds: dict[str, float]  # train, fuse, evaluate; judge, if there is a judge
    clients: list[str]  # whose replies were fused
    dropped: list[Dropped]
    measured_by: str  # "clients", if the server has no test data
    # what systems note
    accuracy_of: str  # which model, if it is not the server's
    weights: dict[str, float]  # by client
    weights_by_domain: dict[str, dict[str, float]]  # domain of the pool -> client -> mean weight
    distillation: dict[str, Any]  # by student: steps, first and last loss; or of a single student
    losses: dict[str, float]
    privacy: dict[str, dict[str, Any]]  # spent so far, by mechanism (run/budgets.py): epsilon, delta, what they cover
    votes: dict[str, Any]  # private votes so far: asked, answered, epsilon, delta; left out in this round; what epsilon covers
    line: dict[str, Any]  # who judged the points between average and student, their scores, what was delivered and carried
    generator: dict[str, float]  # of a generator's samples: within, between, label_agreement
    statistics: dict[str, Any]  # of the sites' features: bytes; what they reveal, in words; coverage by client


class Summary(TypedDict, total=False):
    """The results of a run."""

    algorithm: str
    seed: int
    rounds: int
    final_accuracy: float | None  # of the last evaluated round
    best_accuracy: float | None
    best_round: int | None
    rounds_to: dict[str, int | None]  # target -> the first round that reached it
    bytes_total: int
    seconds_total: float
    privacy: dict[str, dict[str, Any]]  # spent budgets, as in the last line of the history that has them
    votes: dict[str, Any]  # private votes: as in the last line of the history
    versions: dict[str, str]
    command: str  # how to repeat the run, if another program wrote the folder


def sound_lines(text: str) -> tuple[list[Line], list[int]]:
    """The lines in a history's text, and the numbers of those that are cut off or damaged. Lines of older versions have no
    checksum; they are accepted if no line of the file has one.

    >>> sound_lines('{"round": 1, "accuracy": 0.5}\\n{"round": 2, "accu')
    ([{'round': 1, 'accuracy': 0.5}], [2])
    """
    found = {place: sound_json(raw) for place, raw in enumerate(text.splitlines(), start=1) if raw.strip()}
    checked = any(isinstance(line, dict) and CHECK in line for line in found.values())
    lines: list[Line] = []
    damaged: list[int] = []
    for place, line in found.items():
        if isinstance(line, dict) and _is_round(line) and (_matches(line) if CHECK in line else not (checked or _lost_its(line))):
            lines.append(cast(Line, {name: value for name, value in line.items() if name != CHECK}))
        else:
            damaged.append(place)
    return lines, damaged


def _is_round(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("round"), int) and not isinstance(line["round"], bool)


def _matches(line: Mapping[str, Any]) -> bool:
    return bool(line[CHECK] == _checksum({name: value for name, value in line.items() if name != CHECK}))


def _lost_its(line: Mapping[str, Any]) -> bool:
    """Whether a line without a check ends in a value that looks like one: the field's name was damaged."""
    last = list(line.values())[-1]
    return isinstance(last, str) and len(last) == 8 and len(re.findall("[0-9a-f]", last)) >= 6


def _checksum(line: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(to_json(line).encode()):08x}"


def encoded(line: Mapping[str, Any]) -> str:
    """A round's line as written to the file: with a checksum of the other fields in its last field.

    >>> encoded({"round": 1, "accuracy": 0.5}).strip()
    '{"round": 1, "accuracy": 0.5, "check": "7ca766ed"}'
    >>> sound_lines(encoded({"round": 1, "accuracy": 0.5}).replace("0.5", "0.7"))
    ([], [1])
    """
    return to_json({**line, CHECK: _checksum(line)}) + "\n"


def read_history(path: Path) -> list[Line]:
    """The sound lines of a history; lines that are damaged or cut off by a crash are left out."""
    return sound_lines(path.read_text(encoding="utf-8", errors="replace"))[0] if path.exists() else []


def sound_summary(text: str) -> Summary | None:
    """The summary in a text; None if it is damaged.

    >>> sound_summary('{"seed": 3}'), sound_summary("[]")
    ({'seed': 3}, None)
    """
    found = sound_json(text)
    return cast(Summary, found) if isinstance(found, dict) else None


def read_summary(path: Path) -> Summary:
    """The summary of a run that has ended."""
    found = sound_summary(path.read_text(encoding="utf-8", errors="replace"))
    if found is None:
        raise FedstillError(f"{path} is damaged")
    return found


def sound_json(text: str) -> Any:
    """The value in a text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def append(path: Path, line: Line) -> None:
    """Add a round's line."""
    with naming(path), open(path, "a") as file:
        file.write(encoded(line))
        file.flush()
        os.fsync(file.fileno())


def truncate(path: Path, rounds: int) -> list[Line]:
    """Keep the lines of the first ``rounds`` rounds (a resume repeats the rounds after its checkpoint). If some of them are
    missing, the old file is kept beside the new one."""
    lines = [line for line in read_history(path) if line["round"] <= rounds]
    if path.exists() and len(lines) != rounds:
        put_aside(path).write_bytes(path.read_bytes())
    rewrite(path, lines)
    return lines


def put_aside(path: Path) -> Path:
    """The path where a damaged history is kept."""
    return path.with_name("history.damaged.jsonl")


def rewrite(path: Path, lines: Sequence[Line]) -> None:
    """Write the whole history again."""
    atomic_write(path, "".join(map(encoded, lines)))


def with_notes(line: Line, notes: Mapping[str, Any]) -> Line:
    """The line with a system's own fields after the loop's.

    >>> with_notes({"round": 1}, {"weights": {"a": 1.0}})
    {'round': 1, 'weights': {'a': 1.0}}
    >>> with_notes({"round": 1}, {"round": 2})
    Traceback (most recent call last):
    fedstill.core.errors.FedstillError: a system cannot note 'round': the loop writes it
    """
    for name in notes:
        if name in line:
            raise FedstillError(f"a system cannot note '{name}': the loop writes it")
    return cast(Line, {**line, **notes})


def rounds_to(history: Sequence[Line], target: float) -> int | None:
    """The first round with at least this accuracy; None if there is none.

    >>> rounds_to([{"round": 1, "accuracy": 0.4}, {"round": 2, "accuracy": None}, {"round": 3, "accuracy": 0.9}], 0.85)
    3
    """
    return next((number for number, accuracy in _scored(history) if accuracy >= target), None)


def _scored(history: Sequence[Line]) -> list[tuple[int, float]]:
    """The rounds that were evaluated, and their accuracies."""
    found = ((line["round"], line.get("accuracy")) for line in history)
    return [(number, accuracy) for number, accuracy in found if accuracy is not None]


def summary(algorithm: str, seed: int, history: Sequence[Line], targets: Sequence[float]) -> Summary:
    """The results of a run.

    >>> sent = {"bytes_down": 1, "bytes_up": 2}
    >>> lines = [{"round": 1, "accuracy": 0.4, **sent}, {"round": 2, "accuracy": 0.7, **sent}]
    >>> found = summary("fedavg", 0, lines, [0.5, 0.9])
    >>> found["final_accuracy"], found["best_round"], found["rounds_to"], found["bytes_total"]
    (0.7, 2, {'0.5': 2, '0.9': None}, 6)
    """
    import torch  # slow, and not needed to read a history

    scored = _scored(history)
    best_round, best = max(scored, key=lambda one: one[1], default=(None, None))
    voted = [line["votes"] for line in history if "votes" in line]
    spent = [line["privacy"] for line in history if "privacy" in line]
    return {
        **({"votes": voted[-1]} if voted else {}),
        **({"privacy": spent[-1]} if spent else {}),
        "algorithm": algorithm,
        "seed": seed,
        "rounds": history[-1]["round"] if history else 0,
        "final_accuracy": scored[-1][1] if scored else None,
        "best_accuracy": best,
        "best_round": best_round,
        "rounds_to": {f"{target:g}": rounds_to(history, target) for target in targets},
        "bytes_total": sum(line["bytes_down"] + line["bytes_up"] for line in history),
        "seconds_total": round(sum(sum(line.get("seconds", {}).values()) for line in history), 3),
        "versions": {"fedstill": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
