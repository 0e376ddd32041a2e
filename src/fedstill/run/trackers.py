"""Trackers that people already use, fed with the same numbers as the history: one small listener each.

Both write inside the run folder and start no server. View the results with ``tensorboard --logdir DIR/tensorboard`` and
``mlflow ui --backend-store-uri DIR/mlruns``.
"""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError
from fedstill.core.registry import Registry
from fedstill.run.history import Line, Summary
from fedstill.run.listener import Listener

__all__ = ["TRACKERS", "numbers", "tracker"]


TRACKERS: Registry[Callable[[Path], Listener]] = Registry("tracker", group="fedstill.trackers", adopt=lambda name, thing: thing)


def numbers(line: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in a line of the history, named by their path; a list gives its length.

    >>> list(numbers({"round": 3, "accuracy": 0.5, "domains": {"mnist": 0.75}, "merged_accuracy": None, "dropped": []}))
    [('accuracy', 0.5), ('domains/mnist', 0.75), ('dropped', 0)]
    """
    for key, value in line.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}/")
        elif isinstance(value, list):
            yield prefix + key, len(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and prefix + key != "round":
            yield prefix + key, value


def tracker(name: str, folder: Path) -> Listener:
    """The tracker called ``name``, which writes below the run folder; a resumed run continues its records."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return TRACKERS.get(name)(folder)
    except ImportError as error:
        raise FedstillError(
            f"tracking with {name} needs an extra: pip install 'fedstill[{name}]' ({error.name or error} is missing)"
        ) from error


@TRACKERS.register("tensorboard")
class _TensorBoard(Listener):
    """Scalars for TensorBoard, in ``tensorboard/`` in the run's folder."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # optional: the extra tensorboard

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def round(self, line: Line) -> None:
        for name, value in numbers(line):
            self.writer.add_scalar(name, value, line["round"], new_style=True, double_precision=True)
        self.writer.flush()  # so that the run can be watched

    def finished(self, summary: Summary) -> None:
        self.writer.add_text("summary", f"```\n{json.dumps(summary, indent=2)}\n```")

    def closed(self) -> None:
        self.writer.close()


@TRACKERS.register("mlflow")
class _MLflow(Listener):
    """A run in MLflow's file store, in ``mlruns/`` in the run's folder."""

    def __init__(self, folder: Path) -> None:
        # Read when mlflow is imported: it sends no usage figures, and may store runs in a plain folder.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        # optional: the extra mlflow
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self.metric = Metric
        self.ended = "KILLED"  # unless the run reports that it has finished
        self.client = MlflowClient(tracking_uri=(folder / "mlruns").resolve().as_uri())
        experiment = self.client.get_experiment_by_name("fedstill")
        place = experiment.experiment_id if experiment else self.client.create_experiment("fedstill")
        earlier = self.client.search_runs([place])
        self.run = earlier[0].info.run_id if earlier else self.client.create_run(place, run_name=folder.name).info.run_id
        if earlier:
            self.client.update_run(self.run, status="RUNNING")
        # A run writes its configuration after it has started its trackers, so it is logged with the first round.
        self.config = None if earlier else folder / "config.toml"

    def _log_config(self, config: Mapping[str, Any], prefix: str = "") -> None:
        for key, value in config.items():
            if isinstance(value, Mapping):
                self._log_config(value, f"{prefix}{key}.")
            else:
                self.client.log_param(self.run, _mlflow_name(prefix + key), value)

    def _log(self, values: Mapping[str, object], step: int) -> None:
        now = int(time.time() * 1000)
        found = [self.metric(_mlflow_name(name), float(value), now, step) for name, value in numbers(values)]
        self.client.log_batch(self.run, metrics=found)

    def round(self, line: Line) -> None:
        if self.config is not None and self.config.exists():
            self._log_config(tomllib.loads(self.config.read_text(encoding="utf-8")))
            self.config = None
        self._log(line, line["round"])

    def finished(self, summary: Summary) -> None:
        self._log({"summary": summary}, summary.get("rounds", 0))
        self.ended = "FINISHED"

    def closed(self) -> None:
        self.client.set_terminated(self.run, self.ended)


def _mlflow_name(name: str) -> str:
    """A name without the characters that MLflow refuses."""
    return re.sub(r"[^\w\-. /]", "_", name)
