"""The table of a system's options, from the code."""

from __future__ import annotations

from fedstill.algorithms import algorithms
from fedstill.cli.reference import rows

__all__ = ["options_table"]


def options_table(name: str, up: str) -> str:
    """The options of the system ``name``; links lead to the page of all options, which lies ``up``.

    >>> "`algorithm.mu`" in options_table("fedprox", "../")
    True
    """
    found = rows(algorithms()[name].Options, "algorithm.")
    table = "\n".join(["| key | default | values, meaning |", "|---|---|---|", *found]) if found else "No options."
    return table.replace("](#", f"]({up}configuration.md#")
