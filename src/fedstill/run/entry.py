"""The call that a Python program makes: ``fedstill.run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.config.tables import Config
from fedstill.core.errors import FedstillError
from fedstill.data.arrays import federation
from fedstill.run.configuration import resolve, tree_in
from fedstill.run.listener import Listener
from fedstill.run.loop import Result
from fedstill.run.loop import run as run_config

__all__ = ["run"]


def run(
    what: str | Path | Mapping[str, Any] | Config | None = None,
    out: str | Path = "runs/last",
    *,
    clients: Mapping[str, tuple[Any, Any]] | None = None,
    pool: Any = None,
    tests: Mapping[str, tuple[Any, Any]] | None = None,
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

    Data in memory comes as ``clients``, pairs ``(x, y)`` of arrays or tensors by name, with unlabelled inputs as the server's
    ``pool`` and ``tests`` like the clients where there are any; ``what`` may then be left out.

    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    >>> sites = {"north": (x, y), "south": (x + 1, y)}
    >>> result = fedstill.run(out=tempfile.mkdtemp(), clients=sites, pool=x, settings=["rounds=1"])
    >>> result.task.networks.prototypes, sorted(result.history[-1]["domains"])
    (['mlp'], ['north', 'south'])
    """
    if clients is not None or pool is not None or tests is not None:
        what = _in_memory(what, clients, pool, tests)
    if what is None:
        raise FedstillError("say what to run: a preset, a TOML file or a tree, or clients = {'north': (x, y), ...}")
    if not isinstance(what, Config):
        what = resolve(tree_in(what), settings)
    elif settings:
        raise TypeError("settings change a preset, a file or a tree; a Config is complete")
    return run_config(what, Path(out), resume=resume, listeners=listeners)


def _in_memory(what: Any, clients: Any, pool: Any, tests: Any) -> dict[str, Any]:
    """The tree that ``what`` names, its domains and pool replaced by arrays."""
    if isinstance(what, Config):
        raise TypeError("clients, pool and tests complete a preset, a file or a tree; a Config is complete")
    tree = dict(tree_in(what)) if what is not None else {}
    kept = {key: value for key, value in tree.get("data", {}).items() if key not in ("domains", "server", "target")}
    if clients is None:
        raise FedstillError("pool and tests go with clients = {'north': (x, y), ...}")
    return {**tree, "data": {**kept, **federation(clients, pool, tests)}}
