"""DaFKD, Appendix B: the discriminators and the models stay with the clients, and the server learns only sums over them.

A round has three exchanges instead of one:

* ``train``: clients train as in Algorithm 1 and keep the result; they send a public key, and the server distributes all keys;
* ``share``: clients send their masked weights; the masks cancel in the sums, which are Eq. 4 and 6;
* ``speak``: clients send their predictions of the common samples, times their factors, masked; the sums are Eq. 7 and 8.

:class:`~fedstill.algorithms.dafkd.DaFKD` calls these functions if ``secure = true``; docs/dafkd.md says who can learn what.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedstill.algorithm import Client, Reply, Round, Server
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State
from fedstill.fusion.distillation.transfer import learn, note_merged
from fedstill.fusion.ensemble import scored_table
from fedstill.fusion.merges import by_examples, uniform, with_statistics
from fedstill.fusion.screening import not_finite
from fedstill.fusion.sources import draw
from fedstill.fusion.weightings.discriminator import DiscriminatorOptions
from fedstill.local.adversarial import Discriminator
from fedstill.local.masking import is_key, key_pair, masked, unmasked_state, unmasked_sum
from fedstill.models.binary import binary_weights
from fedstill.models.predict import apply

if TYPE_CHECKING:
    from fedstill.algorithms.dafkd import DaFKD

__all__ = ["LATER", "check", "expected", "fuse", "instruct", "phases", "required", "train", "withhold", "without_key"]

LATER = SHARE, SPEAK = "share", "speak"  # the exchanges after the first


def check(system: DaFKD) -> None:
    """Refuse options that need a single client's model or discriminator, which the server never sees."""
    task, chosen = system.task, system.options
    if chosen.weighting != "discriminator" or chosen.source.kind != "generator" or chosen.drop_worst or chosen.contrastive:
        raise FedstillError(
            "secure = true sums discriminator weights over generated samples: it needs weighting = 'discriminator', "
            "source.kind = 'generator', no drop_worst and no contrastive term"
        )
    if DiscriminatorOptions.model_validate(chosen.weighting_options) != DiscriminatorOptions():
        raise FedstillError("secure = true sums the factors of Eq. 7 as printed: remove weighting_options")
    if chosen.distillation.fresh or task.config.model.buffers == "local":
        raise FedstillError(
            "secure = true asks every client once, for predictions of the model that it trained: remove "
            "distillation.fresh and model.buffers = 'local'"
        )
    if chosen.merge not in ("uniform", "examples"):
        raise FedstillError(f"secure = true hides the models that merge = '{chosen.merge}' needs: use 'uniform' or 'examples'")
    if any(binary_weights(task.networks.get(name)) for name in task.networks.prototypes):
        raise FedstillError("secure = true sums weights, which 1-bit clients do not send: use another architecture")


# -- the exchanges ---------------------------------------------------------------------------------------------------------


def phases(system: DaFKD, round: int) -> Sequence[str]:
    """One for the keys, one for the masked weights and, if the round distils, one for the masked predictions."""
    return ("train", SHARE, SPEAK) if system.distils(round) else ("train", SHARE)


def required(phase: str) -> Sequence[str]:
    """The tensor groups of a reply: none in the first exchange (a key), then masked weights, then masked predictions."""
    return {"train": (), SHARE: ("shared_model", "shared_generator"), SPEAK: ("answers",)}[phase]


def expected(system: DaFKD, server: Server, client: str) -> dict[str, State]:
    """The names, shapes and types of the masked tensors."""
    answers = torch.empty(system.options.source.size, len(system.task.classes) + 1, device="meta")
    hidden: dict[str, State] = {
        "shared_model": server.models[system.task.clients[client].prototype],
        "shared_generator": server.parts["generator"],
        "answers": {"masked": answers},
    }
    return {
        name: {key: torch.empty(tensor.shape, dtype=torch.int64, device="meta") for key, tensor in state.items()}
        for name, state in hidden.items()
    }


def without_key(message: Message) -> bool:
    """Whether a reply of the first exchange, which has no tensors, lacks a key."""
    return not message.groups() and not is_key(str(message.values.get("key", "")))


