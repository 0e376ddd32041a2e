"""One self-contained page for any runs: the data as JSON beside the charts that draw it; nothing is loaded.

``page.html``, ``page.css`` and the two scripts are plain files; here the run folders become the JSON that they show.
"""

from __future__ import annotations

import base64
import functools
import gzip
import html
import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from fedstill.core.errors import FedstillError
from fedstill.core.version import __version__
from fedstill.report.reading import number
from fedstill.report.runs import Run, find_runs, load_run
from fedstill.report.tables import Row, best_rows, columns, latex_lines, markdown, markdown_lines, summarise
from fedstill.run.history import Line

__all__ = ["build_page", "page_data", "render"]

# The page has to stay easy to keep and to send: 6 MB with everything, of which the plotting library takes two.
_IMAGE_BYTES = 2_000_000
_MOST_CLIENTS_WEIGHED = 24
_MOST_CLIENTS_HELD = 120


def build_page(folders: Iterable[Path], out: Path | None = None) -> Path:
    """Write the page of every run among and below ``folders``; returns where it is.

    Without ``out`` the page of one folder is its ``report.html``, that of several ``report.html`` here.
    """
    places = [Path(folder) for folder in folders]
    found = find_runs(places)
    if not found:
        raise FedstillError(f"no run (history.jsonl or config.toml) in {', '.join(map(str, places)) or 'no folder'}")
    if out is None:
        out = places[0] / "report.html" if len(places) == 1 else Path("report.html")
    text = render(page_data([load_run(folder) for folder in found], root=places))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FedstillError(f"cannot write {out}: {error.strerror}") from error
    return out


def page_data(runs: Sequence[Run], root: Sequence[Path] = ()) -> dict[str, Any]:
    """Everything that the page shows of ``runs``, ready for JSON."""
    rows = summarise(list(runs))
    places = {id(run): place for place, run in enumerate(run for row in rows for run in row.runs)}
    ordered = [run for row in rows for run in row.runs]
    names = _names(ordered, rows)
    images, images_note = _images(ordered, names)
    return {
        "title": _title(rows, root),
        "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "methods": [_method(row, [places[id(run)] for run in row.runs]) for row in rows],
        "targets": list(rows[0].rounds_to) if rows else [],
        "runs": [_run(run, name) for run, name in zip(ordered, names, strict=True)],
        "partitions": _partitions(ordered, names),
        "images": images,
        "imagesNote": images_note,
        "table": _table(rows),
    }


def _title(rows: Sequence[Row], root: Sequence[Path]) -> str:
    if len(rows) == 1:
        return f"{rows[0].label}: {_count(len(rows[0].runs), 'run')}"
    named = Path(os.path.commonpath([place.resolve() for place in root])).name if root else ""
    return f"{named}: {len(rows)} methods compared" if named else f"{len(rows)} methods compared"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _names(runs: Sequence[Run], rows: Sequence[Row]) -> list[str]:
    """What a run is called on the page: its method, and its seed; numbered where that is not enough."""
    names: list[str] = []
    for row in rows:
        for run in row.runs:
            name = row.label + ("" if run.seed is None else f", seed {run.seed}")
            same = sum(other == name or other.startswith(f"{name} #") for other in names)
            names.append(f"{name} #{same + 1}" if same else name)
    return names


def _method(row: Row, places: list[int]) -> dict[str, Any]:
    return {
        "label": row.label,
        "runs": places,
        "accuracyOf": next((str(line["accuracy_of"]) for run in row.runs for line in run.history if line.get("accuracy_of")), ""),
        "domains": {name: asdict(found) for name, found in row.domains.items()},
        "prototypes": {name: asdict(found) for name, found in row.prototypes.items()},
        "roundsTo": [asdict(found) if found else None for found in row.rounds_to.values()],
        "bytesTo": [asdict(found) if found else None for found in row.bytes_to.values()],
    }


def _run(run: Run, name: str) -> dict[str, Any]:
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
        "down": _column(lines, "bytes_down"),
        "up": _column(lines, "bytes_up"),
        "domains": _by_name(lines, "domains"),
        "prototypes": _by_name(lines, "prototypes"),
        "seconds": _by_name(lines, "seconds", digits=3),
        "losses": _losses(lines),
        "courses": courses,
        "coursesNote": courses_note,
        "weightsByDomain": _weights_by_domain(lines),
        "dropped": [{"round": line["round"], **dropped} for line in lines for dropped in line.get("dropped", [])],
        "command": _command(run),
        "config": _config_text(run),
        "versions": {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
    }


def _column(
    lines: Sequence[Line], name: Literal["merged_accuracy", "ensemble_accuracy", "bytes_down", "bytes_up"]
) -> list[float | None] | None:
    """One value a round, or None where no round has any."""
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
    """What a run tells of each client round by round: weights, votes, contributions, whatever they are called."""
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
            note = f"The {len(weightiest)} of {len(course)} clients with the most weight are shown over the rounds."
    return courses, note


