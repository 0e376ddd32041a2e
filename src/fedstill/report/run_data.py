"""What the page shows about one run: its rounds as columns, its weights, its losses, the command to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Literal

from fedstill.report.distilled import carried_gain, delivered_gain, distils, line_data
from fedstill.report.reading import number
from fedstill.report.runs import Run
from fedstill.run.budgets import budget_words
from fedstill.run.history import Line

__all__ = ["run_data"]

_MOST_CLIENTS_WEIGHED = 24
EQUAL = 0.005  # weights that differ by no more than this count as equal


def run_data(run: Run, name: str) -> dict[str, Any]:
    """The data of ``run``, which the page calls ``name``, ready for JSON."""
    lines = run.history
    courses, courses_note = _courses(run)
    versions = run.summary.get("versions")
    return {
        "name": name,
        "seed": run.seed,
        "folder": str(run.folder),
        "finished": run.finished,
        "planned": run.planned_rounds,
        "problems": run.problems,
        "round": [line["round"] for line in lines],
        "accuracy": [line.get("accuracy") for line in lines],
        "merged": _column(lines, "merged_accuracy"),
        "ensemble": _column(lines, "ensemble_accuracy"),
        "gained": [_points(delivered_gain(line)) for line in lines] if distils(run) else None,
        "carried": [_points(carried_gain(line)) for line in lines] if distils(run) else None,
        "line": line_data(lines),
        "down": _column(lines, "bytes_down"),
        "up": _column(lines, "bytes_up"),
        "domains": _by_name(lines, "domains"),
        "prototypes": _by_name(lines, "prototypes"),
        "seconds": _by_name(lines, "seconds", digits=3),
        "losses": _losses(lines),
        "courses": courses,
        "coursesNote": courses_note,
        "weightsByDomain": _weights_by_domain(lines),
        "weighs": _weighs(lines),
        "dropped": [{"round": line["round"], **dropped} for line in lines for dropped in line.get("dropped", [])],
        "privacy": budget_words(next((line["privacy"] for line in reversed(lines) if line.get("privacy")), None)),
        "command": _command(run),
        "config": _config_text(run),
        "versions": {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
    }


def _points(gain: float | None) -> float | None:
    """A difference of accuracies in points, rounded to a hundredth, without a negative zero."""
    return None if gain is None else round(100 * gain, 2) + 0.0


def _weighs(lines: Sequence[Line]) -> bool:
    """Whether clients had different weights in any round."""
    tables = [line["weights"] for line in lines if line.get("weights")]
    tables += [weights for line in lines for weights in line.get("weights_by_domain", {}).values()]
    given = [[w for w in weights.values() if w is not None] for weights in tables]
    return any(max(weights) - min(weights) > EQUAL for weights in given if weights)


def _column(
    lines: Sequence[Line], name: Literal["merged_accuracy", "ensemble_accuracy", "bytes_down", "bytes_up"]
) -> list[float | None] | None:
    """One value per round, or None if no round has one."""
    values: list[float | None] = [line.get(name) for line in lines]
    return values if any(value is not None for value in values) else None


def _by_name(
    lines: Sequence[Line], field: Literal["domains", "prototypes", "seconds", "losses"], digits: int | None = None
) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for line in lines for name in line.get(field, {}))
    return {name: [_short(line.get(field, {}).get(name), digits) for line in lines] for name in names}


def _short(value: float | None, digits: int | None) -> float | None:
    return value if value is None or digits is None else round(value, digits)


def _courses(run: Run) -> tuple[dict[str, dict[str, list[float | None]]], str]:
    """Every field that has a number for each client, round by round: weights, votes, contributions and others."""
    clients = {str(client) for line in run.history for client in line.get("clients", [])}
    clients |= {str(client["id"]) for client in run.clients}
    fields = dict.fromkeys(field for line in run.history for field, value in line.items() if _is_by_client(value, clients))
    courses: dict[str, dict[str, list[float | None]]] = {}
    note = ""
    for field in fields:
        course = {
            client: [_short(number(value.get(client)), 4) if isinstance(value, dict) else None for value in values]
            for values in [[line.get(field) for line in run.history]]
            for client in dict.fromkeys(name for value in values if isinstance(value, dict) for name in value)
        }
        courses[field] = course
        if len(course) > _MOST_CLIENTS_WEIGHED:
            weightiest = sorted(course, key=lambda client: -sum(w or 0.0 for w in course[client]))[:_MOST_CLIENTS_WEIGHED]
            courses[field] = {client: course[client] for client in course if client in weightiest}
            note = f"Over the rounds, the {len(weightiest)} of {len(course)} clients with the largest weights are shown."
    return courses, note


def _is_by_client(value: Any, clients: set[str]) -> bool:
    """Whether a field of a round's line maps clients to numbers."""
    return (
        isinstance(value, dict)
        and bool(value)
        and set(value) <= clients
        and any(number(found) is not None for found in value.values())
    )


def _losses(lines: Sequence[Line]) -> dict[str, list[float | None]]:
    """The losses by name, including the first and last of each distillation and every field that ends in ``_loss``."""
    found = _by_name(lines, "losses", digits=6)
    for name in dict.fromkeys(key for line in lines for key in line if key.endswith("_loss")):
        found[name.replace("_", " ")] = [_significant(number(line.get(name))) for line in lines]
    students = dict.fromkeys(name for line in lines for name in line.get("distillation", {}))
    for student in students:
        of = f" of {student}" if len(students) > 1 else ""
        for when in ("first", "last"):
            course = [line.get("distillation", {}).get(student, {}).get(when) for line in lines]
            if any(value is not None for value in course):
                found[f"distillation{of}, {when} step"] = [_significant(value) for value in course]
    return found


def _significant(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _weights_by_domain(lines: Sequence[Line]) -> dict[str, dict[str, dict[str, float]]]:
    """The table of pool domain x client: of the last round that has one, and the mean over all rounds that have one."""
    having = [line["weights_by_domain"] for line in lines if line.get("weights_by_domain")]
    if not having:
        return {}
    sums: dict[str, dict[str, list[float]]] = {}
    for table in having:
        for domain, weights in table.items():
            for client, weight in weights.items():
                if weight is not None:
                    sums.setdefault(domain, {}).setdefault(client, []).append(weight)
    mean = {d: {c: round(sum(w) / len(w), 4) for c, w in clients.items()} for d, clients in sums.items()}
    last = {d: {c: round(w, 4) for c, w in clients.items() if w is not None} for d, clients in having[-1].items()}
    return {"mean": mean, "last": last}


def _command(run: Run) -> str:
    said = run.summary.get("command")
    return said if isinstance(said, str) else shlex.join(["fedstill", "run", str(run.folder / "config.toml"), "--out", "again"])


def _config_text(run: Run) -> str:
    path = run.folder / "config.toml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
