"""What the page shows class by class: the partition of the data, and confusion matrices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fedstill.report.numbers import count
from fedstill.report.runs import Run
from fedstill.report.tables import Row

__all__ = ["confusions", "partitions"]

_MOST_CLIENTS_HELD = 120
_MOST_CELLS = 200_000  # of all confusion matrices: about 1 MB of the page


def partitions(runs: Sequence[Run], names: Sequence[str]) -> list[dict[str, Any]]:
    """The samples of each class that every client holds, once for all runs that share the partition."""
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


def confusions(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], str]:
    """The confusion matrices of each system by test domain, summed over its seeds, and a note on systems left out."""
    found: list[dict[str, Any]] = []
    cells, left_out = 0, 0
    for place, row in enumerate(rows):
        tables = [run.confusion for run in row.runs if run.confusion is not None]
        tables = [table for table in tables if table["classes"] == tables[0]["classes"]]
        if not tables:
            continue
        names = dict.fromkeys(name for table in tables for name in table["domains"])
        size = len(names) * len(tables[0]["classes"]) ** 2
        if cells + size > _MOST_CELLS:
            left_out += 1
            continue
        cells += size
        domains = {name: _added([table["domains"][name] for table in tables if name in table["domains"]]) for name in names}
        found.append({"method": place, "seeds": len(tables), "classes": tables[0]["classes"], "domains": domains})
    note = f"The matrices of {count(left_out, 'system')} are left out to keep the page small; they are in the run folders."
    return found, note if left_out else ""


def _added(tables: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """
    >>> _added([[[1, 2], [3, 4]], [[1, 0], [0, 1]]])
    [[2, 2], [3, 5]]
    """
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]
