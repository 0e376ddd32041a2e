"""The engine for several machines: the same four functions inside a Flower ServerApp and ClientApp."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Apps written by earlier versions import these two names from here; they have moved to ``fedstill.flower``."""
    if name in ("client_app", "server_app"):
        return getattr(importlib.import_module("fedstill.flower"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
