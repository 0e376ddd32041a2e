"""Screening: a reply must be finite and well-formed before it can touch the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedstill.core.message import Message

__all__ = ["fault", "not_finite"]


def fault(message: Message, requires: Sequence[str], template: Mapping[str, Tensor] | None) -> str | None:
    """Why ``message`` cannot be used, or None. ``template`` gives the names, shapes and types of the group ``model``.

    >>> good = {"w": torch.zeros(2)}
    >>> fault(Message.of(model={"w": torch.tensor([1.0, float("nan")])}, samples=3), ["model"], good)
    "not finite: 'model/w'"
    >>> fault(Message.of(model={"w": torch.zeros(3)}, samples=3), ["model"], good)
    "wrong shape: 'model/w' is (3,), expected (2,)"
    >>> fault(Message.of(model=good, samples=0), ["model"], good)
    'no samples'
    """
    samples = message.values.get("samples", 0)
    if not isinstance(samples, int) or isinstance(samples, bool) or samples <= 0:
        return "no samples"
    for group in requires:
        if not message.group(group):
            return f"no '{group}' in the reply"
    if template is not None and "model" in requires:
        model = message.group("model")
        for name in model.keys() ^ template.keys():
            return f"{'unknown' if name in model else 'missing'} tensor: 'model/{name}'"
        for name, tensor in model.items():
            expected = template[name]
            if tensor.shape != expected.shape:
                return f"wrong shape: 'model/{name}' is {tuple(tensor.shape)}, expected {tuple(expected.shape)}"
            if tensor.dtype != expected.dtype:
                return f"wrong type: 'model/{name}' is {tensor.dtype}, expected {expected.dtype}"
    found = not_finite(message)
    return None if found is None else f"not finite: '{found}'"


def not_finite(message: Message) -> str | None:
    """The name of a tensor or value of the message that holds a NaN or an infinity; None if all is well.

    >>> not_finite(Message.of(samples=3, loss=float("inf")))
    'loss'
    """
    numbers = {name: tensor for name, tensor in message.tensors.items() if tensor.is_floating_point()}
    # a finite sum has finite elements only; a sum may also overflow, so the exact check follows
    if numbers and not torch.isfinite(sum((tensor.sum() for tensor in numbers.values()), torch.zeros(()))):
        for name, tensor in numbers.items():
            if not torch.isfinite(tensor).all():
                return name
    return next((name for name, value in message.values.items() if isinstance(value, float) and not math.isfinite(value)), None)
