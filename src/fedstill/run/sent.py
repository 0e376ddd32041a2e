"""What the clients of a round sent, item by item, for the history and for ``fedstill audit``."""

from __future__ import annotations

import json

from fedstill.core.message import Message

__all__ = ["add_items"]

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def add_items(items: dict[str, int], message: Message) -> None:
    """Add the bytes of every group of tensors and every value of ``message`` to ``items``. BatchNorm statistics in a model are
    an item of their own, ``buffers``.

    >>> import torch
    >>> items: dict[str, int] = {}
    >>> add_items(items, Message.of(model={"w": torch.ones(3), "bn.running_mean": torch.ones(2)}, samples=12))
    >>> items
    {'model': 12, 'buffers': 8, 'samples': 2}
    """
    for name, tensor in message.tensors.items():
        group = name.split("/", 1)[0]
        item = "buffers" if group == "model" and name.endswith(STATISTICS) else group
        items[item] = items.get(item, 0) + tensor.numel() * tensor.element_size()
    for name, value in message.values.items():
        items[name] = items.get(name, 0) + len(json.dumps(value))
