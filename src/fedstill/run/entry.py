"""The two calls that a Python program makes: ``fedstill.run`` and ``fedstill.compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.run.config import Config
from fedstill.run.loop import Listener, Result
from fedstill.run.loop import run as run_config
from fedstill.run.presets import resolve, tree_of

if TYPE_CHECKING:
    from fedstill.report.runs import Run

__all__ = ["compare", "run"]


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
        what = resolve(what if isinstance(what, Mapping) else tree_of(str(what)), settings)
    elif settings:
        raise TypeError("settings change a preset, a file or a tree; a Config is complete")
    return run_config(what, Path(out), resume=resume, listeners=listeners)


def compare(
    what: str | Path,
    algorithms: Sequence[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path = "runs/compare",
    settings: Sequence[str] = (),
) -> list[Run]:
    """Run every system with every seed, as ``fedstill compare`` does; writes the table and the page to ``out``."""
    from fedstill.cli.compare import compare_runs, folder_of
    from fedstill.report.runs import load_runs

    compare_runs(str(what), list(algorithms), list(seeds), Path(out), list(settings))
    return load_runs([folder_of(Path(out), name, seed) for name in algorithms for seed in seeds])
