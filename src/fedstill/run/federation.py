"""Whole runs over Flower: the ServerApp of a deployment, and Flower's simulation. They write the same folder as local runs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedstill.algorithms import create
from fedstill.config.tables import Config
from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write
from fedstill.engine.flower.client import client_app
from fedstill.engine.flower.records import fl
from fedstill.engine.flower.server import Flower
from fedstill.run.configuration import from_toml
from fedstill.run.history import Line
from fedstill.run.listener import Listener
from fedstill.run.loop import Result, drive, threads
from fedstill.task import Task
from fedstill.task.sites import Site

from flwr.serverapp import Grid, ServerApp  # isort: skip  (after records, which turns telemetry off)

__all__ = ["run_on", "run_simulation", "server_app"]

log = logging.getLogger("flwr")


class LogListener(Listener):
    """Writes the run's events to Flower's log."""

    def round(self, line: Line) -> None:
        """Log one line per round."""
        score = "" if line["accuracy"] is None else f", accuracy {line['accuracy']:.4f}"
        missing = "".join(f"; {d['client']} dropped: {d['reason']}" for d in line["dropped"])
        log.info("round %d: %d replies%s%s", line["round"], len(line["clients"]), score, missing)

    def warn(self, text: str) -> None:
        """Log a warning."""
        log.warning(text)


def run_on(
    grid: Grid,
    config: Config,
    out: Path,
    *,
    resume: bool,
    nodes: int,
    patience: float,
    listeners: Sequence[Listener],
    at_once: int = 0,
) -> Result:
    """A whole run over a Grid; it writes the same folder as a run in one process. At most ``at_once`` nodes are at work at the
    same time (0: all), for nodes that share a machine."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "federation.json"
    before: dict[str, Any] = {"run": uuid.uuid4().hex, "sites": []}
    if resume and kept.exists():
        before = json.loads(kept.read_text())
    engine = Flower(grid, config, before["run"], at_once)
    with contextlib.closing(engine), threads(config.engine.threads):
        # nodes known before an interruption still count: sampling must not change when one is away
        engine.sites = {site.client: site for site in map(Site.from_json, before["sites"])}
        engine.meet(nodes or len(Task(config).clients) or config.clients.min_replies, patience)
        atomic_write(kept, json.dumps({"run": engine.run, "sites": [site.to_json() for site in engine.sites.values()]}))
        algorithm = create(engine.task())
        engine.serve(algorithm)
        return drive(algorithm, engine, out, resume=resume, listeners=listeners)


def server_app(config: Path | Config) -> ServerApp:
    """A ServerApp that runs a configuration.

    Its run configuration has ``out`` (the run's folder), ``resume``, ``nodes`` (how many to wait for; 0 means as many as the
    configuration has clients), ``patience`` (seconds to wait for them) and ``at_once`` (how many may be at work at the same time;
    0 means all).
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: fl.Context) -> None:
        found = config if isinstance(config, Config) else from_toml(Path(config).read_text())
        given = context.run_config
        run_on(
            grid,
            found,
            Path(str(given.get("out", "runs/flower"))).expanduser(),
            resume=bool(given.get("resume", False)),
            nodes=int(given.get("nodes", 0)),
            patience=float(given.get("patience", 600)),
            at_once=int(given.get("at_once", 0)),
            listeners=[LogListener()],
        )

    return app


def run_simulation(config: Config, out: Path, *, resume: bool = False, listeners: Sequence[Listener] = ()) -> Result:
    """Run a configuration on Flower's simulation (Ray): ``engine.workers`` actors of ``engine.threads`` threads each."""
    from flwr.simulation import run_simulation as simulate  # slow: brings Ray

    results: list[Result] = []
    clients = len(Task(config).clients)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: fl.Context) -> None:
        results.append(run_on(grid, config, out, resume=resume, nodes=clients, patience=120.0, listeners=listeners))

    cores = max(1, config.engine.threads)
    actors = config.engine.workers or max(1, (os.cpu_count() or 1) // cores)
    resources: dict[str, Any] = {"num_cpus": cores, "num_gpus": 0.0}
    simulate(
        server_app=server,
        client_app=client_app(memory=(out / "clients").resolve()),
        num_supernodes=clients,
        backend_config={"init_args": {"num_cpus": actors * cores}, "client_resources": resources},
    )
    if not results:
        raise FedstillError("the simulation ended without a result: see Flower's log for the reason")
    return results[0]
