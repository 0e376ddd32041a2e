"""Matched averaging: neurons of different clients are paired before they are averaged.

Wang et al., Federated Learning with Matched Averaging, ICLR 2020 (FedMA), with the Beta-Bernoulli process of Yurochkin et al.,
Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019. Hidden neurons have no order, so averaging them by
position mixes unrelated ones. Here the Hungarian algorithm assigns every neuron of a client to a *global* neuron, an existing one
or a new one, and the next layer's inputs follow. A layer's neuron is its row of incoming weights with its bias last.

Networks must be plain chains of layers: a normalisation layer has its own statistics, and a residual connection forces two
layers into the same order, which a permutation of one of them breaks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedstill.algorithm import Reply, Round, Server
from fedstill.core.errors import FedstillError
from fedstill.core.message import State
from fedstill.core.options import Part, Positive
from fedstill.fusion.merges.contract import merge
from fedstill.models.cnn import CNN, LeNet
from fedstill.models.mlp import MLP
from fedstill.models.network import Network
from fedstill.models.vgg import VGG
from fedstill.task import Task

__all__ = [
    "Matched",
    "Matching",
    "layers_of",
    "match_models",
    "match_rows",
    "popular",
    "resized",
    "rows_of",
    "slice_of",
    "spread",
    "spread_shape",
    "weighed_by_class",
]

CHAINS = (MLP, CNN, LeNet, VGG)
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
COUNTED = 10  # FedMA counts at most ten clients of a neuron, so that old neurons do not attract everything


class Matching(Part):
    """The Beta-Bernoulli prior and the search; the defaults are FedMA's."""

    gamma: Annotated[float, Field(gt=0)] = 7.0
    """Mass of the prior on new neurons: the larger, the wider the merged network."""

    variance: Annotated[float, Field(gt=0)] = 1.0
    """Variance of a client's neuron around its global one, sigma^2."""

    prior_variance: Annotated[float, Field(gt=0)] = 1.0
    """Variance of a global neuron around the prior mean, sigma_0^2."""

    prior_bias: float = 0.1
    """Prior mean of a bias; the prior mean of a weight is 0."""

    sweeps: Annotated[int, Field(ge=0)] = 5
    """How many times every client is removed and matched again."""

    widest: Positive = 700
    """Layer width beyond which a client adds at most one neuron."""

    grow: bool = True
    """Whether neurons that match no global neuron become new ones."""

    estimate: Literal["mean", "posterior"] = "mean"
    """A global neuron is the mean of those matched to it (the paper's Eq. 1 with squared distances), or the posterior mean, which
    pulls it towards the prior by 1/(count + 1) (the authors' code)."""


@dataclass(frozen=True)
class Matched:
    """Global neurons (count, inputs + 1), and for every client the global neuron of each of its neurons."""

    atoms: Tensor
    assignments: list[Tensor]


def layers_of(network: Network) -> list[str]:
    """The names of the layers with weights, from input to output. Refuses networks that cannot be matched, with the reason.

    >>> from fedstill.models import build
    >>> layers_of(build("lenet", classes=10, shape=(1, 28, 28)))
    ['body.0', 'body.3', 'fc.0', 'fc.2', 'head']
    >>> layers_of(build("cnn", classes=10, shape=(1, 28, 28)))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedstill.core.errors.FedstillError: neurons behind a norm layer cannot be matched (CNN has BatchNorm2d)...
    """
    kind = type(network).__name__
    if not isinstance(network, CHAINS):
        raise FedstillError(
            f"matching needs a plain chain of layers, and {kind} is not known to be one "
            "(residual connections fix the order of neurons); use mlp, lenet, cnn with model.norm = 'none', or vgg9"
        )
    for module in network.modules():
        if isinstance(module, NORMS):
            norm = type(module).__name__
            raise FedstillError(f"neurons behind a norm layer cannot be matched ({kind} has {norm}); set model.norm = 'none'")
    if not isinstance(network.neck, nn.Identity):
        raise FedstillError("matching needs a network without projection or bottleneck")
    return [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]


def resized(network: Network, state: State) -> Network:
    """A network of the same kind with the weights of ``state``, its layers as wide as these.

    >>> from fedstill.models import build
    >>> net = build("mlp", classes=2, shape=(3,), hidden=[4], seed=0)
    >>> state = {"body.0.weight": torch.ones(5, 3), "body.0.bias": torch.zeros(5),
    ...          "head.weight": torch.ones(2, 5), "head.bias": torch.zeros(2)}
    >>> resized(net, state)(torch.ones(1, 3)).tolist()
    [[15.0, 15.0]]
    """
    other = copy.deepcopy(network)
    device = next(network.parameters()).device
    for name in layers_of(other):
        layer = other.get_submodule(name)
        weight, bias = (state[f"{name}.{part}"].detach().clone().to(device) for part in ("weight", "bias"))
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
        if isinstance(layer, nn.Conv2d):
            layer.out_channels, layer.in_channels = weight.shape[:2]
        elif isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = weight.shape
    other.feature_dim = int(state[f"{layers_of(other)[-1]}.weight"].shape[1])
    return other


