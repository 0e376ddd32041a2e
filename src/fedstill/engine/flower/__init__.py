"""The engine for several machines: the same four functions inside a Flower ServerApp and ClientApp."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Apps written by earlier versions import these two from here; they are in ``fedstill.flower`` now."""
    if name in ("client_app", "server_app"):
        return getattr(importlib.import_module("fedstill.flower"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
