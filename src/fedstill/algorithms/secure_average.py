"""Secure averages: the server learns the sum of the clients' models and no single one, also if clients drop out.

A round of FedAvg and its relatives has four exchanges instead of one (:mod:`fedstill.local.secure_sum` has the cryptography):

* ``train``: clients train as usual and keep the result; they send two public keys, their number of samples and their mean loss;
* ``share-keys``: clients receive all keys and send, sealed for each other, shares of the seeds of their masks;
* ``mask``: clients receive the shares meant for them and send their weighted model under masks;
* ``reveal``: the clients that are left learn whose models arrived, and send the shares that undo the remaining masks.

Clients of one architecture hide among each other. A client can be lost in any exchange; more than a part ``threshold`` of those
that sent keys must remain. docs/privacy.md says who can learn what.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedstill.algorithm import Algorithm, Client, Reply, Round, Server
from fedstill.config.secure import Secure
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State
from fedstill.fusion.clipping import clipped_to
from fedstill.fusion.screening import not_finite
from fedstill.local.masking import FixedPoint, is_key
from fedstill.local.secure_sum import Secrets, hidden, new_secrets, opened, recovered_sum, revealed, sealed, threshold_of
from fedstill.models.binary import binary_weights
from fedstill.task import Task

__all__ = ["FIRST", "PHASES", "check", "fault", "fuse", "instruct", "required", "train", "withhold"]

PHASES = FIRST, SHARE, MASK, REVEAL = "train", "share-keys", "mask", "reveal"
MASKED = "masked sum of "  # before an architecture's name among the server's parts
STATE = "secure"  # the group of the server's values, and of a client's memory

Average = Callable[[Server, Sequence[Reply], Round], Server]


def check(task: Task, merge: str, needs_models: str | None) -> None:
    """Refuse options that need a single client's model, which the server never sees."""
    poison = task.config.data.poison
    if needs_models is not None:
        raise FedstillError(f"privacy.secure hides the single models that {needs_models} needs: remove one of them")
    if merge not in ("uniform", "examples"):
        raise FedstillError(f"privacy.secure hides the models that merge = '{merge}' needs: use 'uniform' or 'examples'")
    if task.config.model.buffers == "local":
        raise FedstillError("privacy.secure sums whole models: remove model.buffers = 'local'")
    if any(binary_weights(task.networks.get(name)) for name in task.networks.prototypes):
        raise FedstillError("privacy.secure sums weights, which 1-bit clients do not send: use another architecture")
    if poison is not None and poison.kind in ("sign-flip", "gaussian"):
        raise FedstillError(f"data.poison.kind = '{poison.kind}' changes a model that is sent, and privacy.secure sends none")


def required(phase: str) -> Sequence[str]:
    """The tensor groups of a reply."""
    return ("masked",) if phase == MASK else ()


def settings(task: Task) -> tuple[Secure, FixedPoint]:
    """The options, and the fixed point that they give."""
    secure = task.config.privacy.secure
    assert secure is not None
    return secure, FixedPoint(secure.bits, secure.limit)


def where(round: int, prototype: str) -> str:
    """The context of all keys of a round."""
    return f"round {round} {prototype}"


# -- in each selected client -----------------------------------------------------------------------------------------------


def withhold(reply: Message, client: Client) -> Message:
    """First exchange: two public keys instead of the trained weights, which stay in the client's memory."""
    wrong = not_finite(reply)
    if wrong is not None:  # the mask would hide it from the server
        raise FedstillError(f"its training diverged: '{wrong}' is not finite")
    settings(client.task)[1].words(flat(reply.group("model")))  # a number that is too large is found before others rely on it
    mine = new_secrets()
    client.memory = client.memory.with_parts(trained=reply.group("model"), secrets=mine.to_text())
    seal, mask = mine.keys
    rest = reply.without("model")
    return rest.with_parts(seal_key=f"{seal:x}", mask_key=f"{mask:x}")


def train(message: Message, client: Client, phase: str) -> Message:
    """A client's reply in the exchanges after the first."""
    step = {SHARE: share_keys, MASK: mask, REVEAL: reveal}[phase]
    return step(message, client).with_parts(samples=len(client.data))


def share_keys(message: Message, client: Client) -> Message:
    """Second exchange: shares of both seeds for every client that sent keys, sealed."""
    secure, _ = settings(client.task)
    keys = keys_in(message, "seal_keys")
    mine = Secrets.from_text(str(client.memory.values["secrets"]))
    threshold = threshold_of(secure.threshold, len(keys))
    boxes = sealed(client.id, mine, keys, threshold, where(client.round, client.prototype))
    client.memory = client.memory.with_parts(seal_keys=str(message.values["seal_keys"]), threshold=threshold)
    return Message.of(boxes=json.dumps(boxes))


