"""``fedstill algorithms`` and ``fedstill presets``: the systems and the shipped configurations."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedstill.cli.bibtex import bibtex
from fedstill.config.presets import presets as all_presets
from fedstill.core.console import console

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
    table = Table(title="Systems", show_lines=True)
    for column in ("name", "paper", "parts", "options"):
        table.add_column(column)
    for name, kind in all_algorithms().items():
        parts = "\n".join(f"{part}: {member}" for part, member in kind.parts.items())
        options = "\n".join(
            f"{key} = {json.dumps(value)}"
            for key, value in kind.Options().model_dump(mode="json").items()
            if not isinstance(value, dict)
        )
        origin = ALGORITHMS.origin(name)
        plugged = "" if origin == "fedstill" else f"\nfrom {origin}"
        head = f"[bold]{escape(name)}[/]\n{escape(kind.title + plugged)}"
        table.add_row(head, escape(kind.paper), escape(parts), escape(options))
    console.print(table)


def presets() -> None:
    """List every shipped configuration."""
    table = Table(title="Presets")
    table.add_column("name", style="bold")
    table.add_column("what it is")
    for name, what in all_presets().items():
        table.add_row(name, what)
    console.print(table)
