"""Shipped configurations, one TOML file each. ``[about]`` describes the preset; ``[for.NAME]`` overrides the rest if the
algorithm is NAME, so that a preset can give every system what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedstill.config.trees import read
from fedstill.core.errors import FedstillError, unknown

__all__ = ["presets", "tree_of"]

FOLDER = Path(__file__).with_name("presets")


def presets() -> dict[str, str]:
    """Every preset with its description."""
    return {path.stem: read(path).get("about", {}).get("what", "") for path in sorted(FOLDER.glob("*.toml"))}


def tree_of(name: str) -> dict[str, Any]:
    """The raw tree of a preset, or of a TOML file."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file() or (path.exists() and name not in presets()):
        if not path.is_file():
            raise FedstillError(f"no such file: {name}")
        return read(path)
    if name not in presets():
        raise unknown("preset", name, presets())
    return read(FOLDER / f"{name}.toml")
