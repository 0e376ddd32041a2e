"""FedMA: match the clients' neurons layer by layer, and retrain the layers above.

Wang, Yurochkin, Sun, Papailiopoulos and Khazaeni, Federated Learning with Matched Averaging, ICLR 2020. Algorithm 1: clients
send their first layer; the server matches and averages it and sends it back; clients put their second layer's inputs into the
new order, retrain with the first layer frozen and send the second; and so on. The last layer is averaged class by class. Here
each layer is one round of the history, with the bytes of that layer alone, and a cycle has as many rounds as the network has
layers.

Cycles after the first are FedMA *with communication*: every client starts from its slice of the global network, which consists
of the neurons matched to its own. The global network may be wider than any client's and is evaluated at its own width. Within a
cycle, the accuracy is that of the last whole network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fedstill.algorithm import Algorithm, Client, Options, Reply, Round, Server, algorithm
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State, clone
from fedstill.core.options import Positive
from fedstill.fusion.merges.matching import (
    Matching,
    layers_of,
    match_models,
    match_rows,
    popular,
    resized,
    rows_of,
    slice_of,
    spread,
    spread_shape,
    weighed_by_class,
)
from fedstill.local.reports import make_report
from fedstill.models.network import Network
from fedstill.task import Task
from fedstill.training.fit import fit
from fedstill.training.schedules import learning_rate

__all__ = ["FedMA", "FedMAOptions"]


class FedMAOptions(Options):
    """How layers are matched. The paper trains for 20 epochs and retrains for 20 per layer (``local.epochs``), FedDF's comparison
    for 5 per layer."""

    form: Literal["layers", "one-shot"] = "layers"
    """``layers``: one layer per round, with retraining (the paper). ``one-shot``: whole models matched at once."""

    retrain_epochs: Positive | None = None
    """Epochs of retraining with the matched layers frozen; as in ``local`` if not set."""

    matching: Matching = Matching()
    """The prior, with the authors' values, and the search."""


