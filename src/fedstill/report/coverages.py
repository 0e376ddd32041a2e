"""Coverage: the share of each site's features that the features drawn from its statistics cover."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fedstill.report.runs import Run
from fedstill.report.tables import Row

__all__ = ["coverages"]

_MOST_CLIENTS = 40


def coverages(rows: Sequence[Row]) -> dict[str, Any] | None:
    """One row per client and one column per system, means over seeds; of many clients, those covered worst. None if no run drew
    from statistics."""
    found = {row.label: _by_client(row.runs) for row in rows}
    found = {label: clients for label, clients in found.items() if clients}
    names = list(dict.fromkeys(name for clients in found.values() for name in clients))
    if not names:
        return None
    domains = {str(c["id"]): str(c.get("domain", "")) for row in rows for run in row.runs for c in run.clients}
    worst = sorted(names, key=lambda name: min(clients[name][-1] for clients in found.values() if name in clients))
    shown = [name for name in names if name in worst[:_MOST_CLIENTS]]
    return {
        "methods": list(found),
        "clients": [
            {"id": n, "domain": domains.get(n, ""), "cells": [_cell(c[n]) if n in c else "-" for c in found.values()]}
            for n in shown
        ],
        "mean": [_cell([fmean(values) for values in zip(*clients.values(), strict=True)]) for clients in found.values()],
        "note": f"Only the {len(shown)} of {len(names)} clients covered worst are shown." if len(shown) < len(names) else "",
    }


def _by_client(runs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """The coverage of each client in its first and in its last round, as means over seeds."""
    told: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        rounds = [covered for line in run.history if (covered := line.get("statistics", {}).get("coverage"))]
        for client in dict.fromkeys(name for covered in rounds for name in covered):
            course = [covered[client] for covered in rounds if client in covered]
            told.setdefault(client, []).append((course[0], course[-1]))
    return {client: (fmean(first for first, _ in ends), fmean(last for _, last in ends)) for client, ends in told.items()}


def _cell(ends: Sequence[float]) -> str:
    """
    >>> _cell([0.5, 0.823]), _cell([0.82, 0.82])
    ('50 % → 82 %', '82 %')
    """
    first, last = (f"{100 * share:.0f} %" for share in ends)
    return last if first == last else f"{first} → {last}"
