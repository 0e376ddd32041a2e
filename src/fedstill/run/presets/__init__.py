"""Shipped configurations, one TOML file each. ``[about]`` says what it is; ``[for.NAME]`` is laid over the rest when the
algorithm is NAME, so that a preset can give every system what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.errors import FedstillError, unknown
from fedstill.options import laid_over
from fedstill.run.config import Config, parse, read, settings

__all__ = ["configuration", "presets", "tree_of"]

FOLDER = Path(__file__).parent


def presets() -> dict[str, str]:
    """Every preset and what it is."""
    return {path.stem: read(path).get("about", {}).get("what", "") for path in sorted(FOLDER.glob("*.toml"))}


def tree_of(name: str) -> dict[str, Any]:
    """The raw tree of a preset, or of a TOML file."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        if not path.is_file():
            raise FedstillError(f"no such file: {name}")
        return read(path)
    if name not in presets():
        raise unknown("preset", name, presets())
    return read(FOLDER / f"{name}.toml")


def configuration(name: str, assignments: Sequence[str] = ()) -> Config:
    """The resolved configuration of a preset or file with ``key=value`` assignments made.

    >>> configuration("demo", ["rounds=2", "algorithm.name=fedprox"]).algorithm["name"]
    'fedprox'
    """
    return resolve(tree_of(name), assignments)


def resolve(raw: Mapping[str, Any], assignments: Sequence[str] = ()) -> Config:
    """The configuration in a raw tree, its ``[for.NAME]`` table of the algorithm in force laid over it."""
    tree = {key: value for key, value in raw.items() if key not in ("about", "for")}
    overlays = raw.get("for", {})
    chosen = _named(settings(tree, list(assignments)))
    if chosen is not None and _named(tree) not in (None, chosen):
        tree = {**tree, "algorithm": {}}  # another system: the options written for the first do not apply
    if isinstance(overlays, dict) and isinstance(overlays.get(chosen), dict):
        tree = laid_over(tree, overlays[chosen])
    return parse(settings(tree, list(assignments)))


def _named(tree: Mapping[str, Any]) -> str | None:
    table = tree.get("algorithm")
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) else None
