"""The client side: a ClientApp that runs ``train`` where the data is.

Private state stays on the node: in Flower's context, or in a folder that the node chooses, which survives a restart of the run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedstill.algorithm import Algorithm
from fedstill.algorithms import create
from fedstill.config.tables import Config
from fedstill.core.errors import FedstillError, reason_of
from fedstill.core.message import Message
from fedstill.core.options import validated
from fedstill.core.registry import import_plugged
from fedstill.engine.exchange import EVALUATE
from fedstill.engine.flower.records import fl, from_records, to_records
from fedstill.engine.memory import KEEP, Memory, MemoryStore
from fedstill.engine.turn import client_turn
from fedstill.engine.wire import received
from fedstill.models.predict import accuracy
from fedstill.task import Task
from fedstill.task.sites import NodeTask, Site

from flwr.clientapp import ClientApp  # isort: skip  (after records, which turns telemetry off)

__all__ = ["client_app"]

log = logging.getLogger("flwr")


class ContextMemory:
    """A client's private state in Flower's context: it stays on the node and lasts as long as the Flower run."""

    def __init__(self, state: fl.RecordDict, run: str):
        self.state, self.run = state, run

    def _key(self, client: str, round: int) -> str:
        return f"{self.run}|{client}|{round}"

    def _rounds(self, client: str) -> list[int]:
        prefix = f"{self.run}|{client}|"
        keys = {key.rsplit("|", 1)[0] for key in self.state}
        return sorted(int(key[len(prefix) :]) for key in keys if key.startswith(prefix) and key[len(prefix) :].isdigit())

    def read(self, client: str, round: int) -> Message:
        """The client's state from its last round before ``round``; empty if there is none."""
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
    """The algorithm on this node, built once per process: Flower's simulation trains many clients in one process."""
    tree = json.loads(config)
    if device:
        tree.setdefault("engine", {})["device"] = device
    found = validated(Config, tree)
    if found.engine.threads:
        torch.set_num_threads(found.engine.threads)
    if own is None:
        return create(Task(found))
    return create(NodeTask(found, *own, classes=classes, prototype=prototype, public=public or None))


def _own(node: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """(source, domain, client) of a node with its own data; None for one that takes a share of the partition."""
    if "data" not in node:
        if "partition-id" not in node and "client" not in node:
            raise FedstillError('this node has no data: start it with --node-config \'data="/path" domain="site-a"\'')
        return None
    source = str(node["data"])
    domain = str(node.get("domain") or Path(source).name)
    return source, domain, str(node.get("client") or domain)


def _about(config: str, node: Mapping[str, Any]) -> Site:
    """This node's description of itself."""
    own = _own(node)
    if own is not None:
        prototype = str(node["model"]) if "model" in node else None
        return NodeTask(validated(Config, json.loads(config)), *own, prototype=prototype).site()
    task = Task(validated(Config, json.loads(config)))
    ids = list(task.clients)
    client = str(node["client"]) if "client" in node else ids[int(node["partition-id"]) % len(ids)]
    if client not in task.clients:
        raise FedstillError(f"the configuration has no client '{client}'; it has {', '.join(ids[:10])}")
    info = task.clients[client]
    return Site(client, info.domain, info.samples, task.classes, task.shape, info.prototype, own=False, kind=task.kind)


def _turn(records: fl.RecordDict, about: Mapping[str, Any], context: fl.Context, folder: Path | None) -> fl.RecordDict:
    """One exchange on the node."""
    node = context.node_config
    client, round, phase = str(about["client"]), int(about["round"]), str(about["phase"])
    classes = tuple(map(str, about["classes"]))
    own = _own(node)
    # the task knows the architecture of a client of the configured partition, so one algorithm serves all clients
    prototype = "" if own is None else str(about["prototype"])
    algorithm = _algorithm(
        str(about["config"]), own, classes, prototype, str(node.get("device", "")), str(node.get("public", ""))
    )
    where = folder or (Path(str(node["memory"])).expanduser() / str(about["run"]) if "memory" in node else None)
    memory: MemoryStore = Memory(where) if where is not None else ContextMemory(context.state, str(about["run"]))
    message = from_records(records)
    result: dict[str, Any] = {}
    # the accuracy on a node's own test data tells of those, and privacy.sample does not cover it
    if about["judge"] and isinstance(algorithm.task, NodeTask) and algorithm.task.config.privacy.sample is None:
        first = algorithm.phases(round)[0]
        result = _judgement(algorithm.task, received(algorithm, message, memory.read(client, round), first))
    reply = Message() if phase == EVALUATE else client_turn(algorithm, client, round, phase, message, memory)
    answer = to_records(reply)
    answer["fedstill"] = fl.ConfigRecord(result)
    return answer


def _judgement(task: NodeTask, message: Message) -> dict[str, Any]:
    """The accuracy of the model sent to the node, on the node's own test data; empty if the message holds no whole model."""
    model = message.group("model")
    prototype = str(message.values.get("prototype", task.clients[task.name].prototype))
    expected = {name: tensor.shape for name, tensor in task.networks.get(prototype).state_dict().items()}
    if {name: tensor.shape for name, tensor in model.items()} != expected:
        return {}
    found = accuracy(task.networks.load(prototype, model), task.test, task.config.evaluation.batch_size)
    return {"accuracy": found, "tested": len(task.test)}


def _import_plugged(about: Mapping[str, Any]) -> None:
    """Import the modules of parts that the server uses by name; they are in the app itself or installed on this node."""
    try:
        import_plugged([str(module) for module in about.get("plugins", ())])
    except ImportError as error:
        raise FedstillError(f"this node lacks a module that the server uses: {error}") from error


def client_app(memory: Path | None = None) -> ClientApp:
    """A ClientApp that trains on its node's own data, or on a share of the configured partition.

    Describe a node when you start it: ``--node-config 'data="/path" domain="site-a"'``. Optional keys are ``client`` (its name),
    ``model`` (its architecture), ``device``, ``public`` (its copy of public data, for systems whose clients predict on it) and
    ``memory`` (a folder for private state that outlives a run). If one process simulates many nodes, the argument is that folder.
    """
    app = ClientApp()

    @app.query()
    def query(message: fl.Message, context: fl.Context) -> fl.Message:
        try:
            _import_plugged(dict(message.content["fedstill"].items()))
            config = str(message.content["fedstill"]["config"])
            answer = fl.ConfigRecord({"site": _about(config, context.node_config).to_json()})
        except FedstillError as error:
            answer = fl.ConfigRecord({"error": str(error)})
        return fl.Message(fl.RecordDict({"fedstill": answer}), reply_to=message)

    @app.train()
    def train(message: fl.Message, context: fl.Context) -> fl.Message:
        about = dict(message.content["fedstill"].items())
        try:
            _import_plugged(about)
            answer = _turn(message.content, about, context, memory)
        except Exception as error:  # reported to the server, which drops this reply with the reason
            log.exception("client %s failed", about.get("client"))
            answer = fl.RecordDict({"fedstill": fl.ConfigRecord({"error": reason_of(error)})})
        return fl.Message(answer, reply_to=message)

    return app
