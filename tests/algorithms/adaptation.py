"""A tiny adaptation task, and one round of it taken apart."""

from __future__ import annotations

from typing import Any

from fedstill.algorithm import Algorithm, Client, Reply, Round, Server
from fedstill.algorithms import create
from fedstill.core.message import Message
from fedstill.run.configuration import parse
from fedstill.task import Task


def tiny(
    name: str,
    *,
    rounds: int = 2,
    epochs: int = 1,
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """The configuration: two sources of digits, a third as the target, 16 x 16 pixels."""
    return parse(
        {
            "rounds": rounds,
            "data": {
                "domains": ["embedded:optdigits", "embedded:mnist"],
                "target": "embedded:rotated",
                "image_size": 16,
                "channels": 1,
                "limit": 96,
                "test_limit": 50,
                **(data or {}),
            },
            "model": model or {"name": "cnn-small"},
            "local": {"epochs": epochs, "batch_size": 32, "optimizer": {"lr": 0.02, "momentum": 0.9}},
            "engine": {"threads": 1},
            "algorithm": {"name": name, **options},
        }
    )


def algorithm_of(config: Any) -> Algorithm:
    """The algorithm on its task."""
    return create(Task(config))


def exchange(algorithm: Algorithm, server: Server, round: Round, memories: dict[str, Message]) -> list[Reply]:
    """Every client's reply in the round's phase; ``memories`` is read and written."""
    replies = []
    for name, info in algorithm.task.clients.items():
        client = Client.of(algorithm.task, name, round.number, memories.get(name))
        message = algorithm.train(algorithm.instruct(server, name, round), client, round.phase)
        memories[name] = client.memory
        replies.append(Reply(name, info.domain, info.prototype, int(message.values["samples"]), lambda message=message: message))
    return replies