# -- in each selected client -----------------------------------------------------------------------------------------------


def withhold(reply: Message, client: Client) -> Message:
    """First exchange: a public key instead of the trained weights, which stay in the client's memory."""
    secret, public = key_pair()
    kept = client.memory.with_parts(trained=reply.group("model"), made=reply.group("generator"), secret=f"{secret:x}")
    wrong = not_finite(kept)
    if wrong is not None:  # the mask would hide it from the server
        raise FedstillError(f"its training diverged: '{wrong}' is not finite")
    client.memory = kept
    return Message.of(key=f"{public:x}", samples=reply.values["samples"], loss=reply.values["loss"])


def train(system: DaFKD, message: Message, client: Client, phase: str) -> Message:
    """A client's reply in the exchanges after the first."""
    return masked_weights(system, message, client) if phase == SHARE else masked_predictions(system, message, client)


def masked_weights(system: DaFKD, message: Message, client: Client) -> Message:
    """Second exchange: the client's share of Eq. 4 and 6, masked. The server may know only sums of models: a client's own model
    would give it the client's soft predictions, and with them linear equations for its factors."""
    secret, keys = int(str(client.memory.values["secret"]), 16), keys_in(message)
    mates = {name: keys[name] for name in json.loads(str(message.values["mates"]))}  # those of the same architecture

    def hidden(what: str, share: str, publics: Mapping[str, int]) -> State:
        part = float(message.values[share])
        return {
            name: masked(part * tensor.double(), client.id, secret, publics, f"round {client.round} {what} {name}")
            for name, tensor in client.memory.group(what).items()
        }

    reply = Message.of(
        shared_model=hidden("trained", "own_share", mates),
        shared_generator=hidden("made", "share", keys),
        samples=len(client.data),
    )
    spent = ("made",) if system.distils(client.round) else ("made", "trained", "secret")
    client.memory = client.memory.without(*spent)
    return reply


def masked_predictions(system: DaFKD, message: Message, client: Client) -> Message:
    """Third exchange: ``f(theta_k; x_i) s(w_k; x_i)`` and ``f(theta_k; x_i)`` of the common samples, masked.

    The paper sends the product in the clear. Soft predictions sum to one, so the product's sum over the classes *is* the factor.
    Here the product is masked as well, and the server learns only the sums over the clients.
    """
    task, options = system.task, system.options
    generator = system.own_generator(message.group("generator"))
    rng = torch.Generator().manual_seed(int(message.values["pool_seed"]))
    samples = draw(options.source, task, rng, generator)
    network = system.view(task.networks.load(client.prototype, client.memory.group("trained")))
    mine = client.memory.group("discriminator")
    discriminator = Discriminator(network, mine, sharing=not options.no_sharing).eval()

    def products(x: Tensor) -> Tensor:
        features = network.features(x)
        outputs = network.head(features)
        if system.space == "probabilities":
            outputs = (outputs / options.distillation.temperature).softmax(1)
        factor = torch.sigmoid(discriminator(x, features))[:, None]
        return torch.cat([factor * outputs, factor], 1)

    secret = int(str(client.memory.values["secret"]), 16)
    hidden = masked(apply(products, network, samples), client.id, secret, keys_in(message), f"round {client.round} answers")
    client.memory = client.memory.without("trained", "secret")
    return Message.of(answers={"masked": hidden}, samples=len(client.data))


def keys_in(message: Message) -> dict[str, int]:
    """All clients' public keys, as sent by the server."""
    return {name: int(key, 16) for name, key in json.loads(str(message.values["keys"])).items()}


# -- in the server -----------------------------------------------------------------------------------------------------------


def instruct(system: DaFKD, server: Server, client: str, round: Round) -> Message:
    """Messages after the first exchange: all keys, with the client's shares in the sums or with the generator and the seed of the
    common samples."""
    keys = json.dumps(server.values["keys"])
    if round.phase == SHARE:
        own, whole = server.values["shares"][client]
        kind = {name: system.task.clients[name].prototype for name in server.values["keys"]}
        mates = json.dumps([name for name in kind if kind[name] == kind[client]])
        return Message.of(keys=keys, mates=mates, own_share=own, share=whole)
    seed = system.source_rng(round).initial_seed()
    return Message.of(generator=server.parts["pool-generator"], pool_seed=seed, keys=keys)


