"""FD: clients exchange their mean predictions of each label.

Jeong et al., Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under Non-IID Private
Data, 2018. While it trains, a client averages its outputs by the true label. The server sends each client the mean of the
*others'* averages, which the client then learns from as well:

    before:  CE(f(x), y)
    after:   CE(f(x), y) + gamma * CE(f(x), mean over the other holders j of y of F_j[y])

A round costs classes x classes numbers each way. No public data is needed, and clients may have different architectures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithm import Client, Reply, Round, Server, algorithm
from fedstill.algorithms.personal import PersonalModels, PersonalOptions
from fedstill.core.message import Message, State
from fedstill.local.reports.noise import noised_rows, report_noise
from fedstill.training.fit import Batch, Term

__all__ = ["FD", "FDOptions", "label_means", "leave_one_out"]


class FDOptions(PersonalOptions):
    """How predictions are averaged and learned."""

    gamma: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the others' mean predictions in a client's loss."""

    space: Literal["logits", "probabilities"] = "logits"
    """Whether outputs are averaged as logits or after the softmax."""


def leave_one_out(means: Tensor, held: Tensor, own: int | None) -> tuple[Tensor, Tensor]:
    """For client ``own`` and every label: the mean over the *other* holders of the label, and whether there are any.

    ``means`` is (clients, labels, classes), ``held`` (clients, labels). A client without a reply (None) gets the mean of all.

    >>> means = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[9.0, 9.0]]])  # one label
    >>> told, known = leave_one_out(means, torch.tensor([[True], [True], [False]]), 0)
    >>> told.tolist(), known.tolist()
    ([[0.0, 1.0]], [True])
    """
    others = held.clone()
    if own is not None:
        others[own] = False
    number = others.sum(0)
    total = torch.where(others[:, :, None], means, 0).sum(0)
    return total / number.clamp(min=1)[:, None], number > 0


def label_means(classes: int, space: str, gamma: float, told: State) -> tuple[Term, Tensor, Tensor]:
    """A term that learns from the received means (``told``) and sums the outputs by label as it runs; the sums; the counts."""
    sums, counts = torch.zeros(classes, classes), torch.zeros(classes)
    target = told["means"] if told else None
    if target is not None and space == "logits":
        target = target.softmax(1)

    def term(batch: Batch) -> Tensor:
        outputs = batch.logits.detach()
        outputs = outputs if space == "logits" else outputs.softmax(1)
        labels = batch.y.cpu()
        sums.index_add_(0, labels, outputs.float().cpu())
        counts.index_add_(0, labels, torch.ones(len(labels)))
        if target is None:
            return batch.logits.new_zeros(())
        wanted = target[labels].to(batch.logits.device)
        known = told["known"][labels].to(batch.logits.device)
        return gamma * (-(wanted * batch.logits.log_softmax(1)).sum(1) * known).mean()

    return term, sums, counts


def noised_means(client: Client, means: Tensor, classes: int) -> State:
    """The means by label with noise (``privacy.reports``), of every label. Those that the client holds are told from the others
    by their noised numbers of samples: at least twice the deviation of the noise."""
    own = client.data.counts(classes).double()
    rows, counts = noised_rows(client, "predictions", means, (own, 1.0))
    options = client.task.config.privacy.reports
    assert options is not None
    deviation = report_noise(options, client.task.config.rounds) * math.sqrt(2)  # of the second of two parts
    return {"means": rows.float(), "held": counts >= max(1.0, 2 * deviation)}


@algorithm
class FD(PersonalModels[FDOptions]):
    """Federated distillation by label, leave-one-out as published and averaged over the holders of a label."""

    name = "fd"
    title = "FD"
    paper = "Jeong et al., 2018"
    parts = {"local term": "distil from the others' label means", "report": "mean predictions by label"}
    Options = FDOptions

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """The others' mean of each label; empty in the first round."""
        if not server.parts:
            return Message()
        means, held = server.parts["means"], server.parts["held"]
        names = sorted(means)  # always summed in the same order, also after a resume
        own = names.index(client) if client in names else None
        told, known = leave_one_out(torch.stack([means[n] for n in names]), torch.stack([held[n] for n in names]), own)
        return Message.of(told={"means": told, "known": known})

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Train with the term; reply with the outputs of the round, averaged by label."""
        network = self.own_network(client)
        options, classes = self.options, len(self.task.classes)
        term, sums, counts = label_means(classes, options.space, options.gamma, message.group("told"))
        done = self.train_privately(network, client, "fit", [term])
        predictions = {"means": sums / counts.clamp(min=1)[:, None], "held": counts > 0}
        if self.task.config.privacy.reports is not None:
            predictions = noised_means(client, predictions["means"], classes)
        return self.answer(network, client, done).with_parts(predictions=predictions)

    def screen(self, server: Server, client: str, message: Message) -> str | None:
        """The predictions must hold a vector for every label, and the labels that the client has."""
        classes, predictions = len(self.task.classes), message.group("predictions")
        if predictions.keys() != {"means", "held"}:
            return "predictions should be 'means' and 'held'"
        means, held = predictions["means"], predictions["held"]
        if means.shape != (classes, classes) or held.shape != (classes,) or held.dtype != torch.bool:
            return f"wrong shape: expected the means of {classes} labels"
        return None

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Keep all clients' predictions; ``instruct`` leaves out the receiving client's own."""
        predictions = {reply.client: reply.part("predictions") for reply in replies}
        parts = {kind: {name: parts[kind] for name, parts in predictions.items()} for kind in ("means", "held")}
        return Server({}, parts, {"accuracies": self.reported(server, replies, round)})
