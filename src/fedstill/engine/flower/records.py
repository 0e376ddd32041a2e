"""Messages as Flower records. The other modules here import Flower after this one, which turns its telemetry off."""

from __future__ import annotations

import os
from io import BytesIO

import numpy as np
import torch

from fedstill.core.errors import FedstillError, reason_of
from fedstill.core.message import Message, Value

QUIET = {  # Flower and Ray send telemetry and look for updates unless this is set before they are imported
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)

try:
    from flwr import app as fl
except ImportError as error:
    raise FedstillError("this needs Flower: pip install 'fedstill[flower]'") from error

__all__ = ["QUIET", "fl", "from_records", "to_records"]


def to_records(message: Message) -> fl.RecordDict:
    """A message as Flower records: tensors in an ArrayRecord, values in a ConfigRecord.

    >>> message = Message.of(model={"w": torch.ones(2)}, samples=3, name="a", ok=True)
    >>> again = from_records(to_records(message))
    >>> again.values == message.values, torch.equal(again.tensors["model/w"], message.tensors["model/w"])
    (True, True)
    """
    arrays = fl.ArrayRecord({name: _to_array(tensor.detach().cpu()) for name, tensor in message.tensors.items()})
    return fl.RecordDict({"tensors": arrays, "values": fl.ConfigRecord(dict(message.values))})


def from_records(records: fl.RecordDict) -> Message:
    """The message that :func:`to_records` wrote. Anything else is refused, since records come from other machines."""
    try:
        tensors = {str(name): _from_array(array) for name, array in records.array_records["tensors"].items()}
        values: dict[str, Value] = {}
        for name, value in records.config_records["values"].items():
            if not isinstance(value, int | float | str | bool):
                raise TypeError("values of unknown types")
            values[name] = value
        return Message(tensors, values)
    except (KeyError, TypeError, ValueError, AttributeError, EOFError, RuntimeError) as error:
        raise FedstillError(f"not a message: {reason_of(error)}") from error


def _to_array(tensor: torch.Tensor) -> fl.Array:
    try:
        return fl.Array(tensor.numpy())
    except TypeError:  # numpy lacks bfloat16 and similar types: send the bytes
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
