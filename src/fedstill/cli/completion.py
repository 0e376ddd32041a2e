"""What the shell offers when a word is half written. Each answer is given while a key is held, so nothing here brings torch."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from fedstill.config.presets import presets

__all__ = ["SYSTEMS", "assignments", "configurations", "systems"]

# the built-in systems' names; the registry has them too (a test compares), but it imports the systems
SYSTEMS = (
    "ceiling",
    "cronus",
    "dafkd",
    "fada",
    "fd",
    "fedavg",
    "fedavgm",
    "fedbe",
    "fedd3a",
    "feddf",
    "fedftg",
    "fedgen",
    "fedma",
    "fedmd",
    "fedprox",
    "fedrad",
    "fedvirtual",
    "kd3a",
    "kdcl",
    "moon",
    "shot",
)


def configurations(incomplete: str) -> list[tuple[str, str]]:
    """Presets with what they are, and TOML files.

    >>> [name for name, _ in configurations("dem")]
    ['demo']
    """
    named = [(name, what) for name, what in presets().items() if name.startswith(incomplete)]
    here = Path(f"{incomplete}x").parent  # "a/" and "a/b" are both looked up in a
    if not here.is_dir():
        return named
    found = [path for path in sorted(here.iterdir()) if path.is_dir() or path.suffix == ".toml"]
    names = [f"{path.as_posix()}/" if path.is_dir() else path.as_posix() for path in found if not path.name.startswith(".")]
    return [*named, *((name, "") for name in names if name.startswith(incomplete))]


def systems(incomplete: str) -> list[str]:
    """Systems, the last of several between commas.

    >>> systems("fedavg,fedp")
    ['fedavg,fedprox']
    """
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{comma}{name}" for name in _systems() if name.startswith(last) and name not in taken]


def assignments(incomplete: str) -> list[str]:
    """The system, which is the key that is changed most.

    >>> assignments("algorithm.name=fedp")
    ['algorithm.name=fedprox']
    """
    return [key for key in (f"algorithm.name={name}" for name in _systems()) if key.startswith(incomplete)]


def _systems() -> list[str]:
    return sorted({*SYSTEMS, *(point.name for point in entry_points(group="fedstill.algorithms"))})
