"""The engine for several machines: the same four functions inside a Flower ServerApp and ClientApp.

The ServerApp asks every node once who it is (:class:`~fedstill.federation.Site`) and then runs the same loop as in one process;
only ``exchange`` differs: a message becomes a Flower message, and an outcome is what comes back in time. The ClientApp runs
``train`` where the data is. Private state stays on the node: in Flower's context, or in a folder of the node's choosing, which
outlives a run that has to be started again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstill.algorithm import Algorithm
from fedstill.algorithms import create
from fedstill.engine import EVALUATE, Outcome, Spool
from fedstill.engine.inprocess import reason_of, received, train_client
from fedstill.engine.memory import KEEP, Memory, Remembers
from fedstill.errors import FedstillError
from fedstill.federation import NodeTask, RosterTask, Site
from fedstill.fusion.predict import accuracy
from fedstill.message import Message, atomic_write
from fedstill.run.config import Config, from_toml, parse
from fedstill.run.loop import Listener, Result, drive, threads
from fedstill.task import Task

QUIET = {  # Flower and Ray report home and look for updates unless told otherwise before they are imported
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)

try:
    from flwr import app as fl
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise FedstillError("this needs Flower: pip install 'fedstill[flower]'") from error

__all__ = ["QUIET", "Flower", "client_app", "from_records", "run_simulation", "server_app", "to_records"]

SILENT = "no reply within"
POLL = 0.25  # seconds between two looks for replies
log = logging.getLogger("flwr")


# -- messages -----------------------------------------------------------------------------------------------------------------


def to_records(message: Message) -> fl.RecordDict:
    """A message as Flower carries it: tensors in an ArrayRecord, values in a ConfigRecord.

    >>> message = Message.of(model={"w": torch.ones(2)}, samples=3, name="a", ok=True)
    >>> again = from_records(to_records(message))
    >>> again.values == message.values, torch.equal(again.tensors["model/w"], message.tensors["model/w"])
    (True, True)
    """
    arrays = fl.ArrayRecord({name: _to_array(tensor.detach().cpu()) for name, tensor in message.tensors.items()})
    return fl.RecordDict({"tensors": arrays, "values": fl.ConfigRecord(dict(message.values))})


def from_records(records: fl.RecordDict) -> Message:
    """The message that :func:`to_records` wrote; what is none is refused, since it comes from another machine."""
    try:
        tensors = {str(name): _from_array(array) for name, array in records.array_records["tensors"].items()}
        values = dict(records.config_records["values"].items())
        if not all(isinstance(value, int | float | str | bool) for value in values.values()):
            raise TypeError("values of unknown types")
        return Message(tensors, values)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, AttributeError, EOFError, RuntimeError) as error:
        raise FedstillError(f"not a message: {reason_of(error)}") from error


def _to_array(tensor: torch.Tensor) -> fl.Array:
    try:
        return fl.Array(tensor.numpy())
    except TypeError:  # bfloat16 and the like, which numpy lacks: their bytes
        buffer = BytesIO()
        np.save(buffer, tensor.contiguous().reshape(-1).view(torch.uint8).numpy(), allow_pickle=False)
        return fl.Array(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), "torch.bytes", buffer.getvalue())


def _from_array(array: fl.Array) -> torch.Tensor:
    if array.stype != "torch.bytes":
        return torch.from_numpy(array.numpy())
    kind = getattr(torch, array.dtype)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"unknown type '{array.dtype}'")
    data = np.load(BytesIO(array.data), allow_pickle=False)
    return torch.from_numpy(data).view(kind).reshape(array.shape) if data.size else torch.empty(array.shape, dtype=kind)


# -- the server ---------------------------------------------------------------------------------------------------------------


class Flower:
    """An engine over a Flower ``Grid``. :meth:`meet` the nodes first, then :meth:`serve` an algorithm."""

    def __init__(self, grid: Grid, config: Config, run: str):
        self.grid = grid
        self.config = config
        self.run = run  # names this run on the nodes, also after a resume
        self.sites: dict[str, Site] = {}
        self.nodes: dict[str, int] = {}  # client -> the node where it is now
        self.asked: dict[int, str | None] = {}  # node -> why it cannot take part, or None
        self.spool = Spool()
        self.algorithm: Algorithm | None = None
        self.terms: dict[str, Any] = {}

    def meet(self, wanted: int, patience: float) -> None:
        """Wait until ``wanted`` nodes have said who they are; after ``patience`` seconds, go on with those that have."""
        deadline = time.monotonic() + patience
        while True:
            self._ask(set(self.grid.get_node_ids()), max(1.0, deadline - time.monotonic()), again=True)
            if len(self.nodes) >= wanted or time.monotonic() >= deadline:
                break
            time.sleep(POLL)
        for node, reason in self.asked.items():
            if reason is not None:
                log.warning("node %s does not take part: %s", node, reason)
        if len(self.nodes) < min(wanted, self.config.clients.min_replies):
            reasons = "; ".join(reason for reason in self.asked.values() if reason)
            raise FedstillError(
                f"{len(self.nodes)} of {wanted} nodes after {patience:g} s{': ' if reasons else ''}{reasons[:500]}"
            )
        if len(self.nodes) < wanted:
            log.warning("%d of %d nodes after %g s: going on with them", len(self.nodes), wanted, patience)

    def _ask(self, online: set[int], timeout: float, again: bool = False) -> None:
        """Ask nodes that are new who they are; with ``again``, those that do not answer may be asked once more."""
        strangers = online - set(self.asked)
        text = json.dumps(self.config.model_dump(mode="json", exclude_none=True))
        sent = {node: fl.RecordDict({"fedstill": fl.ConfigRecord({"config": text})}) for node in strangers}
        for node, reply, reason in self._send(sent, "query", "0", min(timeout, 120.0)):
            if reply is not None:
                try:
                    about = dict(reply["fedstill"].items())
                    reason = str(about["error"]) if "error" in about else self._welcome(node, Site.from_json(str(about["site"])))
                except (FedstillError, KeyError, AttributeError) as error:
                    reason = reason_of(error)
            if not (again and reason is not None and reason.startswith(SILENT)):
                self.asked[node] = reason

    def _welcome(self, node: int, site: Site) -> str | None:
        known = self.sites.get(site.client)
        there = self.nodes.get(site.client)
        if there is not None and there in set(self.grid.get_node_ids()):
            return f"another node calls itself '{site.client}' already; give one --node-config 'client=\"...\"'"
        if self.algorithm is not None and known is None:
            return f"'{site.client}' came after the federation was formed"
        self.sites.setdefault(site.client, site)
        self.nodes[site.client] = node
        return None

    def task(self) -> Task:
        """The task that the nodes' answers and the configuration make."""
        own = [site for site in self.sites.values() if site.own]
        if own and len(own) < len(self.sites):
            shares = [site.client for site in self.sites.values() if not site.own]
            raise FedstillError(f"some nodes bring their own data and some do not: {', '.join(shares[:5])} have no data=")
        return RosterTask(self.config, own) if own else Task(self.config)

    def serve(self, algorithm: Algorithm) -> None:
        """Carry messages for ``algorithm`` from now on."""
        self.algorithm, task = algorithm, algorithm.task
        settled = json.dumps(task.config.model_dump(mode="json", exclude_none=True))
        self.terms = {"config": settled, "classes": list(task.classes), "run": self.run}

    def exchange(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> Iterator[Outcome]:
        """See :class:`fedstill.engine.Engine`."""
        assert self.algorithm is not None, "serve an algorithm first"
        self.spool.begin(round)
        task = self.algorithm.task
        timeout = task.config.clients.timeout
        online = set(self.grid.get_node_ids())
        self._ask(online, min(timeout or 30.0, 30.0))  # a node that was restarted comes back as another
        judged = not task.tests and (phase == EVALUATE or phase == self.algorithm.phases(round)[0])
        sent: dict[int, fl.RecordDict] = {}
        clients: dict[int, str] = {}
        for client, message in messages:
            node = self.nodes.get(client)
            if node not in online or node is None:
                yield Outcome(client, reason="its node is not connected")
                continue
            about: dict[str, Any] = {
                "client": client,
                "prototype": task.clients[client].prototype,
                "round": round,
                "phase": phase,
            }
            records = to_records(message)
            records["fedstill"] = fl.ConfigRecord({**self.terms, **about, "judge": judged})
            sent[node], clients[node] = records, client
        for node, reply, reason in self._send(sent, "train", str(round), timeout):
            yield self._outcome(clients[node], round, phase, reply, reason)

    def _outcome(self, client: str, round: int, phase: str, reply: fl.RecordDict | None, reason: str | None) -> Outcome:
        if reply is None:
            return Outcome(client, reason=reason)
        try:
            about = dict(reply["fedstill"].items())
            if "error" in about:
                return Outcome(client, reason=str(about["error"])[:500])
            message = from_records(reply)
            judged = (float(about["accuracy"]), int(about["tested"])) if "accuracy" in about else (None, 0)  # type: ignore[arg-type]
        except (FedstillError, KeyError, TypeError, ValueError, AttributeError) as error:
            return Outcome(client, reason=f"not a reply: {reason_of(error)}")
        read = self.spool.keep(round, phase, client, message)
        return Outcome(client, read, nbytes=message.nbytes, accuracy=judged[0], tested=judged[1])

    def _send(
        self, sent: Mapping[int, fl.RecordDict], kind: str, group: str, timeout: float | None
    ) -> Iterator[tuple[int, fl.RecordDict | None, str | None]]:
        """Send each node its records; yield (node, reply, None) or (node, None, reason), every node once."""
        waiting: dict[str, int] = {}
        deadline = None if timeout is None else time.monotonic() + timeout
        for node, records in sent.items():  # one at a time: a request that holds every model could be too large
            message = fl.Message(records, node, kind, group_id=group, ttl=timeout)
            number = next(iter(self.grid.push_messages([message])), None)
            if number:
                waiting[number] = node
            else:
                yield node, None, "the SuperLink did not take its message"
        while waiting:
            late = deadline is not None and time.monotonic() >= deadline
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    yield (
                        node,
                        None,
                        f"Flower: {(reply.error.reason or f'error {reply.error.code}').strip().splitlines()[-1][:500]}",
                    )
                else:
                    yield node, reply.content, None
            if late:
                break
            if waiting:
                time.sleep(POLL)
        for node in waiting.values():
            yield node, None, f"{SILENT} {timeout:g} s"

    def close(self) -> None:
        """Remove scratch files; the nodes and the SuperLink are not ours to stop."""
        self.spool.close()


class Told(Listener):
    """Says in Flower's log what happens."""

    def round(self, line: dict[str, Any]) -> None:
        """One line a round."""
        score = "" if line["accuracy"] is None else f", accuracy {line['accuracy']:.4f}"
        missing = "".join(f"; {d['client']} dropped: {d['reason']}" for d in line["dropped"])
        log.info("round %d: %d replies%s%s", line["round"], len(line["clients"]), score, missing)

    def warn(self, text: str) -> None:
        """A warning."""
        log.warning(text)


def run_on(
    grid: Grid, config: Config, out: Path, *, resume: bool, nodes: int, patience: float, listeners: Sequence[Listener]
) -> Result:
    """A whole run over a Grid; the folder is the same as that of a run in one process."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "federation.json"
    before: dict[str, Any] = {"run": uuid.uuid4().hex, "sites": []}
    if resume and kept.exists():
        before = json.loads(kept.read_text())
    engine = Flower(grid, config, before["run"])
    with contextlib.closing(engine), threads(config.engine.threads):
        # nodes that were here before an interruption still count: sampling must not change when one is away
        engine.sites = {site.client: site for site in map(Site.from_json, before["sites"])}
        engine.meet(nodes or len(Task(config).clients) or config.clients.min_replies, patience)
        atomic_write(kept, json.dumps({"run": engine.run, "sites": [site.to_json() for site in engine.sites.values()]}))
        algorithm = create(engine.task())
        engine.serve(algorithm)
        return drive(algorithm, engine, out, resume=resume, listeners=listeners)


def server_app(config: Path | Config) -> ServerApp:
    """A ServerApp that runs a configuration.

    Its run configuration has ``out`` (the run's folder), ``resume``, ``nodes`` (how many to wait for; 0: as many as the
    configuration has clients) and ``patience`` (seconds to wait for them).
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
            listeners=[Told()],
        )

    return app


