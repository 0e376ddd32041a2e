"""The engine for several machines, the server side: ``exchange`` over a Flower ``Grid``.

The server asks every node once for its description (:class:`~fedstill.task.sites.Site`). After that, each message becomes a
Flower message, and each reply that arrives in time becomes an outcome.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedstill.algorithm import Algorithm
from fedstill.config.tables import Config
from fedstill.core.errors import FedstillError, reason_of
from fedstill.core.message import Message
from fedstill.core.registry import plugged_modules
from fedstill.engine.exchange import EVALUATE, Outcome
from fedstill.engine.flower.records import fl, from_records, to_records
from fedstill.engine.spool import Spool
from fedstill.task import Task
from fedstill.task.sites import RosterTask, Site

from flwr.serverapp import Grid  # isort: skip  (after records, which turns telemetry off)

__all__ = ["Flower"]

SILENT = "no reply within"
POLL = 0.25  # seconds between two polls for replies
log = logging.getLogger("flwr")


class Flower:
    """An engine over a Flower ``Grid``. :meth:`meet` the nodes first, then :meth:`serve` an algorithm."""

    def __init__(self, grid: Grid, config: Config, run: str, at_once: int = 0):
        self.grid = grid
        self.at_once = at_once  # how many nodes may be at work at the same time; 0: all of them
        self.config = config
        self.run = run  # identifies this run on the nodes, also after a resume
        self.sites: dict[str, Site] = {}
        self.nodes: dict[str, int] = {}  # client -> its current node
        self.wanted = 0  # nodes that are waited for
        self.asked: dict[int, str | None] = {}  # node -> why it cannot take part, or None
        self.spool = Spool()
        self.algorithm: Algorithm | None = None
        self.terms: dict[str, Any] = {}

    def meet(self, wanted: int, patience: float) -> None:
        """Wait until ``wanted`` nodes have described themselves; after ``patience`` seconds, continue with those that have."""
        deadline = time.monotonic() + patience
        self.wanted = wanted
        while True:
            self._ask(set(self.grid.get_node_ids()), max(1.0, deadline - time.monotonic()), again=True)
            if len(self.nodes) >= wanted or time.monotonic() >= deadline:
                break
            time.sleep(POLL)
        self.wanted = 0
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
        """Ask new nodes to describe themselves; with ``again``, nodes that do not answer may be asked again."""
        strangers = online - set(self.asked)
        text = json.dumps(self.config.model_dump(mode="json", exclude_none=True))
        sent = {
            node: fl.RecordDict({"fedstill": fl.ConfigRecord({"config": text, "plugins": plugged_modules()})})
            for node in strangers
        }
        for node, reply, reason in self._send(sent, "query", "0", timeout, min(timeout, 120.0)):
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
            return f"another node is already called '{site.client}'; give one of them --node-config 'client=\"...\"'"
        if self.algorithm is not None and known is None:
            return f"'{site.client}' connected after the federation was formed"
        self.sites.setdefault(site.client, site)
        self.nodes[site.client] = node
        if self.wanted:
            log.info("%d of %d nodes are ready", len(self.nodes), self.wanted)
        return None

    def task(self) -> Task:
        """The task, from the configuration and the nodes' descriptions."""
        own = [site for site in self.sites.values() if site.own]
        if own and len(own) < len(self.sites):
            shares = [site.client for site in self.sites.values() if not site.own]
            raise FedstillError(f"either all nodes bring their own data or none: {', '.join(shares[:5])} have no data=")
        return RosterTask(self.config, own) if own else Task(self.config)

    def serve(self, algorithm: Algorithm) -> None:
        """Carry messages for ``algorithm`` from now on."""
        self.algorithm, task = algorithm, algorithm.task
        settled = json.dumps(task.config.model_dump(mode="json", exclude_none=True))
        self.terms = {"config": settled, "classes": list(task.classes), "run": self.run, "plugins": plugged_modules()}

    def exchange(self, round: int, phase: str, messages: Sequence[tuple[str, Message]]) -> Iterator[Outcome]:
        """See :class:`fedstill.engine.exchange.Engine`."""
        assert self.algorithm is not None, "serve an algorithm first"
        self.spool.begin(round)
        task = self.algorithm.task
        timeout = task.config.clients.timeout
        online = set(self.grid.get_node_ids())
        self._ask(online, min(timeout or 30.0, 30.0))  # a restarted node comes back with a new id
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
            about: dict[str, Any] = dict(reply["fedstill"].items())
            if "error" in about:
                return Outcome(client, reason=str(about["error"])[:500])
            message = from_records(reply)
            judged = (float(about["accuracy"]), int(about["tested"])) if "accuracy" in about else (None, 0)
        except (FedstillError, KeyError, TypeError, ValueError, AttributeError) as error:
            return Outcome(client, reason=f"not a reply: {reason_of(error)}")
        read = self.spool.keep(round, phase, client, message)
        return Outcome(client, read, nbytes=message.nbytes, accuracy=judged[0], tested=judged[1])

    def _send(
        self, sent: Mapping[int, fl.RecordDict], kind: str, group: str, timeout: float | None, each: float | None = None
    ) -> Iterator[tuple[int, fl.RecordDict | None, str | None]]:
        """Send each node its records; yield (node, reply, None) or (node, None, reason), every node once. At most ``at_once`` of
        them are at work. ``timeout`` is for all of them together, ``each`` for one from its message on."""
        left = deque(sent.items())
        waiting: dict[str, tuple[int, float]] = {}  # message -> its node, and until when that may answer
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while left or waiting:
            now = time.monotonic()
            late = now >= deadline
            while left and not late and (not self.at_once or len(waiting) < self.at_once):
                node, records = left.popleft()  # one at a time: a request with every model could be too large
                until = min(deadline, math.inf if each is None else now + each)
                message = fl.Message(
                    records, node, kind, group_id=group, ttl=None if until == math.inf else max(1.0, until - now)
                )
                number = next(iter(self.grid.push_messages([message])), None)
                if number:
                    waiting[number] = node, until
                else:
                    yield node, None, "the SuperLink did not accept its message"
            for reply in self.grid.pull_messages(list(waiting)):
                node, _ = waiting.pop(reply.metadata.reply_to_message_id)
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
            for number, (node, until) in list(waiting.items()):
                if now >= until:
                    del waiting[number]
                    yield node, None, f"{SILENT} {each:g} s"
            if waiting:
                time.sleep(POLL)
        for node in [node for node, _ in waiting.values()] + [node for node, _ in left]:
            yield node, None, f"{SILENT} {timeout:g} s"

    def close(self) -> None:
        """Remove scratch files; the nodes and the SuperLink are not ours to stop."""
        self.spool.close()