def rows_of(weight: Tensor, bias: Tensor) -> Tensor:
    """A layer's neurons, one per row: incoming weights, then the bias."""
    return torch.cat([weight.flatten(1), bias[:, None]], 1)


def spread(weight: Tensor, assignment: Tensor, atoms: int) -> Tensor:
    """``weight`` with its inputs in the order of the global neurons, zero for those that the client lacks.

    An input is a column of a linear layer, a k x k patch of a convolution, or, in the first linear layer after convolutions, the
    h x w block of a channel.

    >>> spread(torch.tensor([[1.0, 2.0]]), torch.tensor([2, 0]), 3).tolist()
    [[2.0, 0.0, 1.0]]
    """
    blocks = weight.reshape(len(weight), len(assignment), -1)
    full = blocks.new_zeros(len(weight), atoms, blocks.shape[2])
    full[:, assignment.to(weight.device)] = blocks
    return full.reshape(spread_shape(weight.shape, len(assignment), atoms))


def spread_shape(shape: Sequence[int], own: int, atoms: int) -> tuple[int, ...]:
    """The shape of a weight with ``own`` inputs after it is spread to ``atoms`` inputs.

    >>> spread_shape((8, 4, 3, 3), 4, 6), spread_shape((8, 40), 4, 6)
    ((8, 6, 3, 3), (8, 60))
    """
    out, inputs, *kernel = shape
    return (out, inputs // own * atoms, *kernel)


def _taken(weight: Tensor, assignment: Tensor, atoms: int) -> Tensor:
    """The inverse of :func:`spread`: the inputs that a client has, in its own order."""
    blocks = weight.reshape(len(weight), atoms, -1)[:, assignment.to(weight.device)]
    return blocks.reshape(spread_shape(weight.shape, atoms, len(assignment)))


def match_rows(rows: Sequence[Tensor], options: Matching, rng: torch.Generator) -> Matched:
    """Assign every client's neurons (one per row) to global neurons, by maximum a posteriori under the Beta-Bernoulli process.

    Start with the client with the most neurons, add the others, then remove every client and match it again, ``sweeps`` times.

    >>> one = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    >>> found = match_rows([one, one.flip(0)], Matching(), torch.Generator())
    >>> found.assignments[1].tolist(), len(found.atoms)
    ([1, 0], 2)
    """
    clients, kind = len(rows), rows[0].dtype
    exact = [r.double() for r in rows]
    one, prior_precision = 1 / options.variance, 1 / options.prior_variance
    prior = exact[0].new_zeros(exact[0].shape[1])
    prior[-1] = options.prior_bias * prior_precision  # in natural parameters: mean times precision
    order = sorted(range(clients), key=lambda j: -len(rows[j]))
    counts = torch.zeros(0, dtype=torch.long, device=prior.device)
    sums = exact[0].new_zeros(0, len(prior))  # of the matched neurons, without the prior
    assignments: list[Tensor] = [torch.zeros(0, dtype=torch.long)] * clients

    def add(j: int) -> None:
        nonlocal counts, sums
        mine, width = exact[j], len(counts)
        precision = counts * one + prior_precision
        natural = sums * one + prior
        known = natural.square().sum(1)
        gain = (one**2 * mine.square().sum(1, keepdim=True) + 2 * one * mine @ natural.T + known) / (one + precision)
        seen = counts.clamp(max=COUNTED).double()
        gain = gain - known / precision + (seen / (clients - seen)).log()
        room = min(len(mine), max(options.widest - width, 1)) if options.grow or width == 0 else 0
        slots = torch.arange(1, max(room, len(mine) - width) + 1, device=mine.device).double()
        fresh = (mine * one + prior).square().sum(1) / (one + prior_precision) - prior.square().sum() / prior_precision
        new = fresh[:, None] - 2 * slots.log() + 2 * math.log(options.gamma / clients)
        from scipy.optimize import linear_sum_assignment  # slow

        chosen = torch.from_numpy(linear_sum_assignment(torch.cat([gain, new], 1).cpu().numpy(), maximize=True)[1])
        born = torch.unique(chosen[chosen >= width])  # the slots used, renumbered without gaps
        chosen[chosen >= width] = width + torch.searchsorted(born, chosen[chosen >= width])
        chosen = chosen.to(mine.device)
        counts = torch.cat([counts, counts.new_zeros(len(born))]).index_add(0, chosen, torch.ones_like(chosen))
        sums = torch.cat([sums, sums.new_zeros(len(born), sums.shape[1])]).index_add(0, chosen, mine)
        assignments[j] = chosen

    def remove(j: int) -> None:
        nonlocal counts, sums
        counts = counts.index_add(0, assignments[j], -torch.ones_like(assignments[j]))
        sums = sums.index_add(0, assignments[j], -exact[j])
        stay = counts > 0
        place = stay.long().cumsum(0) - 1
        counts, sums = counts[stay], sums[stay]
        for i in range(clients):
            if i != j:
                assignments[i] = place[assignments[i]]

    for j in order:
        add(j)
    for _ in range(options.sweeps if clients > 1 else 0):
        for j in torch.randperm(clients, generator=rng).tolist():
            remove(j)
            add(j)
    if options.estimate == "mean":
        atoms = sums / counts[:, None]
    else:
        atoms = (sums * one + prior) / (counts * one + prior_precision)[:, None]
    return Matched(atoms.to(kind), assignments)


def weighed_by_class(weights: Sequence[Tensor], biases: Sequence[Tensor], counts: Tensor) -> tuple[Tensor, Tensor]:
    """The last layer: class c's row is the mean over the clients, weighted by their numbers of samples of c; ``counts`` is
    (clients, classes). A class that no client has is averaged with equal weights.

    >>> one, two = torch.zeros(2, 1), torch.ones(2, 1)
    >>> weighed_by_class([one, two], [one[:, 0], two[:, 0]], torch.tensor([[3, 0], [1, 0]]))[0].tolist()
    [[0.25], [0.5]]
    """
    total = counts.sum(0)
    shares = torch.where(total > 0, counts / total.clamp(min=1), 1 / len(counts)).to(weights[0].device, weights[0].dtype)
    weight = torch.stack([share[:, None] * w for share, w in zip(shares, weights, strict=True)]).sum(0)
    return weight, torch.stack([share * b for share, b in zip(shares, biases, strict=True)]).sum(0)


def match_models(
    network: Network, states: Sequence[State], counts: Tensor, options: Matching, rng: torch.Generator
) -> tuple[State, list[list[Tensor]]]:
    """The one-shot form: match whole models layer by layer, without retraining in between.

    Returns the global state, possibly wider than the clients', and every client's assignments, one per hidden layer.
    """
    *hidden, last = layers_of(network)
    state: State = {}
    assignments: list[list[Tensor]] = [[] for _ in states]
    atoms = 0
    for name in [*hidden, last]:
        weights = [s[f"{name}.weight"] for s in states]
        if atoms:
            weights = [spread(w, own[-1], atoms) for w, own in zip(weights, assignments, strict=True)]
        biases = [s[f"{name}.bias"] for s in states]
        if name == last:
            state[f"{name}.weight"], state[f"{name}.bias"] = weighed_by_class(weights, biases, counts)
            break
        found = match_rows([rows_of(w, b) for w, b in zip(weights, biases, strict=True)], options, rng)
        atoms = len(found.atoms)
        state[f"{name}.weight"] = found.atoms[:, :-1].reshape(atoms, *weights[0].shape[1:])
        state[f"{name}.bias"] = found.atoms[:, -1].clone()
        for own, assignment in zip(assignments, found.assignments, strict=True):
            own.append(assignment)
    return state, assignments


def slice_of(layers: Sequence[str], state: State, assignment: Sequence[Sequence[int] | Tensor]) -> State:
    """A client's part of a global state, in the client's own size: its neurons of every hidden layer, in its own order."""
    own: State = {}
    before: Tensor | None = None
    for index, name in enumerate(layers):
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        if before is not None:
            weight = _taken(weight, before, len(state[f"{layers[index - 1]}.bias"]))
        if index < len(layers) - 1:
            before = torch.as_tensor(assignment[index], dtype=torch.long)
            weight, bias = weight[before.to(weight.device)], bias[before.to(bias.device)]
        own[f"{name}.weight"], own[f"{name}.bias"] = weight.clone(), bias.clone()
    return own


def popular(assignments: Sequence[Sequence[Sequence[int]]], widths: Sequence[int]) -> list[list[int]]:
    """The neurons that most clients share, for a client that has never been matched: in every hidden layer, as many as its own
    network has.

    >>> popular([[[0, 1]], [[2, 1]]], [2])
    [[0, 1]]
    """
    chosen = []
    for layer, width in enumerate(widths):
        held = torch.bincount(torch.cat([torch.as_tensor(own[layer]) for own in assignments]))
        chosen.append(sorted(held.argsort(descending=True, stable=True)[:width].tolist()))
    return chosen


@merge("matched")
def matched(task: Task, server: Server, replies: Sequence[Reply], round: Round) -> dict[str, State]:
    """Each prototype matched over its own clients without growing, so that the student keeps its architecture. The last layer
    is weighted by class if the clients report their counts, otherwise by their numbers of examples."""
    merged = dict(server.models)
    for name in server.models:
        group = [reply for reply in replies if reply.prototype == name]
        if not group:
            continue
        counts = torch.stack(
            [
                reply.part("counts").get("labels", torch.full((len(task.classes),), reply.samples)).double().cpu()
                for reply in group
            ]
        )
        states = [reply.model for reply in group]
        merged[name], _ = match_models(
            task.networks.get(name, "student"), states, counts, Matching(grow=False), round.rng("matching", name)
        )
    return merged
