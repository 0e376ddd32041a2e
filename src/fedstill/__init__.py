"""fedstill: fuse models trained where the data cannot leave.

Public names are imported on first use, so that ``import fedstill`` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedstill import moved
from fedstill.core.version import __version__

__all__ = ["Algorithm", "FedstillError", "Message", "__version__", "compare", "export", "fuse", "load", "run"]

if TYPE_CHECKING:
    from fedstill import run
    from fedstill.algorithm import Algorithm
    from fedstill.api import compare
    from fedstill.bundles.export import export
    from fedstill.bundles.fuse import fuse
    from fedstill.bundles.loading import load
    from fedstill.core.errors import FedstillError
    from fedstill.core.message import Message

_HOMES = {
    "Algorithm": "fedstill.algorithm",
    "FedstillError": "fedstill.core.errors",
    "Message": "fedstill.core.message",
    "compare": "fedstill.api",
    "export": "fedstill.bundles.export",
    "fuse": "fedstill.bundles.fuse",
    "load": "fedstill.bundles.loading",
}


moved.install()


def __getattr__(name: str) -> Any:
    if name == "run":  # a callable package
        return importlib.import_module("fedstill.run")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedstill' has no attribute '{name}'")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
