"""The implementation of ``fedstill.run``: its arguments, and its output on the screen."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.config.tables import Config
from fedstill.config.trees import as_assignments
from fedstill.core.console import console
from fedstill.data.arrays import federation
from fedstill.run.configuration import resolved, tree_in
from fedstill.run.listener import Listener
from fedstill.run.loop import run as run_config
from fedstill.run.notebook import in_notebook
from fedstill.run.result import Result
from fedstill.run.show import Shown

__all__ = ["configured", "run_shown"]

CALLER = 4  # frames between a warning and the program that called fedstill.run


class _Warned(Listener):
    """Issues warnings as Python warnings, for runs that show nothing."""

    def warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=CALLER)


def configured(
    what: Any, clients: Any, pool: Any, tests: Any, target: Any, settings: Sequence[str] | Mapping[str, Any]
) -> Config:
    """The configuration that a program describes."""
    if any(given is not None for given in (clients, pool, tests, target)):
        what = _in_memory(what, clients, pool, tests, target)
    if what is None:
        raise TypeError("fedstill.run() needs a preset, a TOML file or a dictionary, or clients={'north': (x, y), ...}")
    if isinstance(what, Config):
        if settings:
            raise TypeError("settings change a preset, a file or a dictionary, but a Config is complete: change the Config")
        return what
    if not isinstance(what, str | Path | Mapping):
        raise TypeError(f"fedstill.run() takes a preset, a TOML file, a dictionary or a Config, not {type(what).__name__}")
    found = resolved(tree_in(what), as_assignments(settings))
    if found.note:
        warnings.warn(found.note, stacklevel=CALLER - 1)
    return found.config


def _in_memory(what: Any, clients: Any, pool: Any, tests: Any, target: Any) -> dict[str, Any]:
    """The tree that ``what`` names, with its domains and pool replaced by arrays."""
    if isinstance(what, Config):
        raise TypeError("clients, pool, tests and target go with a preset, a file or a dictionary, not with a Config")
    if clients is None:
        raise TypeError("pool, tests and target need clients={'north': (x, y), ...}")
    if not isinstance(clients, Mapping):
        raise TypeError(f"clients must be a dictionary of pairs (x, y) by name, not {type(clients).__name__}")
    tree = dict(tree_in(what)) if what is not None else {}
    kept = {key: value for key, value in tree.get("data", {}).items() if key not in ("domains", "server", "target")}
    return {**tree, "data": {**kept, **federation(clients, pool, tests, target)}}


def run_shown(config: Config, out: Path, resume: bool, progress: bool | None, listeners: Sequence[Listener]) -> Result:
    """Run the configuration, with progress shown on the terminal, in the notebook, or not at all."""
    shown = (console.is_terminal or in_notebook()) if progress is None else progress
    return run_config(config, out, resume=resume, listeners=[*listeners, Shown() if shown else _Warned()])