def mask(message: Message, client: Client) -> Message:
    """Third exchange: the client's weighted model, masked. The model is then forgotten, the shares of others are kept."""
    _, point = settings(client.task)
    context = where(client.round, client.prototype)
    keys, boxes = keys_in(message, "mask_keys"), json.loads(str(message.values["boxes"]))
    if keys.keys() != boxes.keys() or len(keys) < int(client.memory.values["threshold"]):
        raise FedstillError(f"{client.id} hides among at least {client.memory.values['threshold']} clients, not {len(keys)}")
    mine = Secrets.from_text(str(client.memory.values["secrets"]))
    held = opened(client.id, mine, keys_in(client.memory, "seal_keys"), boxes, context)
    share, trained = float(message.values["share"]), flat(client.memory.group("trained"))
    private = client.task.config.privacy.client
    if private is not None:  # the trained numbers are an update: clipped, also after it is rounded
        trained = clipped_flat(trained, private.clip, point.error(1) / share)
    words = hidden(share * trained, client.id, mine, keys, context, point)
    client.memory = client.memory.without("trained", "secrets", "seal_keys").with_parts(held=json.dumps(held))
    return Message.of(masked={"words": words})


def reveal(message: Message, client: Client) -> Message:
    """Fourth exchange: one share of each client's seeds, never both. The client then forgets them: it answers once."""
    held, arrived = json.loads(str(client.memory.values["held"])), set(json.loads(str(message.values["arrived"])))
    if not arrived <= held.keys() or len(arrived) < int(client.memory.values["threshold"]):
        raise FedstillError(f"{client.id} reveals shares only for a sum of at least {client.memory.values['threshold']} clients")
    client.memory = client.memory.without("held", "threshold")
    return Message.of(shares=json.dumps(revealed(held, arrived)))


def clipped_flat(update: Tensor, clip: float, error: float) -> Tensor:
    """The update within the norm ``clip``, whatever rounding adds to each number (at most ``error``)."""
    within = clip - error * update.numel() ** 0.5
    if within <= 0:
        raise FedstillError(
            f"privacy.client.clip = {clip:g} is below what rounding adds to an update: use privacy.secure.bits = 64"
        )
    return clipped_to({"update": update}, within)["update"]


def keys_in(message: Message, name: str) -> dict[str, int]:
    """Public keys by client."""
    return {client: int(key, 16) for client, key in json.loads(str(message.values[name])).items()}


def flat(state: Mapping[str, Tensor]) -> Tensor:
    """All numbers of a state, in the order of their names."""
    return torch.cat([state[name].detach().double().cpu().flatten() for name in sorted(state)])


def shaped(values: Tensor, like: State) -> State:
    """The state whose numbers :func:`flat` gives, in the types of ``like``; counters are rounded."""
    pieces = values.split([like[name].numel() for name in sorted(like)])
    found = {name: piece.view(like[name].shape) for name, piece in zip(sorted(like), pieces, strict=True)}
    return {name: (found[name] if t.is_floating_point() else found[name].round()).to(t) for name, t in like.items()}


# -- in the server -----------------------------------------------------------------------------------------------------------


def instruct(algorithm: Algorithm, server: Server, client: str, round: Round) -> Message:
    """The messages after the first exchange."""
    group = server.values[STATE][algorithm.task.clients[client].prototype]
    if round.phase == SHARE:
        return Message.of(seal_keys=json.dumps(group["seal_key"]))
    if round.phase == MASK:
        boxes = {name: sent[client] for name, sent in group["boxes"].items()}
        keys = {name: group["mask_key"][name] for name in boxes}
        return Message.of(mask_keys=json.dumps(keys), boxes=json.dumps(boxes), share=group["share"][client])
    return Message.of(arrived=json.dumps(group["arrived"]))


def fault(algorithm: Algorithm, server: Server, client: str, message: Message) -> str | None:
    """Why a reply cannot be used, or None. What it must hold follows from how far the round is."""
    prototype = algorithm.task.clients[client].prototype
    group = server.values.get(STATE, {}).get(prototype)
    if group is None:
        keys = [str(message.values.get(name, "")) for name in ("seal_key", "mask_key")]
        return None if all(is_key(key) for key in keys) else "no public keys"
    if "arrived" in group:
        return _texts_fault(message, "shares", group["boxes"])
    if "boxes" not in group:
        return _texts_fault(message, "boxes", group["seal_key"])
    _, point = settings(algorithm.task)
    count = sum(tensor.numel() for tensor in server.models[prototype].values())
    words = message.group("masked").get("words")
    if words is None or words.dtype != point.dtype or words.shape != (count,):
        return f"not {count} masked words of {point.bits} bits"
    return None


