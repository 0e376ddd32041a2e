"""Read the files of a run folder, whether complete, unfinished or damaged, and describe each problem in one line."""

from __future__ import annotations

import itertools
import math
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedstill.run.history import Line, Summary, sound_json, sound_lines, sound_summary

if TYPE_CHECKING:  # slow: it imports torch, which reading does not need
    from fedstill.fusion.feature_map import FeatureMap
    from fedstill.run.confusion import Tables

__all__ = ["clients_of", "config_of", "confusion_of", "feature_map_of", "history_of", "number", "share", "summary_of"]

_SHARES = ("accuracy", "merged_accuracy", "ensemble_accuracy")
_NUMBERS = (*_SHARES, "bytes_down", "bytes_up")
_NUMBERS_BY_NAME = ("domains", "prototypes", "seconds", "weights", "losses", "generator")
_NUMBERS_BY_TWO_NAMES = ("weights_by_domain", "distillation")
_WORD = "kept"  # the only text among a distillation's numbers: which model was kept


def number(value: Any) -> float | None:
    """``value`` if it is a finite number, otherwise None.

    >>> number(3), number(float("nan")), number("3"), number(True)
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def share(value: Any) -> float | None:
    """``value`` if it is a number from 0 to 1, otherwise None.

    >>> share(0.5), share(7.0)
    (0.5, None)
    """
    found = number(value)
    return found if found is not None and 0 <= found <= 1 else None


def config_of(folder: Path, problems: list[str]) -> dict[str, Any]:
    """The configuration; empty if it is missing or damaged."""
    text = _text(folder / "config.toml", problems)
    if text is None:
        return {}
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(f"config.toml is damaged: {error}")
        return {}


def summary_of(folder: Path, problems: list[str]) -> Summary:
    """The summary; empty if it is missing or damaged."""
    text = _text(folder / "summary.json", problems, ": the run is in progress or was interrupted")
    if text is None:
        return {}
    summary = sound_summary(text)
    if summary is None:
        problems.append("summary.json is damaged: its figures are taken from the history")
        return {}
    return summary


def history_of(folder: Path, problems: list[str]) -> list[Line]:
    """The rounds in order, each once, without unusable values."""
    text = _text(folder / "history.jsonl", problems)
    if text is None:
        return []
    rounds: dict[int, Line] = {}
    unusable: dict[str, list[int]] = {}
    lines, damaged = sound_lines(text)
    for line in lines:
        # A resumed run may repeat its last round: the model continued from the later line.
        rounds[line["round"]], dropped = _clean(line)
        for name in dropped:
            unusable.setdefault(name, []).append(line["round"])
    if damaged:
        problems.append(f"history.jsonl: skipped {_count(len(damaged), 'damaged line')} ({_few(damaged)})")
    for name, where in unusable.items():
        problems.append(f"history.jsonl: '{name}' is not usable in {_count(len(where), 'round')} ({_few(where)})")
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
    """``line`` with every known field in its expected form, and the names of unusable values."""
    unusable: list[str] = []

    def numbers(values: Any, name: str) -> dict[str, float]:
        if not isinstance(values, dict):
            unusable.append(name)
            return {}
        found = {str(key): (value, number(value)) for key, value in values.items() if key != _WORD}
        unusable.extend(f"{name}.{key}" for key, (value, usable) in found.items() if value is not None and usable is None)
        return {key: usable for key, (_, usable) in found.items() if usable is not None}

    cleaned: dict[str, Any] = dict(line)
    for name in _NUMBERS:
        if cleaned.get(name) is not None:
            cleaned[name] = (share if name in _SHARES else number)(cleaned[name])
            if cleaned[name] is None:
                unusable.append(name)
    for name in _NUMBERS_BY_NAME:
        if name in cleaned:
            cleaned[name] = numbers(cleaned[name] or {}, name)
    for name in _NUMBERS_BY_TWO_NAMES:
        if name in cleaned:
            outer = cleaned[name] if isinstance(cleaned[name], dict) else {}
            if any(number(value) is not None for value in outer.values()):  # a system with one student may omit its name
                outer = {"student": outer}
            cleaned[name] = {str(key): numbers(values, f"{name}.{key}") for key, values in outer.items()}
    if cleaned.get("line") is not None:
        cleaned["line"] = _judged(cleaned["line"])
        if cleaned["line"] is None:
            unusable.append("line")
    if "statistics" in cleaned:
        told = cleaned["statistics"].get("coverage", {}) if isinstance(cleaned["statistics"], dict) else None
        shares = {name: share(value) for name, value in numbers(told, "statistics").items()}
        cleaned["statistics"] = {"coverage": {name: value for name, value in shares.items() if value is not None}}
    for name in ("clients", "dropped"):
        if name in cleaned and not isinstance(cleaned[name], list):
            cleaned[name] = []
            unusable.append(name)
    if "dropped" in cleaned:
        cleaned["dropped"] = [
            {"client": str(d.get("client", "?")), "reason": str(d.get("reason", "no reason given"))}
            for d in cleaned["dropped"]
            if isinstance(d, dict)
        ]
    return cast(Line, cleaned), unusable


def _judged(found: Any) -> dict[str, Any] | None:
    """A judge's scores of the points between average and student, in their expected form; None if they do not have it."""
    points = found.get("points") if isinstance(found, dict) else None
    if not isinstance(points, list) or len(points) < 2 or any(share(p) is None for p in points) or sorted(set(points)) != points:
        return None

    def by_name(field: str) -> dict[str, Any]:
        return {str(name): value for name, value in found[field].items()} if isinstance(found.get(field), dict) else {}

    def scored(value: Any) -> bool:
        return isinstance(value, list) and len(value) == len(points) and all(share(one) is not None for one in value)

    def listed(value: Any) -> bool:
        return isinstance(value, list) and all(number(one) is not None for one in value)

    judged_in = {name: rounds for name, rounds in by_name("judged_in").items() if listed(rounds)}
    return {
        "judge": str(found.get("judge", "none")),
        "points": points,
        "scores": {name: scores for name, scores in by_name("scores").items() if scored(scores)},
        "delivered": {name: t for name, t in by_name("delivered").items() if share(t) is not None},
        "carried": {name: t for name, t in by_name("carried").items() if share(t) is not None},
        "snapshots": {
            name: {"delivered": number(early.get("delivered"))}
            for name, early in by_name("snapshots").items()
            if isinstance(early, dict)
        },
        "past": {
            name: {"delivered": share(mean.get("delivered")), "rounds": int(number(mean.get("rounds")) or 0)}
            for name, mean in by_name("past").items()
            if isinstance(mean, dict)
        },
        "faults": {name: str(reason) for name, reason in by_name("faults").items()},
    } | ({"judged_in": judged_in} if "judged_in" in found else {})  # by earlier verdicts: clients trained on all their samples


