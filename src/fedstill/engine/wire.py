"""How a client's model is sent: what is left out, what is packed, and how the server unpacks it. The same on every engine.

A model on the wire differs from the network's state in two ways: BatchNorm statistics may stay with the clients
(``model.buffers = "local"``), and 1-bit weights are sent as eight signs per byte (``resnet8-binary``).
"""

from __future__ import annotations

from collections.abc import Callable

from fedstill.algorithm import Algorithm, Server
from fedstill.core.message import Message, State
from fedstill.models.binary import binary_weights, pack_bits, unpack_bits
from fedstill.models.network import Network
from fedstill.models.statistics import buffer_names

__all__ = ["BUFFERS", "expected", "keeps_buffers", "packed", "received", "without_buffers"]

BUFFERS = "buffers"  # the group of a client's memory that holds its own BatchNorm statistics


def keeps_buffers(algorithm: Algorithm, phase: str) -> bool:
    """Whether BatchNorm statistics stay with the clients."""
    return algorithm.task.config.model.buffers == "local" and "model" in algorithm.required(phase)


def received(algorithm: Algorithm, message: Message, kept: Message, phase: str) -> Message:
    """``message`` as the client uses it: with its own BatchNorm statistics if those stay with the clients."""
    return message.with_parts(model=kept.group(BUFFERS)) if keeps_buffers(algorithm, phase) else message


def without_buffers(reply: Message, network: Network) -> tuple[Message, State]:
    """The reply without the network's buffers, and the buffers."""
    names = buffer_names(network)
    kept = {name: tensor for name, tensor in reply.group("model").items() if name in names}
    sent = {name: tensor for name, tensor in reply.tensors.items() if name.removeprefix("model/") not in names}
    return Message(sent, reply.values), kept


def packed(reply: Message, network: Network) -> Message:
    """The reply with 1-bit weights packed as eight signs per byte; a reply without them is returned unchanged."""
    model = reply.group("model")
    if not model or not binary_weights(network):
        return reply
    rest = {name: tensor for name, tensor in reply.tensors.items() if not name.startswith("model/")}
    return Message({**{f"model/{name}": tensor for name, tensor in pack_bits(model, network).items()}, **rest}, reply.values)


def expected(algorithm: Algorithm, prototype: str, server: Server, phase: str) -> tuple[State | None, Callable[[State], State]]:
    """The expected tensors of a model of this architecture on the wire (None if a phase sends no model), and a function that
    turns them back into weights. The server's own statistics replace those that stayed with the client."""
    if "model" not in algorithm.required(phase):
        return None, dict
    network = algorithm.task.networks.get(prototype)
    template = pack_bits(network.state_dict(), network)
    unpack: Callable[[State], State] = (lambda state: unpack_bits(state, network)) if binary_weights(network) else dict
    if not keeps_buffers(algorithm, phase):
        return template, unpack
    kept = {name: server.models[prototype][name] for name in buffer_names(network)}
    return {name: t for name, t in template.items() if name not in kept}, lambda state: {**kept, **unpack(state)}
