"""``fedstill flower``: from one machine to several. ``init`` writes an app, ``up`` tries a deployment on this machine."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli.options import Set, What
from fedstill.core.console import console
from fedstill.core.errors import FedstillError
from fedstill.core.scratch import Scratch
from fedstill.run.history import Line, read_history, read_summary
from fedstill.run.show import Shown

if TYPE_CHECKING:  # slow: imports pydantic
    from fedstill.config.tables import Config

__all__ = ["app"]

app = typer.Typer(help="Run on several machines, with Flower.", no_args_is_help=True)


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the app; must be new or empty.")],
    what: What = "demo",
    set_: Set = None,
    nodes: Annotated[int, typer.Option(min=0, help="Nodes to wait for (0: as many as the configuration has clients).")] = 0,
) -> None:
    """Write a complete Flower app for a configuration, for `flwr run`."""
    # slow: they import torch; optional: needs Flower
    from fedstill.engine.flower.app import write_app
    from fedstill.run.configuration import configuration

    write_app(folder, configuration(what, set_ or []), nodes=nodes)
    console.print(f"written to {folder}; start it with: flwr run {folder} LINK --stream", soft_wrap=True)


@app.command("up")
def up(
    what: What = "demo",
    clients: Annotated[int | None, typer.Option(min=1, help="Nodes to start (default: one for each client).")] = None,
    data: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Start a node with its own data; can be repeated.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt, and accept only nodes with registered keys.")] = False,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/flower"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the folder's last checkpoint.")] = False,
    patience: Annotated[
        float | None, typer.Option(help="Seconds to wait for the nodes (default: 120, and 20 more for each).")
    ] = None,
    at_once: Annotated[
        int, typer.Option(min=0, help="Nodes that start or compute at the same time (default: three for each core).")
    ] = 0,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, run a configuration on them, and stop them."""
    # slow: they import torch; optional: needs Flower
    from fedstill.engine.flower.app import write_app
    from fedstill.engine.flower.loopback import Loopback
    from fedstill.run.configuration import configuration  # slow
    from fedstill.task import Task  # slow

    assignments = [*(set_ or [])]
    if data:
        # the nodes bring the data: the configuration's domains would only be test sets
        config = configuration(what, [*assignments, "data.domains=[]"])
        nodes: list[dict[str, Any]] = [{"data": _absolute(source), "domain": name} for name, source in _named(data).items()]
    else:
        config = _dealt(configuration(what, assignments), what, assignments, clients)
        nodes = [{"partition-id": i, "num-partitions": len(Task(config).clients)} for i in range(len(Task(config).clients))]
    out = out.resolve()
    if (out / "history.jsonl").exists() and not resume:
        raise FedstillError(f"{out} already holds a run; use --resume to continue it, or another --out")
    with (
        Scratch("flower") as scratch,
        Loopback(scratch, tls=tls) as link,
    ):
        console.print(f"SuperLink at {link.address}{' with TLS and node authentication' if tls else ''}", soft_wrap=True)
        at_once = at_once or 3 * (os.cpu_count() or 1)
        shown = Slowly()
        own = {f"node-{i}": {**node, "memory": str(out / "clients" / str(i))} for i, node in enumerate(nodes)}
        link.nodes(own, min(at_once, len(nodes)), lambda count: shown.say(f"{count} of {len(nodes)} nodes started"))
        console.print(f"{len(nodes)} nodes started; the first round begins when all have introduced themselves")
        folder = write_app(scratch / "app", config)
        if patience is None:
            patience = 120.0 + 20.0 * len(nodes)
        settings = {"out": str(out), "resume": resume, "nodes": len(nodes), "patience": patience, "at_once": at_once}
        before = len(read_history(out / "history.jsonl"))
        run = link.submit(folder, settings)
        done = before
        while True:
            ended = run.poll() is not None
            if done == before and (ready := link.last("run", r"\d+ of \d+ nodes are ready")) is not None:
                shown.say(ready)
            for line in read_history(out / "history.jsonl")[done:]:
                if line["accuracy"] is None and not ended:
                    break  # the nodes report their figures for this round with the next one
                _say(line, config.rounds)
                done += 1
            if ended:
                break
            time.sleep(0.5)
        lines = read_history(out / "history.jsonl")
        if len(lines) < config.rounds or not (out / "summary.json").exists():
            log = out / "flower.log"
            out.mkdir(parents=True, exist_ok=True)
            log.write_bytes(link.log("run").read_bytes() + link.log("superlink").read_bytes())
            raise FedstillError(f"the run failed: {link.problem()} (its log is {log})")
    Shown().finished(read_summary(out / "summary.json"))
    console.print(f"written to {out}", soft_wrap=True)


class Slowly:
    """Prints a line that has changed, but not more often than every few seconds."""

    def __init__(self, every: float = 10.0) -> None:
        self.every, self.since, self.shown = every, time.monotonic(), ""

    def say(self, text: str) -> None:
        """Print it, if it is time."""
        if text != self.shown and time.monotonic() - self.since >= self.every:
            self.since, self.shown = time.monotonic(), text
            console.print(text, soft_wrap=True)


def _say(line: Line, rounds: int) -> None:
    score = "" if line["accuracy"] is None else f"accuracy {line['accuracy']:.3f}, "
    missing = "".join(f"; {d['client']} dropped: {d['reason']}" for d in line["dropped"])
    console.print(f"round {line['round']:>3}/{rounds}  {score}{len(line['clients'])} replies{missing}", soft_wrap=True)


def _dealt(config: Config, what: str, assignments: list[str], clients: int | None) -> Config:
    """The configuration with exactly ``clients`` clients: fewer domains, or equally more clients in each."""
    from fedstill.run.configuration import configuration  # slow: imports torch

    domains = config.data.domains
    if clients is None or clients == len(domains) * config.clients.per_domain:
        return config
    if clients < len(domains):
        console.print(f"using the first {clients} domains: {', '.join(domains[:clients])}")
        return configuration(what, [*assignments, f"data.domains={json.dumps(domains[:clients])}", "clients.per_domain=1"])
    if clients % len(domains):
        raise FedstillError(f"{clients} clients cannot be divided evenly among {len(domains)} domains")
    return configuration(what, [*assignments, f"clients.per_domain={clients // len(domains)}"])


def _named(sources: list[str]) -> dict[str, str]:
    from fedstill.task import short_name  # slow: imports torch

    named: dict[str, str] = {}
    for source in sources:
        name = short_name(source)
        if name in named:
            raise FedstillError(f"two nodes would be called '{name}': {named[name]} and {source}")
        named[name] = source
    return named


def _absolute(source: str) -> str:
    return str(Path(source).resolve()) if Path(source).exists() else source