def clients_of(folder: Path, problems: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The clients and the classes of ``clients.json``."""
    path = folder / "clients.json"
    text = _text(path, problems) if path.exists() else None
    if text is None:
        return [], []
    found = sound_json(text)
    classes = found.get("classes") if isinstance(found, dict) else None
    clients = found.get("clients") if isinstance(found, dict) else found
    if not isinstance(clients, list) or not all(isinstance(c, dict) and "id" in c for c in clients):
        problems.append("clients.json is damaged: the partition is not shown")
        return [], []
    return clients, [str(c) for c in classes] if isinstance(classes, list) else []


def confusion_of(folder: Path, problems: list[str]) -> Tables | None:
    """The tables of ``confusion.json``; None if the run wrote none."""
    path = folder / "confusion.json"
    text = _text(path, problems) if path.exists() else None
    if text is None:
        return None
    found = sound_json(text)
    classes, domains = (found.get("classes"), found.get("domains")) if isinstance(found, dict) else (None, None)
    sound = isinstance(classes, list) and isinstance(domains, dict) and all(_square(t, len(classes)) for t in domains.values())
    if not sound:
        problems.append("confusion.json is damaged: confusion matrices are not shown")
        return None
    return {"classes": [str(c) for c in cast(list[Any], classes)], "domains": cast(dict[str, list[list[int]]], domains)}


def feature_map_of(folder: Path, problems: list[str]) -> FeatureMap | None:
    """The map of ``features.json``; None where a run left none."""
    path = folder / "features.json"
    text = _text(path, problems) if path.exists() else None
    if text is None:
        return None
    found = sound_json(text)
    domains = found.get("domains") if isinstance(found, dict) else None
    kinds = ("real", "virtual")
    sound = isinstance(domains, dict) and all(
        isinstance(d, dict) and all(_points(d.get(k)) for k in kinds) for d in domains.values()
    )
    if not sound:
        problems.append("features.json is damaged: real and virtual features are not shown")
        return None
    told = {"round": number(found.get("round")) or 0, "explained": share(found.get("explained")) or 0.0}
    kept = {name: {kind: domain[kind] for kind in kinds} for name, domain in cast(dict[str, Any], domains).items()}
    return cast("FeatureMap", {**told, "domains": kept})


def _points(found: Any) -> bool:
    """Whether ``found`` is a list of two finite numbers each."""
    return isinstance(found, list) and all(
        isinstance(point, list) and len(point) == 2 and all(number(value) is not None for value in point) for point in found
    )


def _square(table: Any, size: int) -> bool:
    """Whether ``table`` is a square matrix of counts."""
    return (
        isinstance(table, list)
        and len(table) == size
        and all(isinstance(row, list) and len(row) == size for row in table)
        and all(type(n) is int and n >= 0 for row in table for n in row)
    )


def _text(path: Path, problems: list[str], consequence: str = "") -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        problems.append(f"{path.name} is missing{consequence}")
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {os.strerror(error.errno or 0)}")
    return None


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _few(places: list[int], most: int = 8) -> str:
    return ", ".join(map(str, places[:most])) + (", ..." if len(places) > most else "")
