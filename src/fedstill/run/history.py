"""The history: a line a round, as JSON, in ``history.jsonl``; and the summary of a run."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedstill.core.files import atomic_write, to_json
from fedstill.core.version import __version__

__all__ = ["append", "put_aside", "read_history", "rewrite", "summary", "truncate"]


def read_history(path: Path) -> list[dict[str, Any]]:
    """The sound lines of a history; one cut off by a crash, or damaged, is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict) and isinstance(line.get("round"), int):
            lines.append(line)
    return lines


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a round's line."""
    with open(path, "a") as file:
        file.write(to_json(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def truncate(path: Path, rounds: int) -> list[dict[str, Any]]:
    """Keep the lines of the first ``rounds`` rounds (a resume repeats what came after its checkpoint). Where some of them are
    missing, the old file is kept beside the new one."""
    lines = [line for line in read_history(path) if line["round"] <= rounds]
    if path.exists() and len(lines) != rounds:
        put_aside(path).write_bytes(path.read_bytes())
    rewrite(path, lines)
    return lines


def put_aside(path: Path) -> Path:
    """Where a damaged history is kept."""
    return path.with_name("history.damaged.jsonl")


def rewrite(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write the whole history again."""
    atomic_write(path, "".join(to_json(line) + "\n" for line in lines))


def summary(algorithm: str, seed: int, history: Sequence[dict[str, Any]], targets: Sequence[float]) -> dict[str, Any]:
    """What a run came to.

    >>> sent = {"bytes_down": 1, "bytes_up": 2}
    >>> lines = [{"round": 1, "accuracy": 0.4, **sent}, {"round": 2, "accuracy": 0.7, **sent}]
    >>> found = summary("fedavg", 0, lines, [0.5, 0.9])
    >>> found["final_accuracy"], found["best_round"], found["rounds_to"], found["bytes_total"]
    (0.7, 2, {'0.5': 2, '0.9': None}, 6)
    """
    scored = [line for line in history if line.get("accuracy") is not None]
    best = max(scored, key=lambda line: line["accuracy"], default=None)
    reached = {f"{target:g}": next((line["round"] for line in scored if line["accuracy"] >= target), None) for target in targets}
    return {
        "algorithm": algorithm,
        "seed": seed,
        "rounds": history[-1]["round"] if history else 0,
        "final_accuracy": scored[-1]["accuracy"] if scored else None,
        "best_accuracy": best["accuracy"] if best else None,
        "best_round": best["round"] if best else None,
        "rounds_to": reached,
        "bytes_total": sum(line["bytes_down"] + line["bytes_up"] for line in history),
        "seconds_total": round(sum(sum(line.get("seconds", {}).values()) for line in history), 3),
        "versions": {"fedstill": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