@algorithm
class FedMA(Algorithm[FedMAOptions]):
    """Matched averaging, with or without further communication."""

    name = "fedma"
    title = "FedMA"
    paper = "Wang et al., ICLR 2020"
    parts = {"report": "label counts", "merge": "matched, one layer per round"}
    Options = FedMAOptions

    def __init__(self, task: Task, options: FedMAOptions | None = None):
        super().__init__(task, options)
        if len(task.networks.prototypes) > 1:
            raise FedstillError(f"fedma needs clients of one architecture, not {', '.join(task.networks.prototypes)}")
        self.prototype = task.networks.prototypes[0]
        self.layers = layers_of(task.networks.get(self.prototype))  # a network that cannot be matched is refused here

    # -- the protocol: one layer per round, which names the phase; the same clients for a cycle --------------------------------

    def phases(self, round: int) -> Sequence[str]:
        """The layer of this round, or the whole model in the one-shot form."""
        return ("train",) if self.options.form == "one-shot" else (self.layers[(round - 1) % len(self.layers)],)

    def sent(self) -> Sequence[str]:
        """The model or its layers, and the label counts."""
        return ("model" if self.options.form == "one-shot" else "layer", "counts")

    def cohort(self, round: int) -> int:
        """Clients are sampled for a whole cycle (as in FedDF's appendix C.2)."""
        return round if self.options.form == "one-shot" else round - (round - 1) % len(self.layers)

    def required(self, phase: str) -> Sequence[str]:
        """A layer's weights, and for the last layer also the label counts, which weight it."""
        if self.options.form == "one-shot":
            return ("model", "counts")
        return ("layer", "counts") if phase == self.layers[-1] else ("layer",)

    def start(self) -> Server:
        """The initial network; nothing is matched yet."""
        return Server({self.prototype: self.task.networks.initial(self.prototype)}, {}, {"assignments": {}, "matching": {}})

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """At the start of a cycle, the client's slice of the network; later, the layer just matched and the assignment of the
        client's neurons to it."""
        index = 0 if self.options.form == "one-shot" else self.layers.index(round.phase)
        if index == 0:
            return Message.of(model=self.own_part(server, client))
        name = self.layers[index - 1]
        held = server.values["matching"].get(client, [])
        if len(held) < index:
            return Message.of(missed=name)
        matched = {part: server.parts["matched"][f"{name}.{part}"] for part in ("weight", "bias")}
        return Message.of(layer=matched, assignment={"neurons": torch.tensor(held[-1], dtype=torch.int32)})

    def own_part(self, server: Server, client: str) -> State:
        """The client's slice of the global network; a client that was not matched last time gets the most common neurons."""
        state, known = server.models[self.prototype], server.values["assignments"]
        if not known:
            return state
        template = self.task.networks.get(self.prototype).state_dict()
        widths = [len(template[f"{name}.bias"]) for name in self.layers[:-1]]
        return slice_of(self.layers, state, known.get(client) or popular(list(known.values()), widths))

    # -- the client ---------------------------------------------------------------------------------------------------------

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Train from the given layer upwards, with the layers below frozen; send that layer (one-shot: the whole model)."""
        if "missed" in message.values:
            layer = message.values["missed"]
            raise FedstillError(f"missed the matching of layer '{layer}'; it takes part again in the next cycle")
        index = 0 if phase == "train" else self.layers.index(phase)
        local = self.task.config.local
        if index == 0:
            network = client.task.networks.load(client.prototype, message.group("model"))
        else:
            network = self.joined(message, client, index)
            for name in self.layers[:index]:
                network.get_submodule(name).requires_grad_(False)
            if self.options.retrain_epochs:
                local = local.model_copy(update={"epochs": self.options.retrain_epochs, "steps": None})
        rate = learning_rate(local.optimizer.lr, local.schedule, client.round, self.task.config.rounds)
        done = fit(network, client.data, local, rng=client.rng("fit"), lr=rate)
        state = clone(network.state_dict())
        about: dict[str, Any] = {"samples": len(client.data), "loss": done.loss}
        if phase in ("train", self.layers[-1]):
            about["counts"] = make_report("counts", message, client, {})
        if phase == "train":
            return Message.of(model=state, **about)
        client.memory = Message.of(model=state)
        return Message.of(layer={part: state[f"{phase}.{part}"] for part in ("weight", "bias")}, **about)

    def joined(self, message: Message, client: Client, index: int) -> Network:
        """The client's network with the matched layer instead of its own, and the next layer's inputs in the new order."""
        state, layer = dict(client.memory.group("model")), message.group("layer")
        below, name = self.layers[index - 1], self.layers[index]
        state.update({f"{below}.{part}": tensor for part, tensor in layer.items()})
        place = message.group("assignment")["neurons"].long()
        state[f"{name}.weight"] = spread(state[f"{name}.weight"], place, len(layer["bias"]))
        return resized(client.task.networks.get(client.prototype), state)

    # -- the server ---------------------------------------------------------------------------------------------------------

    def screen(self, server: Server, client: str, message: Message) -> str | None:
        """A layer must be as wide as in the client's own network and take the matched layer's neurons as inputs; counts must be
        valid."""
        labels = message.group("counts").get("labels")
        if labels is not None and (labels.shape != (len(self.task.classes),) or bool((labels < 0).any())):
            return f"wrong counts: expected {len(self.task.classes)} numbers of samples"
        if self.options.form == "one-shot":
            return None
        matched = server.parts.get("matched", {})
        index = len(matched) // 2
        name, template, layer = self.layers[index], self.task.networks.get(self.prototype).state_dict(), message.group("layer")
        shapes = {part: tuple(template[f"{name}.{part}"].shape) for part in ("weight", "bias")}
        if index:
            below = f"{self.layers[index - 1]}.bias"
            shapes["weight"] = spread_shape(shapes["weight"], len(template[below]), len(matched[below]))
        for part, shape in shapes.items():
            found = layer.get(part)
            if found is None or tuple(found.shape) != shape or found.dtype != template[f"{name}.{part}"].dtype:
                return f"wrong layer: '{part}' of '{name}' should have shape {shape}"
        return None

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Match this round's layer; the last one completes the global network."""
        rng = round.rng("matching")
        if self.options.form == "one-shot":
            states = [reply.model for reply in replies]
            network = self.task.networks.get(self.prototype)
            state, found = match_models(network, states, counts_of(replies), self.options.matching, rng)
            round.note(widths=self.widths(state))
            held = {reply.client: [own.tolist() for own in a] for reply, a in zip(replies, found, strict=True)}
            return Server({self.prototype: state}, {}, {"assignments": held, "matching": {}})
        index, name = self.layers.index(round.phase), round.phase
        round.note(layer=name, layers=f"{index + 1} of {len(self.layers)}")
        left = round.total % len(self.layers)
        if round.number == 1 and left:
            text = f"{round.total} rounds are not whole cycles of {len(self.layers)} layers: the last {left} have no effect"
            round.notes.setdefault("warnings", []).append(text)
        matched: State = dict(server.parts["matched"]) if index else {}
        held = server.values["matching"] if index else {}
        weights = [reply.part("layer")["weight"] for reply in replies]
        biases = [reply.part("layer")["bias"] for reply in replies]
        if index == len(self.layers) - 1:
            matched[f"{name}.weight"], matched[f"{name}.bias"] = weighed_by_class(weights, biases, counts_of(replies))
            round.note(widths=self.widths(matched))
            return Server({self.prototype: matched}, {}, {"assignments": held, "matching": {}})
        rows = [rows_of(weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        layer = match_rows(rows, self.options.matching, rng)
        matched[f"{name}.weight"] = layer.atoms[:, :-1].reshape(-1, *weights[0].shape[1:])
        matched[f"{name}.bias"] = layer.atoms[:, -1].clone()
        round.note(accuracy_of="the last whole network")
        held = {
            reply.client: [*held.get(reply.client, []), own.tolist()]
            for reply, own in zip(replies, layer.assignments, strict=True)
        }
        return Server(server.models, {"matched": matched}, {**server.values, "matching": held})

    def widths(self, state: State) -> dict[str, int]:
        """The number of neurons of every hidden layer."""
        return {name: len(state[f"{name}.bias"]) for name in self.layers[:-1]}

    def loaded(self, prototype: str, state: State) -> Network:
        """The global network at its own width."""
        return resized(self.task.networks.get(prototype), state)


def counts_of(replies: Sequence[Reply]) -> Tensor:
    """The clients' label counts, (clients, classes)."""
    return torch.stack([reply.part("counts")["labels"].double().cpu() for reply in replies])