# -- the client ---------------------------------------------------------------------------------------------------------------


class ContextMemory:
    """A client's private state in Flower's context: it stays on the node and lasts as long as the run there."""

    def __init__(self, state: fl.RecordDict, run: str):
        self.state, self.run = state, run

    def _key(self, client: str, round: int) -> str:
        return f"{self.run}|{client}|{round}"

    def _rounds(self, client: str) -> list[int]:
        prefix = f"{self.run}|{client}|"
        keys = {key.rsplit("|", 1)[0] for key in self.state}
        return sorted(int(key[len(prefix) :]) for key in keys if key.startswith(prefix) and key[len(prefix) :].isdigit())

    def read(self, client: str, round: int) -> Message:
        """What the client kept from its last round before ``round``."""
        before = [number for number in self._rounds(client) if number < round]
        if not before:
            return Message()
        key = self._key(client, before[-1])
        return from_records(fl.RecordDict({part: self.state[f"{key}|{part}"] for part in ("tensors", "values")}))

    def write(self, client: str, round: int, message: Message) -> None:
        """Keep ``message`` for the client's rounds after ``round``."""
        for part, record in to_records(message).items():
            self.state[f"{self._key(client, round)}|{part}"] = record
        for old in [number for number in self._rounds(client) if number <= round][:-KEEP]:
            for part in ("tensors", "values"):
                del self.state[f"{self._key(client, old)}|{part}"]


