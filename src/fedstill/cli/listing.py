"""``fedstill algorithms`` and ``fedstill presets``: what there is."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from fedstill.algorithms import algorithms as all_algorithms
from fedstill.cli.show import console
from fedstill.config.presets import presets as all_presets

__all__ = ["algorithms", "presets"]


def algorithms(as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False) -> None:
    """Every system: its paper, its parts, its options with their defaults."""
    if as_json:
        tree = {
            name: {
                "title": kind.title,
                "paper": kind.paper,
                "parts": dict(kind.parts),
                "needs": list(kind.needs),
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
        table.add_row(f"[bold]{name}[/]\n{kind.title}", kind.paper, parts, options)
    console.print(table)


def presets() -> None:
    """Every shipped configuration."""
    table = Table(title="Presets")
    table.add_column("name", style="bold")
    table.add_column("what it is")
    for name, what in all_presets().items():
        table.add_row(name, what)
    console.print(table)
