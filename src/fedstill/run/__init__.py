"""Running: configuration, presets, checkpoints, history, the loop. Called as ``fedstill.run(...)`` it runs a configuration."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from fedstill.run.entry import run  # slow: brings torch

        return run(*args, **options)


# the public function has the name of this package: both can be had under it
sys.modules[__name__].__class__ = _Callable
