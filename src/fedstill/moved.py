"""Modules that have moved since earlier versions documented them. Importing an old name gives the new module."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["MOVED", "install"]

MOVED = {
    "fedstill.engine.loopback": "fedstill.engine.flower.loopback",
    "fedstill.errors": "fedstill.core.errors",
    "fedstill.fusion.contributions": "fedstill.fusion.merges.contributions",
    "fedstill.fusion.distil": "fedstill.fusion.distillation.distil",
    "fedstill.fusion.matching": "fedstill.fusion.merges.matching",
    "fedstill.fusion.options": "fedstill.fusion.distillation.options",
    "fedstill.fusion.weighting": "fedstill.fusion.weightings",
    "fedstill.local.projection": "fedstill.local.reports.projection",
    "fedstill.message": "fedstill.core.message",
    "fedstill.run.presets": "fedstill.run.configuration",
}


class _Moved(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} has moved to {new}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = importlib.import_module(new)  # what the import statement gets


def install() -> None:
    """Make the old names importable."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