@lru_cache(maxsize=4)
def _algorithm(
    config: str, own: tuple[str, str, str] | None, classes: tuple[str, ...], prototype: str, device: str, public: str
) -> Algorithm:
    """The algorithm on this node, built once a process: Flower's simulation trains many clients in one."""
    tree = json.loads(config)
    if device:
        tree.setdefault("engine", {})["device"] = device
    found = parse(tree)
    if found.engine.threads:
        torch.set_num_threads(found.engine.threads)
    if own is None:
        return create(Task(found))
    return create(NodeTask(found, *own, classes=classes, prototype=prototype, public=public or None))


def _own(node: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """(source, domain, client) of a node that has its own data; None for one that takes a share of the partition."""
    if "data" not in node:
        if "partition-id" not in node and "client" not in node:
            raise FedstillError('this node has no data: start it with --node-config \'data="/path" domain="site-a"\'')
        return None
    source = str(node["data"])
    domain = str(node.get("domain") or Path(source).name)
    return source, domain, str(node.get("client") or domain)


def _about(config: str, node: Mapping[str, Any]) -> Site:
    """What this node says of itself."""
    own = _own(node)
    if own is not None:
        prototype = str(node["model"]) if "model" in node else None
        return NodeTask(parse(json.loads(config)), *own, prototype=prototype).site()
    task = Task(parse(json.loads(config)))
    ids = list(task.clients)
    client = str(node["client"]) if "client" in node else ids[int(node["partition-id"]) % len(ids)]
    if client not in task.clients:
        raise FedstillError(f"the configuration has no client '{client}'; it has {', '.join(ids[:10])}")
    info = task.clients[client]
    return Site(client, info.domain, info.samples, task.classes, task.shape, info.prototype, own=False)


def _turn(records: fl.RecordDict, about: Mapping[str, Any], context: fl.Context, folder: Path | None) -> fl.RecordDict:
    """One exchange on the node."""
    node = context.node_config
    client, round, phase = str(about["client"]), int(about["round"]), str(about["phase"])
    classes = tuple(map(str, about["classes"]))
    own = _own(node)
    # a client of the configured partition finds its architecture in the task; one algorithm then serves them all
    prototype = "" if own is None else str(about["prototype"])
    algorithm = _algorithm(
        str(about["config"]), own, classes, prototype, str(node.get("device", "")), str(node.get("public", ""))
    )
    where = folder or (Path(str(node["memory"])).expanduser() / str(about["run"]) if "memory" in node else None)
    memory: Remembers = Memory(where) if where is not None else ContextMemory(context.state, str(about["run"]))
    message = from_records(records)
    result: dict[str, Any] = {}
    if about["judge"] and isinstance(algorithm.task, NodeTask):
        first = algorithm.phases(round)[0]
        result = _judgement(algorithm.task, received(algorithm, message, memory.read(client, round), first))
    reply = Message() if phase == EVALUATE else train_client(algorithm, client, round, phase, message, memory)
    answer = to_records(reply)
    answer["fedstill"] = fl.ConfigRecord(result)
    return answer


def _judgement(task: NodeTask, message: Message) -> dict[str, Any]:
    """The accuracy, on the node's own test data, of the model that it was sent; nothing where it was sent no whole model."""
    model = message.group("model")
    prototype = str(message.values.get("prototype", task.clients[task.name].prototype))
    expected = {name: tensor.shape for name, tensor in task.network(prototype).state_dict().items()}
    if {name: tensor.shape for name, tensor in model.items()} != expected:
        return {}
    return {"accuracy": accuracy(task.load(prototype, model), task.test), "tested": len(task.test)}


def client_app(memory: Path | None = None) -> ClientApp:
    """A ClientApp that trains on its node's own data, or on a share of the configured partition.

    What a node has is said where it is started: ``--node-config 'data="/path" domain="site-a"'``, and where wanted ``client``
    (its name), ``model`` (its architecture), ``device``, ``public`` (its copy of public data, for systems whose clients speak
    about it) and ``memory`` (a folder for private state that outlives a run). The argument is that folder where one process
    simulates many nodes.
    """
    app = ClientApp()

    @app.query()
    def query(message: fl.Message, context: fl.Context) -> fl.Message:
        try:
            config = str(message.content["fedstill"]["config"])
            answer = {"site": _about(config, context.node_config).to_json()}
        except FedstillError as error:
            answer = {"error": str(error)}
        return fl.Message(fl.RecordDict({"fedstill": fl.ConfigRecord(answer)}), reply_to=message)  # type: ignore[arg-type]

    @app.train()
    def train(message: fl.Message, context: fl.Context) -> fl.Message:
        about = dict(message.content["fedstill"].items())
        try:
            answer = _turn(message.content, about, context, memory)
        except Exception as error:  # told to the server, which drops this reply with the reason
            log.exception("client %s failed", about.get("client"))
            answer = fl.RecordDict({"fedstill": fl.ConfigRecord({"error": reason_of(error)})})
        return fl.Message(answer, reply_to=message)

    return app


# -- simulation ---------------------------------------------------------------------------------------------------------------


def run_simulation(config: Config, out: Path, *, resume: bool = False, listeners: Sequence[Listener] = ()) -> Result:
    """Run a configuration on Flower's simulation (Ray): ``engine.workers`` actors of ``engine.threads`` threads each."""
    from flwr.simulation import run_simulation as simulate

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
        raise FedstillError("the simulation ended without a result; Flower's log says why")
    return results[0]
