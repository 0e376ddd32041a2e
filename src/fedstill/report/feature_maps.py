"""Real and virtual features of the domains, as the page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedstill.report.numbers import count
from fedstill.report.tables import Row

__all__ = ["feature_maps"]

_MOST_POINTS = 20_000  # on a page: a third of a megabyte


def feature_maps(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], str]:
    """The map of one run of each system, its first seed that has one; and what was left out."""
    found: list[dict[str, Any]] = []
    points, left_out = 0, 0
    for place, row in enumerate(rows):
        run = next((run for run in row.runs if run.feature_map is not None and run.feature_map["domains"]), None)
        if run is None or run.feature_map is None:
            continue
        size = sum(len(domain["real"]) + len(domain["virtual"]) for domain in run.feature_map["domains"].values())
        if points + size > _MOST_POINTS:
            left_out += 1
            continue
        points += size
        found.append({"method": place, "seed": run.seed, **run.feature_map})
    note = f"The features of {count(left_out, 'system')} are left out to keep the page small; they are in the run folders."
    return found, note if left_out else ""
