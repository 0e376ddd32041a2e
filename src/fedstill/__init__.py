"""fedstill: fuse models trained where the data cannot leave.

The public names are brought when they are first asked for, so that ``import fedstill`` takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["Algorithm", "FedstillError", "Message", "__version__", "compare", "fuse", "run"]

if TYPE_CHECKING:
    from fedstill import run
    from fedstill.algorithm import Algorithm
    from fedstill.bundles.fuse import fuse
    from fedstill.errors import FedstillError
    from fedstill.message import Message
    from fedstill.run.entry import compare

_HOMES = {
    "Algorithm": "fedstill.algorithm",
    "FedstillError": "fedstill.errors",
    "Message": "fedstill.message",
    "compare": "fedstill.run.entry",
    "fuse": "fedstill.bundles.fuse",
}


def __getattr__(name: str) -> Any:
    if name == "run":  # a package that can be called
        return importlib.import_module("fedstill.run")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedstill' has no attribute '{name}'")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
