"""A client's turn, the same on every engine: restore its private state, train, save that state, send the reply."""

from __future__ import annotations

import json

from fedstill.algorithm import Algorithm, Client
from fedstill.core.accounting import Ledger
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.core.streams import seeded
from fedstill.data.samples import Samples
from fedstill.engine.exchange import JUDGE
from fedstill.engine.memory import MemoryStore
from fedstill.engine.wire import BUFFERS, keeps_buffers, packed, received, without_buffers
from fedstill.fusion.judges import AVERAGE, OTHER, PAST, RIGHT, STUDENT, right_answers
from fedstill.fusion.line import Past, candidates, held_share
from fedstill.fusion.screening import not_finite
from fedstill.local.poison import false_update
from fedstill.local.private import released
from fedstill.local.reports.checks import with_spent

__all__ = ["client_turn"]

LEDGER = "ledger"  # the group of a client's memory that says what was spent on its samples


def client_turn(algorithm: Algorithm, client: str, round: int, phase: str, message: Message, memory: MemoryStore) -> Message:
    """The reply of ``client`` to ``message``."""
    if phase == JUDGE:
        return verdict(algorithm, client, round, message, memory)
    task = algorithm.task
    later = phase != algorithm.phases(round)[0]  # later phases continue from the state of earlier ones
    before = memory.read(client, round + 1 if later else round)
    own = before.without(LEDGER)  # a system has no part in the ledger, whose unused orders are infinite
    person = Client.of(task, client, round, own, held_share(algorithm, round))
    spent = person.ledger = Ledger.from_state(before.group(LEDGER))
    message = received(algorithm, message, before, phase)
    with seeded(task.seed, "train", client, round, phase, device=task.device):
        reply = algorithm.train(message, person, phase)
    if keeps_buffers(algorithm, phase):
        reply, kept = without_buffers(reply, person.network)
        person.memory = person.memory.with_parts(**{BUFFERS: kept})
    after = person.memory if not_finite(person.memory) is None else own  # NaN would stay broken forever
    if after is not own or person.ledger != spent:  # what was spent is never forgotten
        memory.write(client, round, after.with_parts(**{LEDGER: person.ledger.state()}) if person.ledger != Ledger() else after)
    reply = with_spent(person, released(algorithm, person, reply, spent))
    reply = poisoned_reply(algorithm, person, message, reply)
    return packed(reply, person.network) if "model" in algorithm.required(phase) else reply


def verdict(algorithm: Algorithm, client: str, round: int, message: Message, memory: MemoryStore) -> Message:
    """How many of the client's held-out samples each point between two models classifies correctly."""
    task = algorithm.task
    if task.config.privacy.sample is not None:
        raise FedstillError("privacy.sample does not cover verdicts on held-out samples")
    person = Client.of(task, client, round, validation=held_share(algorithm, round))
    held = person.held if person.held is not None else Samples(person.data.x[:0])
    own = memory.read(client, round + 1).group(BUFFERS)  # BatchNorm statistics that stay with the client
    average, student = ({**message.group(end), **own} for end in (AVERAGE, STUDENT))
    points, mixed = ([float(t) for t in json.loads(str(message.values[name]))] for name in ("points", "past_points"))
    if not len(held):
        return Message.of(samples=0)
    rounds = int(message.values["past_rounds"])
    past = Past({**message.group(PAST), **own}, rounds, mixed) if rounds else None
    others = [{**message.group(f"{OTHER}{i}"), **own} for i in range(int(message.values.get("others", 0)))]
    judged = candidates(average, student, points, past, others)
    right = right_answers(task.networks.get(person.prototype, "student"), judged, held)
    poison = task.config.data.poison
    if poison is not None and poison.kind == "false-verdict" and client in task.poisoned:
        right = len(held) - right  # reports worse models as better
    return Message.of(**{RIGHT: {"counts": right}}, samples=len(held))


def poisoned_reply(algorithm: Algorithm, client: Client, message: Message, reply: Message) -> Message:
    """The reply of a client, replaced by a false update if the client is poisoned on purpose (``data.poison``)."""
    poison = algorithm.task.config.data.poison
    if poison is None or client.id not in algorithm.task.poisoned or poison.kind not in ("sign-flip", "gaussian"):
        return reply
    return false_update(reply, message, poison.kind, poison.scale, client.rng("poison"))
