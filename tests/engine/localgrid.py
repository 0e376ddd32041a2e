"""Flower's Grid without processes: a message is answered by the ClientApp at once, through the bytes that would be sent."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import fedstill.engine.flower.records  # noqa: F401  (before flwr: it turns telemetry off)

from flwr.app import Context, Error, Message, RecordDict  # isort: skip
from flwr.serverapp import Grid  # isort: skip
from flwr.supercore.task_identity import TaskIdentity  # isort: skip


def context(node: int, node_config: dict[str, Any], run_config: dict[str, Any] | None = None) -> Context:
    """A node's context."""
    return Context(run_id=1, node_id=node, node_config=node_config, state=RecordDict(), run_config=run_config or {})


class LocalGrid(Grid):
    """``nodes`` are node configurations; ``spoil(node, message, reply)`` may change or withhold (None) a reply."""

    def __init__(self, app: Any, nodes: list[dict[str, Any]], spoil: Callable | None = None):
        self.app = app
        self.contexts = {100 + i: context(100 + i, config) for i, config in enumerate(nodes)}
        self.spoil = spoil or (lambda node, message, reply: reply)
        self.waiting: dict[str, Message] = {}
        self.sent = 0

    def set_run(self, run: Any) -> None:
        """Nothing to set."""

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            number = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = number
            node = message.metadata.dst_node_id
            self.sent += 1
            try:
                reply = self.app(message, self.contexts[node])
            except Exception as error:
                reply = Message(Error(code=2, reason=str(error)), reply_to=message)
            reply = self.spoil(node, message, reply)
            if reply is not None:
                self.waiting[number] = reply
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.waiting.pop(number) for number in list(message_ids) if number in self.waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


# A Flower message names the run and the node that it comes from; a process that runs an app is told them at its start.
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
