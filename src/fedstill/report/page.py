"""One self-contained page for any runs: the data as JSON and the scripts that draw it; nothing is loaded.

``page.html``, ``page.css`` and the scripts are plain files; this module turns the run folders into the JSON that they show.
"""

from __future__ import annotations

import base64
import functools
import gzip
import html
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError
from fedstill.core.version import __version__
from fedstill.report.by_class import confusions, partitions
from fedstill.report.coverages import coverages
from fedstill.report.distilled import distilled
from fedstill.report.feature_maps import feature_maps
from fedstill.report.numbers import count
from fedstill.report.pictures import DECIDED, pictures
from fedstill.report.run_data import run_data
from fedstill.report.runs import Run, find_runs, load_run
from fedstill.report.tables import Row, best_rows, columns, latex_lines, markdown, markdown_lines, summarise, with_ensembles
from fedstill.report.verdict import Verdict, verdict

__all__ = ["build_page", "page_data", "render"]

# In the order of the page: first the scripts that draw figures, then those that fill the page with them.
SCRIPTS = ("looks", "curves", "bars", "maps", "elements", "overview", "distillation", "sections", "table", "page")


def build_page(folders: Iterable[Path], out: Path | None = None) -> Path:
    """Write the page of every run among and below ``folders``; return its path.

    Without ``out``, the page is ``report.html`` in the folder if there is one folder, otherwise in the current folder.
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
    """Everything that the page shows about ``runs``, ready for JSON."""
    rows = summarise(list(runs))
    places = {id(run): place for place, run in enumerate(run for row in rows for run in row.runs)}
    ordered = [run for row in rows for run in row.runs]
    names = _names(ordered, rows)
    images, images_note = pictures(ordered, names)
    confused, confused_note = confusions(rows)
    shown_maps, maps_note = feature_maps(rows)
    found = verdict(rows)
    return {
        "title": _title(rows, root),
        "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "verdict": _verdict(found),
        "methods": [_method(row, [places[id(run)] for run in row.runs], found) for row in rows],
        "targets": list(rows[0].rounds_to) if rows else [],
        "runs": [run_data(run, name) for run, name in zip(ordered, names, strict=True)],
        "partitions": partitions(ordered, names),
        "images": images,
        "imagesNote": images_note,
        "imagesDecided": DECIDED,
        "confusions": confused,
        "confusionsNote": confused_note,
        "coverages": coverages(rows),
        "featureMaps": shown_maps,
        "featureMapsNote": maps_note,
        "table": _table(rows),
    }


def _title(rows: Sequence[Row], root: Sequence[Path]) -> str:
    if len(rows) == 1:
        return f"{rows[0].label}: {count(len(rows[0].runs), 'run')}"
    named = Path(os.path.commonpath([place.resolve() for place in root])).name if root else ""
    return f"{named}: {len(rows)} methods compared" if named else f"{len(rows)} methods compared"


def _names(runs: Sequence[Run], rows: Sequence[Row]) -> list[str]:
    """The name of each run on the page: its method and its seed, numbered if that is not unique."""
    names: list[str] = []
    for row in rows:
        for run in row.runs:
            name = row.label + ("" if run.seed is None else f", seed {run.seed}")
            same = sum(other == name or other.startswith(f"{name} #") for other in names)
            names.append(f"{name} #{same + 1}" if same else name)
    return names


def _verdict(found: Verdict) -> dict[str, Any]:
    words = {name: getattr(found, name) for name in ("kind", "headline", "sure", "cost", "why", "leader")}
    return words | {
        "differences": [
            {"over": d.over, "mean": 100 * d.mean, "half": 100 * d.half, "seeds": len(d.seeds)}
            for d in found.differences
            if d.half is not None
        ]
    }


def _method(row: Row, places: list[int], found: Verdict) -> dict[str, Any]:
    done = distilled(row.runs)
    told = done.text if done else ""
    if done and done.harm and row.label == found.leader and found.why:
        told += f" {found.why}"
    return {
        "label": row.label,
        "runs": places,
        "accuracyOf": next((str(line["accuracy_of"]) for run in row.runs for line in run.history if line.get("accuracy_of")), ""),
        "distilled": {"text": told, "harm": done.harm} if done else None,
        "domains": {name: asdict(found) for name, found in row.domains.items()},
        "prototypes": {name: asdict(found) for name, found in row.prototypes.items()},
        "roundsTo": [asdict(found) if found else None for found in row.rounds_to.values()],
        "bytesTo": [asdict(found) if found else None for found in row.bytes_to.values()],
    }


def _table(methods: Sequence[Row]) -> dict[str, Any]:
    rows = with_ensembles(methods)
    of = {row.label: place for place, row in enumerate(methods)}
    owners = [max((of[row.label] for row in rows[: place + 1] if row.label in of), default=0) for place in range(len(rows))]
    shown = columns(rows)
    best = [best_rows(column, rows) for column in shown]
    markdown_head, markdown_rows = markdown_lines(rows)
    latex_head, latex_rows, latex_foot = latex_lines(rows)
    return {
        "columns": [{"title": column.title, "better": column.better} for column in shown],
        "rows": [
            {
                "label": row.label,
                "method": owners[place],  # whose row it is, or whose ensemble
                "seeds": len(row.seeds),
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
    # The policy keeps even a bug from loading or sending anything.
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
        "script": "".join(_file(f"scripts/{name}.js") for name in SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _file("page.html"))


def _file(name: str) -> str:
    return (resources.files("fedstill.report") / name).read_text(encoding="utf-8")


@functools.cache
def _plotly() -> str:
    """The plotting library, compressed: every browser since 2023 can unpack it, and the page has a third of the size."""
    source = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(source, mtime=0)).decode("ascii")
