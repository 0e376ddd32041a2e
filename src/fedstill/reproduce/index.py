"""One page for all studies: every table and figure, the paper's figures beside ours, and a verdict per claim."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedstill.core.files import atomic_write
from fedstill.reproduce.catalogue import Study, studies
from fedstill.reproduce.claims import Verdict, verdicts
from fedstill.reproduce.plan import Cell, Published
from fedstill.reproduce.tables import cell_texts, grid

__all__ = ["cells_in", "index_page", "read_records", "write_index"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #222; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; } h3 { margin: 2rem 0 .3rem; }
table { border-collapse: collapse; margin: .6rem 0; font-size: 14px; } .wide { overflow-x: auto; }
th, td { border: 1px solid #ddd; padding: .2rem .55rem; text-align: left; } th { background: #f4f4f4; }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; } img { max-width: 100%; }
code { background: #f4f4f4; padding: .1rem .3rem; overflow-wrap: anywhere; } .small { color: #555; font-size: 13px; }
.v { white-space: nowrap; font-weight: 600; } .shown { color: #157347; } .not-shown { color: #b02a37; }
.undecided { color: #8a6100; } .not-comparable { color: #666; } .failed { color: #b02a37; }
"""


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of the studies in ``folder/NAME/cells.json``, by name."""
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/cells.json"))}


def cells_in(record: Mapping[str, Any]) -> list[Cell]:
    """A record's cells.

    >>> cells_in({"cells": [{"row": "a", "column": "b", "ours": [0.5], "paper": None}]})
    [Cell(row='a', column='b', ours=(0.5,), paper=None)]
    """
    return [
        Cell(c["row"], c["column"], tuple(c["ours"]), Published(**c["paper"]) if c.get("paper") else None)
        for c in record["cells"]
    ]


def write_index(folder: Path, failed: Mapping[str, str] | None = None) -> Path:
    """Write ``index.html`` of the studies in ``folder``; ``failed`` are those that did not start, with the reason."""
    records = read_records(folder)
    pictures = {name: sorted((folder / name).glob("*.png")) for name in records}
    path = folder / "index.html"
    atomic_write(path, index_page(records, pictures, failed or {}))
    return path


def index_page(
    records: Mapping[str, Mapping[str, Any]], pictures: Mapping[str, Sequence[Path]], failed: Mapping[str, str]
) -> str:
    """The page as self-contained HTML."""
    known = studies()
    found = verdicts(records)
    minutes = sum(record.get("minutes", 0.0) for record in records.values())
    parts = ["<h1>The papers' tables and figures, and ours</h1>"]
    parts.append(f"<p>{len(records)} studies, {minutes:.0f} minutes of runs. The verdicts follow a rule: ")
    parts.append(
        "differences are paired by seed, and a claim is shown if their 95% intervals are on the claimed side of zero.</p>"
    )
    parts.append(_claims_table(found, records))
    if failed:
        parts.append("<h2>Studies that did not run</h2><ul>")
        parts += [f"<li class=failed>{escape(name)}: {escape(reason)}</li>" for name, reason in failed.items()]
        parts.append("</ul>")
    groups: dict[str, list[str]] = {}
    for name in records:
        title = known[name].title if name in known else name
        groups.setdefault(title.split(",")[0] if "," in title.split(":")[0] else "Not of a paper", []).append(name)
    for group, names in sorted(groups.items()):
        parts.append(f"<h2>{escape(group)}</h2>")
        for name in names:
            mine = [one for one in found if one.claim.study == name]
            parts.append(_section(name, records[name], known.get(name), pictures.get(name, ()), mine))
    body = "\n".join(parts)
    return f"<!doctype html><html lang=en><meta charset=utf-8><title>Reproduction</title><style>{STYLE}</style>\n{body}</html>\n"


def _verdict(one: Verdict) -> str:
    return f'<span class="v {one.kind.replace(" ", "-")}">{one.kind}</span>'


def _claims_table(found: Sequence[Verdict], records: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for one in found:
        record = records.get(one.claim.study)
        scale = record["scale"] if record else ""
        rows.append(
            f"<tr><td>{escape(one.claim.paper)}<td>{escape(one.claim.words)}<td>{_verdict(one)}"
            f"<td class=small>{escape(one.why)}<td>{scale}<td><a href='#{one.claim.study}'>{one.claim.study}</a></tr>"
        )
    heads = "<tr><th>paper<th>claim<th>verdict<th>why<th>scale<th>study</tr>"
    return "<h2>Claims</h2><div class=wide><table>" + heads + "\n".join(rows) + "</table></div>"


def _section(
    name: str, record: Mapping[str, Any], study: Study | None, pictures: Sequence[Path], found: Sequence[Verdict]
) -> str:
    cells = cells_in(record)
    unit = study.unit if study else "number"
    parts = [f"<h3 id='{name}'>{escape(study.title if study else name)}</h3>"]
    parts.append(f"<p><code>{escape(record.get('command', ''))}</code> <span class=small>{record['scale']} scale, ")
    parts.append(f"{record.get('runs', 0)} runs, {record.get('minutes', 0):.1f} minutes of runs</span></p>")
    for path in pictures:
        parts.append(
            f'<p><img alt="{escape(path.stem)}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"></p>'
        )
    if any(cell.paper and cell.ours for cell in cells):
        heads = ["", "", "paper", "ours", "difference"]
        rows = [[cell.row, cell.column, *cell_texts(cell, unit)] for cell in cells]
    else:
        heads, rows = grid(cells, unit)
    head = "".join(f"<th>{escape(text)}" for text in heads)
    body = "".join("<tr>" + "".join(f"<td class=n>{escape(text)}" for text in row) + "</tr>\n" for row in rows)
    parts.append(f"<div class=wide><table><tr>{head}</tr>{body}</table></div>")
    for failure, reason in record.get("failed", {}).items():
        parts.append(f"<p class=failed>failed: {escape(failure)}: {escape(reason)}</p>")
    for one in found:
        parts.append(f"<p>{_verdict(one)}: {escape(one.claim.words)} <span class=small>{escape(one.why)}</span></p>")
    if study and study.note:
        parts.append(f"<p class=small>{escape(study.note)}</p>")
    return "\n".join(parts)
