"""The call that a Python program makes: ``fedstill.run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.config.tables import Config
from fedstill.run.configuration import resolve, tree_in
from fedstill.run.listener import Listener
from fedstill.run.loop import Result
from fedstill.run.loop import run as run_config

__all__ = ["run"]


def run(
    what: str | Path | Mapping[str, Any] | Config,
    out: str | Path = "runs/last",
    *,
    settings: Sequence[str] = (),
    resume: bool = False,
    listeners: Sequence[Listener] = (),
) -> Result:
    """Run a preset, a TOML file, a tree of plain values or a configuration, and write its folder ``out``.

    ``settings`` are changes as on the command line, ``["rounds=2", "algorithm.name=feddf"]``.

    >>> import tempfile, fedstill
    >>> small = ["rounds=1", "algorithm.name=fedavg", "data.limit=60", "data.test_limit=20"]
    >>> result = fedstill.run("demo", tempfile.mkdtemp(), settings=small)
    >>> len(result.history), 0 <= result.accuracy <= 1
    (1, True)
    """
    if not isinstance(what, Config):
        what = resolve(tree_in(what), settings)
    elif settings:
        raise TypeError("settings change a preset, a file or a tree; a Config is complete")
    return run_config(what, Path(out), resume=resume, listeners=listeners)
