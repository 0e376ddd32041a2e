"""Matched averaging: permutations are found again, strangers become new neurons, and what cannot be matched is refused."""

from __future__ import annotations

import math

import pytest
import torch

from fedstill.core.errors import FedstillError
from fedstill.fusion.merges import weighted_sum
from fedstill.fusion.merges.matching import (
    Matching,
    layers_of,
    match_models,
    match_rows,
    popular,
    resized,
    slice_of,
    spread,
    weighed_by_class,
)
from fedstill.models import build

NETWORKS = {
    "mlp": {"shape": (1, 6, 6), "hidden": [12, 9]},
    "lenet": {"shape": (1, 28, 28)},
    "cnn": {"shape": (1, 8, 8), "norm": "none", "hidden": 16},
    "vgg9": {"shape": (3, 16, 16), "dropout": 0.0},
}


def network_of(name):
    return build(name, classes=4, seed=0, **NETWORKS[name]).eval()


def permuted(network, rng):
    """The same function with the hidden neurons in another order, and the order of every layer."""
    layers, orders, state = layers_of(network), [], network.state_dict()
    for name in layers[:-1]:
        orders.append(torch.randperm(len(state[f"{name}.bias"]), generator=rng))
    return slice_of(layers, state, orders), orders


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_the_matched_average_of_permuted_copies_is_the_original_function(name):
    network, rng = network_of(name), torch.Generator().manual_seed(1)
    x = torch.randn(5, *NETWORKS[name]["shape"], generator=rng)
    copies = [permuted(network, rng) for _ in range(3)]
    states = [state for state, _ in copies]
    counts = torch.tensor([[3, 0, 2, 0], [1, 5, 2, 0], [0, 1, 0, 0]])
    # gamma well under the number of clients: a prior that does not ask for new neurons
    found, assignments = match_models(network, states, counts, Matching(gamma=0.1, sweeps=2), rng)
    for state, _ in copies:  # each copy is the same function
        assert torch.allclose(resized(network, state)(x), network(x), atol=1e-5)
    for layer in range(len(layers_of(network)) - 1):  # one permutation up to the common order of the global neurons
        orders = [order[layer] for _, order in copies]
        places = [torch.empty_like(order).scatter(0, order, own[layer]) for order, own in zip(orders, assignments, strict=True)]
        assert all(torch.equal(place, places[0]) for place in places)
    assert torch.allclose(resized(network, found)(x), network(x), atol=1e-5)
    plain = weighted_sum(states, [1 / 3] * 3)
    assert (resized(network, plain)(x) - network(x)).abs().max() > 1e-3


def test_gains_by_hand():
    # one neuron each, one weight and a bias; J = 2, s = S0 = 1, prior mean (0, b0)
    # joining: ((w+u)^2 + (b+c+b0)^2)/3 - (u^2 + (c+b0)^2)/2 + log(1/(2-1))
    # new:     (w^2 + (b+b0)^2)/2 - b0^2 - 2 log 1 + 2 log(gamma/2)
    u, c, w, b, b0 = 2.0, 0.3, 1.0, -0.2, 0.1
    join = ((w + u) ** 2 + (b + c + b0) ** 2) / 3 - (u**2 + (c + b0) ** 2) / 2
    fresh = (w**2 + (b + b0) ** 2) / 2 - b0**2
    border = 2 * math.exp((join - fresh) / 2)  # the gamma at which both are alike
    rows = [torch.tensor([[u, c]]), torch.tensor([[w, b]])]
    for gamma, width in ((border * 0.99, 1), (border * 1.01, 2)):
        found = match_rows(rows, Matching(gamma=gamma, sweeps=0), torch.Generator())
        assert len(found.atoms) == width
    posterior = match_rows(rows, Matching(gamma=0.1, sweeps=0, estimate="posterior"), torch.Generator()).atoms
    assert torch.allclose(posterior, torch.tensor([[(u + w) / 3, (c + b + b0) / 3]]))
    mean = match_rows(rows, Matching(gamma=0.1), torch.Generator()).atoms
    assert torch.allclose(mean, torch.tensor([[(u + w) / 2, (c + b) / 2]]))


def test_strangers_become_new_neurons_unless_the_network_must_not_grow():
    one, two = 6 * torch.eye(4, 9)[:2], 6 * torch.eye(4, 9)[2:]
    rng = torch.Generator().manual_seed(0)
    found = match_rows([one, two], Matching(), rng)
    assert len(found.atoms) == 4
    assert sorted(torch.cat(found.assignments).tolist()) == [0, 1, 2, 3]
    assert len(match_rows([one, two], Matching(grow=False), rng).atoms) == 2
    narrow = match_rows([two[:1], one], Matching(grow=False), rng)  # a narrower client fits into the widest one's neurons
    assert len(narrow.atoms) == 2


def test_a_network_grows_and_still_gives_every_client_its_own_slice():
    rng = torch.Generator().manual_seed(0)
    nets = [build("mlp", classes=3, shape=(5,), hidden=[4, 3], seed=s) for s in (1, 2)]
    states = [{k: 6 * v for k, v in net.state_dict().items()} for net in nets]
    found, assignments = match_models(nets[0], states, torch.ones(2, 3), Matching(), rng)
    assert len(found["body.0.bias"]) > 4
    wide = resized(nets[0], found)
    assert wide(torch.zeros(2, 5)).shape == (2, 3)
    own = slice_of(layers_of(nets[0]), found, assignments[1])
    assert {k: v.shape for k, v in own.items()} == {k: v.shape for k, v in states[1].items()}
    # the neuron that is client 1's alone is the client's, untouched
    held = torch.bincount(torch.cat([a[0] for a in assignments]))
    alone = next(j for j, atom in enumerate(assignments[1][0].tolist()) if held[atom] == 1)
    assert torch.allclose(own["body.0.weight"][alone], states[1]["body.0.weight"][alone])


def test_inputs_follow_the_neurons_in_every_kind_of_layer():
    conv = torch.arange(2 * 2 * 3 * 3).float().reshape(2, 2, 3, 3)
    wide = spread(conv, torch.tensor([2, 0]), 3)
    assert wide.shape == (2, 3, 3, 3)
    assert torch.equal(wide[:, 2], conv[:, 0])
    assert not wide[:, 1].any()
    linear = torch.arange(8.0).reshape(1, 8)  # two channels of 2 x 2 behind a convolution
    assert spread(linear, torch.tensor([1, 0]), 2).tolist() == [[4, 5, 6, 7, 0, 1, 2, 3]]


def test_the_last_layer_is_weighed_by_class():
    weights = [torch.tensor([[1.0], [1.0]]), torch.tensor([[5.0], [5.0]])]
    biases = [torch.tensor([0.0, 0.0]), torch.tensor([4.0, 4.0])]
    weight, bias = weighed_by_class(weights, biases, torch.tensor([[3, 0], [1, 0]]))
    assert weight.flatten().tolist() == [2.0, 3.0]  # class 1 belongs to nobody: a plain mean
    assert bias.tolist() == [1.0, 2.0]


def test_a_newcomer_gets_the_neurons_that_most_clients_have():
    assert popular([[[0, 3]], [[3, 1]], [[1, 3]]], [2]) == [[1, 3]]


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("resnet8", {}, "residual"),
        ("cnn-small", {"norm": "group"}, "norm layer"),
        ("mlp", {"projection": 4}, "projection"),
    ],
)
def test_what_cannot_be_matched_is_refused_with_the_reason(name, options, reason):
    with pytest.raises(FedstillError, match=reason):
        layers_of(build(name, classes=3, shape=(1, 16, 16), **options))
