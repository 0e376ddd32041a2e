"""Messages: named tensors and plain values, the only thing that travels between a server and its clients.

A message encodes to safetensors (no pickle anywhere) with its values as JSON in the header, and maps one to one onto a Flower
``RecordDict``. Tensors are grouped by what they are, ``"model/conv1.weight"``, ``"projection/matrix"``; the size of the encoded
message is what the communication figures report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.core.files import atomic_write

__all__ = ["Message", "State", "Value", "clone"]

State = dict[str, Tensor]
Value = int | float | str | bool


@dataclass(frozen=True)
class Message:
    """Named tensors and plain values.

    >>> import torch
    >>> message = Message.of(model={"weight": torch.ones(2, 2)}, samples=7)
    >>> sorted(message.tensors), message.values
    (['model/weight'], {'samples': 7})
    >>> message.group("model")["weight"].shape
    torch.Size([2, 2])
    >>> Message.from_bytes(message.to_bytes()).values["samples"]
    7
    """

    tensors: State = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, **parts: Mapping[str, Tensor] | Value) -> Message:
        """A message from keyword parts: a mapping of tensors becomes a group, anything else a value."""
        tensors: State = {}
        values: dict[str, Value] = {}
        for name, part in parts.items():
            if isinstance(part, Mapping):
                tensors.update({f"{name}/{key}": tensor for key, tensor in part.items()})
            else:
                values[name] = part
        return cls(tensors, values)

    def with_parts(self, **parts: Mapping[str, Tensor] | Value) -> Message:
        """A copy with further groups and values."""
        more = Message.of(**parts)
        return Message({**self.tensors, **more.tensors}, {**self.values, **more.values})

    def without(self, *names: str) -> Message:
        """A copy without these groups and values.

        >>> Message.of(samples=7, secret="1").without("secret").values
        {'samples': 7}
        """
        return Message(
            {name: tensor for name, tensor in self.tensors.items() if name.split("/", 1)[0] not in names},
            {name: value for name, value in self.values.items() if name not in names},
        )

    def groups(self) -> list[str]:
        """The names of the tensor groups, in order of appearance."""
        return list(dict.fromkeys(name.split("/", 1)[0] for name in self.tensors))

    def group(self, name: str) -> State:
        """The tensors of one group, without its prefix; empty if there is no such group."""
        prefix = name + "/"
        return {key[len(prefix) :]: tensor for key, tensor in self.tensors.items() if key.startswith(prefix)}

    @property
    def nbytes(self) -> int:
        """The size of the payload: tensors as they are, values as JSON."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values()) + len(json.dumps(self.values))

    def to_bytes(self) -> bytes:
        """The message as safetensors."""
        specified, _held = _specified(self.tensors)
        return bytes(safetensors.serialize(specified, {"values": json.dumps(self.values)}))

    def write(self, path: Path) -> None:
        """Write the message to ``path`` as it is, for a reader on this machine; :meth:`save` is for what must last."""
        path.write_bytes(self.to_bytes())  # not safetensors' own writer: a full disk is an OSError here

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """The message in ``data``; foreign bytes are parsed, never executed."""
        try:
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            values = json.loads(header.get("__metadata__", {}).get("values", "{}"))
            return cls(safetensors.torch.load(data), values)
        except (safetensors.SafetensorError, ValueError, AttributeError, UnicodeDecodeError) as error:
            raise FedstillError(f"not a message: {error}") from error

    def save(self, path: Path) -> None:
        """Write the message to ``path``, atomically and durably."""
        atomic_write(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> Message:
        """Read the message at ``path``; its tensors are mapped from the file, not copied."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                values = json.loads((file.metadata() or {}).get("values", "{}"))
                return cls({name: file.get_tensor(name) for name in file.keys()}, values)  # noqa: SIM118
        except (safetensors.SafetensorError, ValueError, OSError) as error:
            raise FedstillError(f"{path} is not a readable message: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)


def _specified(tensors: Mapping[str, Tensor]) -> tuple[dict[str, safetensors.TensorSpec], list[Tensor]]:
    """What safetensors needs to know of the tensors, and the memory that it reads, which must stay alive until it has. Its own
    function for torch looks for shared memory first, which takes longer than writing many small tensors."""
    held = [tensor.detach().cpu().contiguous() for tensor in tensors.values()]
    return {name: _specification(tensor) for name, tensor in zip(tensors, held, strict=True)}, held


def _specification(tensor: Tensor) -> safetensors.TensorSpec:
    kind, size = str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()
    return safetensors.TensorSpec(dtype=kind, shape=list(tensor.shape), data_ptr=tensor.data_ptr(), data_len=size)


def clone(state: Mapping[str, Tensor]) -> State:
    """An independent copy of a state."""
    return {name: tensor.detach().clone() for name, tensor in state.items()}
