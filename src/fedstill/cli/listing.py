"""``fedstill algorithms`` and ``fedstill presets``: the systems and the shipped configurations."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedstill.cli.bibtex import bibtex
from fedstill.cli.tables import print_table
from fedstill.config.presets import presets as all_presets

__all__ = ["algorithms", "presets"]


def algorithms(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    cite: Annotated[
        str | None, typer.Option("--bibtex", metavar="NAMES", help="The papers' BibTeX: feddf, feddf,fedd3a or all.")
    ] = None,
) -> None:
    """List every system: its paper, its parts, its options with their defaults, and the package it comes from."""
    if cite is not None:
        print(bibtex(cite))
        return
    # slow: they import torch
    from fedstill.algorithm import ALGORITHMS
    from fedstill.algorithms import algorithms as all_algorithms

    if as_json:
        tree = {
            name: {
                "title": kind.title,
                "paper": kind.paper,
                "parts": dict(kind.parts),
                "needs": list(kind.needs),
                "origin": ALGORITHMS.origin(name),
                "options": kind.Options().model_dump(mode="json"),
            }
            for name, kind in all_algorithms().items()
        }
        print(json.dumps(tree, indent=2))
        return
    rows = []
    for name, kind in all_algorithms().items():
        parts = "\n".join(f"{part}: {member}" for part, member in kind.parts.items())
        options = "\n".join(
            f"{key} = {json.dumps(value)}"
            for key, value in kind.Options().model_dump(mode="json").items()
            if not isinstance(value, dict)
        )
        origin = ALGORITHMS.origin(name)
        plugged = "" if origin == "fedstill" else f"\nfrom {origin}"
        rows.append([name, f"{kind.title}{plugged}\n{kind.paper}", parts, options])
    print_table("Systems", ["name", "system", "parts", "options"], rows, lines=True)


def presets() -> None:
    """List every shipped configuration."""
    print_table("Presets", ["name", "what it is"], [[name, what] for name, what in all_presets().items()])
