"""Running: configuration, presets, checkpoints, history, the loop. ``fedstill.run(...)`` is :func:`run`, below."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # slow: bring torch
    from fedstill.config.tables import Config
    from fedstill.run.listener import Listener
    from fedstill.run.result import Result

__all__ = ["run"]


def run(
    what: str | Path | Mapping[str, Any] | Config | None = None,
    out: str | Path = "runs/last",
    *,
    clients: Mapping[str, tuple[Any, Any]] | None = None,
    pool: Any = None,
    tests: Mapping[str, tuple[Any, Any]] | None = None,
    target: tuple[Any, Any] | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    resume: bool = False,
    progress: bool | None = None,
    listeners: Sequence[Listener] = (),
) -> Result:
    """Run a preset, a TOML file, a dictionary or a configuration, and write its folder ``out``.

    Args:
        what: the name of a preset (``"demo"``), the path of a TOML file, a dictionary with the same keys, or a ``Config``.
        out: the folder of the run; a folder that already holds a run is refused unless ``resume`` is set.
        clients: data in memory instead of ``data.domains``: pairs ``(x, y)`` of arrays or tensors by name.
        pool: unlabelled inputs for the server, with ``clients``.
        tests: test data in pairs, by the clients' names; without them, a fifth of each client's samples is held out.
        target: a pair ``(x, y)``, with ``clients``, for systems that adapt to a domain; its labels are used for testing only.
        settings: changes, ``{"rounds": 2, "algorithm.name": "feddf"}`` or ``["rounds=2", "algorithm.name=feddf"]``.
        resume: continue from the last checkpoint in ``out``.
        progress: show bars or lines; by default only on a terminal and in a notebook.
        listeners: objects to notify of the run's events; see :class:`fedstill.run.listener.Listener`.

    Returns:
        A :class:`fedstill.run.result.Result`: ``accuracy``, ``history``, ``model``, ``predict(...)``, ``confusion(...)``.

    Raises:
        FedstillError: a mistake in the arguments, in one line.

    >>> import tempfile, fedstill
    >>> small = {"rounds": 1, "algorithm.name": "fedavg", "data.limit": 60, "data.test_limit": 20}
    >>> result = fedstill.run("demo", tempfile.mkdtemp(), settings=small)
    >>> len(result.history), 0 <= result.accuracy <= 1
    (1, True)

    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    >>> sites = {"north": (x, y), "south": (x + 1, y)}
    >>> result = fedstill.run(out=tempfile.mkdtemp(), clients=sites, pool=x, settings={"rounds": 1})
    >>> result.task.networks.prototypes, sorted(result.history[-1]["domains"]), len(result.predict(x))
    (['mlp'], ['north', 'south'], 40)
    """
    from fedstill.run import entry  # slow: brings torch

    config = entry.configured(what, clients, pool, tests, target, settings)
    return entry.run_shown(config, Path(out), resume, progress, listeners)


class _Callable(ModuleType):
    """The package has the name of its public function: the module itself is callable."""

    __call__ = staticmethod(run)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(run)


sys.modules[__name__].__class__ = _Callable