def fuse(system: DaFKD, server: Server, replies: Sequence[Reply], round: Round) -> Server:
    """The server's step after each exchange."""
    step = {"train": collect_keys, SHARE: sum_weights, SPEAK: sum_predictions}[round.phase]
    return step(system, server, replies, round)


def collect_keys(system: DaFKD, server: Server, replies: Sequence[Reply], round: Round) -> Server:
    """After the first exchange: the clients that take part, their keys, and their shares in the sums of Eq. 4 and 6."""
    groups = {name: [r for r in replies if r.prototype == name] for name in {r.prototype for r in replies}}
    lonely = sorted(name for name, group in groups.items() if len(group) < 2)
    if lonely:
        raise FedstillError(
            f"round {round.number}: secure = true hides a client among others, but only one replied with {', '.join(lonely)}"
        )
    weigh = by_examples if system.options.merge == "examples" else uniform
    shares = {reply.client: [0.0, share] for reply, share in zip(replies, weigh(replies), strict=True)}
    for group in groups.values():
        for reply, share in zip(group, weigh(group), strict=True):
            shares[reply.client][0] = share
    keys = {reply.client: reply.message.values["key"] for reply in replies}
    return Server(server.models, server.parts, {**server.values, "keys": keys, "shares": shares})


def sum_weights(system: DaFKD, server: Server, replies: Sequence[Reply], round: Round) -> Server:
    """After the second exchange: the averages, whose terms the server does not know, and where the students start."""
    check_complete(server, replies, round, "share its weights")
    generator = unmasked_state([r.part("shared_generator") for r in replies], server.parts["generator"])  # Eq. 4
    merged = dict(server.models)
    for name in sorted({reply.prototype for reply in replies}):  # Eq. 6
        group = [reply.part("shared_model") for reply in replies if reply.prototype == name]
        merged[name] = with_statistics(system.task, name, unmasked_state(group, server.models[name]))
    values = {name: value for name, value in server.values.items() if name != "shares"}
    if not system.distils(round.number):
        return Server(merged, {"generator": generator}, {name: value for name, value in values.items() if name != "keys"})
    note_merged(system.task, merged, round)
    pool = generator if system.options.pool_generator == "current" else server.parts["generator"]
    starts = system.starts(server, merged, round)
    return Server({**merged, **starts}, {"generator": generator, "pool-generator": pool}, values)


def sum_predictions(system: DaFKD, server: Server, replies: Sequence[Reply], round: Round) -> Server:
    """After the third exchange: the masks cancel in the sum over the clients; then Eq. 7 and 8 as usual."""
    check_complete(server, replies, round, "speak")
    task, options = system.task, system.options.distillation
    sums = unmasked_sum(reply.part("answers")["masked"] for reply in replies).float().to(task.device)
    mass = sums[:, -1:]
    nobody = mass.new_empty(len(mass), 0)  # the weights of single clients are unknown
    table = scored_table(sums[:, :-1], mass, nobody, space=system.space, temperature=options.temperature)
    samples = system.draw(Server({}, {"generator": server.parts["pool-generator"]}), round)
    models = learn(task, server.models, samples, table, options, round, view=system.view)
    parts = {name: state for name, state in server.parts.items() if name != "pool-generator"}
    values = {name: value for name, value in server.values.items() if name != "keys"}
    round.offer(server.models, models)
    return Server({**server.models, **models}, parts, values)


def check_complete(server: Server, replies: Sequence[Reply], round: Round, what: str) -> None:
    """Refuse incomplete replies: the masks cancel only if every client that sent a key has replied."""
    missing = server.values["keys"].keys() - {reply.client for reply in replies}
    if missing:
        raise FedstillError(
            f"round {round.number}: {', '.join(sorted(missing))} did not {what}, so the masks of the others do not cancel; "
            f"the checkpoint of round {round.number - 1} can be resumed"
        )