def _texts_fault(message: Message, name: str, names: Mapping[str, Any]) -> str | None:
    """Why a value is no JSON object with one hexadecimal text for each of ``names``."""
    try:
        found = json.loads(str(message.values.get(name, "")))
        if found.keys() == names.keys() and len({len(bytes.fromhex(text)) for text in found.values()}) == 1:
            return None
    except (ValueError, AttributeError, TypeError):
        pass
    return f"'{name}' is not one text for each of {len(names)} clients"


def fuse(algorithm: Algorithm, server: Server, replies: Sequence[Reply], round: Round, merge: str, average: Average) -> Server:
    """The server's step after each exchange; after the last, ``average`` gets one reply per architecture: the average."""
    known: dict[str, Any] = {name: dict(group) for name, group in server.values.get(STATE, {}).items()}
    groups = {name: [r for r in replies if r.prototype == name] for name in dict.fromkeys(r.prototype for r in replies)}
    for name in known.keys() | groups.keys():
        known.setdefault(name, {})
        groups.setdefault(name, [])
    parts, values = dict(server.parts), {key: value for key, value in server.values.items() if key != STATE}
    done: list[Reply] = []
    weights: dict[str, float] = {}
    for name, group in groups.items():
        facts = known[name]
        if round.phase == FIRST:
            facts.update(_keys(group, name, round, merge))
            continue
        _check_enough(algorithm, facts, group, name, round)
        if round.phase == SHARE:
            facts["boxes"] = {reply.client: json.loads(str(reply.message.values["boxes"])) for reply in group}
        elif round.phase == MASK:
            facts["arrived"] = [reply.client for reply in group]
            words = sum((r.part("masked")["words"] for r in group[1:]), group[0].part("masked")["words"].clone())
            parts[MASKED + name] = {"words": words}
        else:
            done.append(_unmasked(algorithm, server, facts, group, name, round))
            del parts[MASKED + name]
            whole = sum(facts["share"][client] for client in facts["arrived"])
            weights |= {client: float(f"{facts['share'][client] / whole:.5g}") for client in facts["arrived"]}
    if round.phase != REVEAL:
        return Server(server.models, parts, {**values, STATE: known})
    after = average(Server(server.models, parts, values), done, round)
    if algorithm.task.config.privacy.client is None:  # whose divisor is fixed: no shares of those that arrived
        round.note(weights=weights)
    round.note(secure={"asked": sum(len(g["seal_key"]) for g in known.values()), "summed": len(weights)})
    return after


def _keys(group: Sequence[Reply], prototype: str, round: Round, merge: str) -> dict[str, Any]:
    """After the first exchange: the clients that take part, their keys and their shares in the average."""
    if len(group) < 2:
        raise FedstillError(
            f"round {round.number}: privacy.secure hides a client among others, but only one replied with {prototype}"
        )
    told = {reply.client: reply.message.values for reply in group}
    sizes = {reply.client: reply.samples if merge == "examples" else 1 for reply in group}
    whole = sum(sizes.values())
    return {
        "seal_key": {client: values["seal_key"] for client, values in told.items()},
        "mask_key": {client: values["mask_key"] for client, values in told.items()},
        "share": {client: size / whole for client, size in sizes.items()},
        "samples": {reply.client: reply.samples for reply in group},
    }


def _check_enough(algorithm: Algorithm, facts: Mapping[str, Any], group: Sequence[Reply], name: str, round: Round) -> None:
    count = len(facts["seal_key"])
    needed = threshold_of(settings(algorithm.task)[0].threshold, count)
    if len(group) < needed:
        raise FedstillError(
            f"round {round.number}: {len(group)} of {count} clients with {name} are left, fewer than the {needed} that "
            f"privacy.secure.threshold asks for"
            + (f"; the checkpoint of round {round.number - 1} can be resumed" if round.number > 1 else "")
        )


def _unmasked(
    algorithm: Algorithm, server: Server, facts: Mapping[str, Any], group: Sequence[Reply], name: str, round: Round
) -> Reply:
    """After the last exchange: the average over the clients whose models arrived, as if one client had sent it."""
    secure, point = settings(algorithm.task)
    arrived, order = set(facts["arrived"]), list(facts["seal_key"])
    summed = recovered_sum(
        server.parts[MASKED + name]["words"],
        arrived,
        {client: int(facts["mask_key"][client], 16) for client in facts["boxes"]},
        {reply.client: json.loads(str(reply.message.values["shares"])) for reply in group},
        order,
        threshold_of(secure.threshold, len(order)),
        where(round.number, name),
        point,
    )
    like = server.models[name]
    if algorithm.task.config.privacy.client is not None:  # updates, to be noised before they are rounded
        like = {key: tensor.double() for key, tensor in like.items()}
    model = shaped(summed / sum(facts["share"][client] for client in arrived), like)
    samples = sum(facts["samples"][client] for client in arrived)
    return Reply("the sum", "", name, samples, lambda: Message.of(model=model, samples=samples, clients=len(arrived)))