def _is_by_client(value: Any, clients: set[str]) -> bool:
    """Whether a field of a round's line has a number for each of some clients."""
    return (
        isinstance(value, dict)
        and bool(value)
        and set(value) <= clients
        and any(number(found) is not None for found in value.values())
    )


def _losses(lines: Sequence[Line]) -> dict[str, list[float | None]]:
    """The losses by name; a distillation's first and last, and whatever is called a loss, are losses too."""
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
    """The table pool domain x client, of the last round that has one and as the mean of those that do."""
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


def _partitions(runs: Sequence[Run], names: Sequence[str]) -> list[dict[str, Any]]:
    """Who holds what, once for all the runs that share it."""
    found: dict[str, dict[str, Any]] = {}
    for run, name in zip(runs, names, strict=True):
        held = [
            {
                "id": str(client["id"]),
                "domain": str(client.get("domain", "")),
                "prototype": str(client.get("prototype", "")),
                "counts": [n if isinstance(n, int) else 0 for n in client["counts"]],
            }
            for client in run.clients
            if isinstance(client.get("counts"), list)
        ]
        if not held:
            continue
        key = json.dumps(held)
        if key not in found:
            classes = run.classes or [str(c) for c in range(max(len(client["counts"]) for client in held))]
            found[key] = {"runs": [], "classes": classes, "of": len(held), "clients": held[:_MOST_CLIENTS_HELD]}
        found[key]["runs"].append(name)
    return list(found.values())


def _images(runs: Sequence[Run], names: Sequence[str]) -> tuple[list[dict[str, str]], str]:
    """Generator samples (the first, the middle and the last of each run) and figures, within the page's budget."""
    images: list[dict[str, str]] = []
    left_out, size = 0, 0
    for run, name in zip(runs, names, strict=True):
        samples = sorted(run.folder.glob("samples/*.png"))
        chosen = sorted({0, len(samples) // 2, len(samples) - 1} & set(range(len(samples))))
        figures = sorted([*run.folder.glob("*.png"), *run.folder.glob("figures/*.png")])
        pictures = [(samples[i], "sample") for i in chosen] + [(path, "figure") for path in figures]
        for path, kind in pictures:
            data = path.read_bytes()
            if size + len(data) > _IMAGE_BYTES:
                left_out += 1
                continue
            size += len(data)
            images.append(
                {
                    "kind": kind,
                    "caption": f"{name}: {_picture_name(path)}",
                    "src": "data:image/png;base64," + base64.b64encode(data).decode("ascii"),
                }
            )
    note = f"{_count(left_out, 'picture')} left out to keep the page small; they are in the run folders."
    return images, note if left_out else ""


def _picture_name(path: Path) -> str:
    numbered = re.fullmatch(r"round_0*(\d+)", path.stem)
    return f"round {numbered[1]}" if numbered else path.stem.replace("_", " ")


def _command(run: Run) -> str:
    said = run.summary.get("command")
    return said if isinstance(said, str) else shlex.join(["fedstill", "run", str(run.folder / "config.toml"), "--out", "again"])


def _config_text(run: Run) -> str:
    path = run.folder / "config.toml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _table(rows: Sequence[Row]) -> dict[str, Any]:
    shown = columns(rows)
    best = [best_rows(column, rows) for column in shown]
    markdown_head, markdown_rows = markdown_lines(rows)
    latex_head, latex_rows, latex_foot = latex_lines(rows)
    return {
        "columns": [{"title": column.title, "better": column.better} for column in shown],
        "rows": [
            {
                "label": row.label,
                "seeds": len(row.runs),
                "unfinished": row.unfinished,
                "cells": [
                    {
                        "text": column.cell(row),
                        "value": found.mean if (found := column.spread(row)) else None,
                        "best": place in best[c],
                    }
                    for c, column in enumerate(shown)
                ],
                "markdown": markdown_rows[place],
                "latex": latex_rows[place],
            }
            for place, row in enumerate(rows)
        ],
        "markdown": {"head": markdown_head, "foot": []},
        "latex": {"head": latex_head, "foot": latex_foot},
        "plain": markdown(rows),
    }


def render(data: dict[str, Any], live: bool = False) -> str:
    """The page as HTML text; a live one asks its own server for newer data."""
    # Not even a mistake may load or send anything.
    policy = (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "form-action 'none'; base-uri 'none'"
    )
    # '<' cannot end a script element when it is spelled as an escape.
    encoded = json.dumps(data | {"live": live}, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "policy": policy + ("; connect-src 'self'" if live else ""),
        "title": html.escape(data["title"]),
        "fallback": html.escape(data["table"]["plain"]),
        "style": _file("page.css"),
        "data": encoded,
        "plotly": _plotly(),
        "script": _file("charts.js") + _file("page.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _file("page.html"))


def _file(name: str) -> str:
    return (resources.files("fedstill.report") / name).read_text(encoding="utf-8")


@functools.cache
def _plotly() -> str:
    """The plotting library, compressed: every browser since 2023 unpacks it, and the page is a third of the size."""
    source = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(source, mtime=0)).decode("ascii")
