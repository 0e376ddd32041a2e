"""A client's turn, the same on every engine: remember, train, keep what is to be kept, send the rest."""

from __future__ import annotations

from fedstill.algorithm import Algorithm, Client
from fedstill.core.message import Message
from fedstill.core.streams import seeded
from fedstill.engine.memory import MemoryStore
from fedstill.engine.wire import BUFFERS, keeps_buffers, packed, received, without_buffers
from fedstill.fusion.screening import not_finite
from fedstill.local.poison import false_update

__all__ = ["client_turn"]


def client_turn(algorithm: Algorithm, client: str, round: int, phase: str, message: Message, memory: MemoryStore) -> Message:
    """What ``client`` answers to ``message``."""
    task = algorithm.task
    later = phase != algorithm.phases(round)[0]  # later phases of a round go on from what earlier ones kept
    before = memory.read(client, round + 1 if later else round)
    person = Client.of(task, client, round, before)
    message = received(algorithm, message, before, phase)
    with seeded(task.seed, "train", client, round, phase, device=task.device):
        reply = algorithm.train(message, person, phase)
    if keeps_buffers(algorithm, phase):
        reply, kept = without_buffers(reply, person.network)
        person.memory = person.memory.with_parts(**{BUFFERS: kept})
    if person.memory is not before and not_finite(person.memory) is None:  # or it would diverge for ever
        memory.write(client, round, person.memory)
    reply = poisoned_reply(algorithm, person, message, reply)
    return packed(reply, person.network) if "model" in algorithm.required(phase) else reply


def poisoned_reply(algorithm: Algorithm, client: Client, message: Message, reply: Message) -> Message:
    """What a client poisoned on purpose sends instead of its update (``data.poison``)."""
    poison = algorithm.task.config.data.poison
    if poison is None or client.id not in algorithm.task.poisoned or poison.kind not in ("sign-flip", "gaussian"):
        return reply
    return false_update(reply, message, poison.kind, poison.scale, client.rng("poison"))
