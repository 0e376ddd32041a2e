"""1-bit weights: the estimator's gradient, the scale, packing that loses nothing, and that it learns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedstill import models
from fedstill.models.binary import BinaryConv2d, pack_bits, unpack_bits


def network(**options):
    return models.build("resnet8-binary", **{"classes": 5, "shape": (3, 16, 16), "seed": 0, **options})


def test_the_scale_is_the_least_squares_fit_of_the_signs():
    conv = BinaryConv2d(2, 3, 3, bias=False)
    x = torch.randn(2, 2, 5, 5)
    w = conv.weight.detach()
    alpha = torch.stack([(f * f.sign()).sum() / f.numel() for f in w])  # argmin |w - a sign(w)|^2
    assert torch.allclose(conv(x), F.conv2d(x, w.sign() * alpha.view(-1, 1, 1, 1)), atol=1e-5)


def test_the_gradient_is_xnor_nets():
    conv = BinaryConv2d(1, 1, (1, 2), bias=False)
    conv.weight.data = torch.tensor([[[[0.5, -1.5]]]])
    conv(torch.tensor([[[[1.0, 10.0]]]])).backward()  # y = alpha (s1 x1 + s2 x2), alpha = (|w1| + |w2|) / 2 = 1
    # through alpha: (s1 x1 + s2 x2) s_i / 2 = -9 s_i / 2; through the sign: alpha x_i where |w_i| <= 1
    assert conv.weight.grad.flatten().tolist() == [-4.5 + 1.0, 4.5]


def test_only_the_first_convolution_and_the_head_keep_their_precision():
    kinds = {name: type(m) for name, m in network().named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    assert {name for name, kind in kinds.items() if kind is not BinaryConv2d} == {"conv1", "head"}


@pytest.mark.parametrize("activations", [False, True])
def test_packed_and_unpacked_it_is_the_same_function(activations):
    net, other = network(activations=activations), network(activations=activations, seed=1).eval()
    x = torch.randn(4, 3, 16, 16)
    net(x)  # moves the running statistics
    packed = pack_bits(net.state_dict(), net)
    other.load_state_dict(unpack_bits(packed, other))
    with torch.no_grad():
        assert torch.equal(net.eval()(x), other(x))
    again = pack_bits(other.state_dict(), other)
    assert all(torch.equal(packed[key], again[key]) for key in packed)
    assert not any(key.endswith("conv2.weight") for key in packed)


def test_packing_shrinks_the_message_about_fourteen_times():
    net = network(classes=10)

    def size(state):
        return sum(t.numel() * t.element_size() for t in state.values())

    binary = sum(m.weight.numel() for m in net.modules() if isinstance(m, BinaryConv2d))
    filters = sum(m.out_channels for m in net.modules() if isinstance(m, BinaryConv2d))
    state = net.state_dict()
    assert size(pack_bits(state, net)) == size(state) - 4 * binary + binary // 8 + 4 * filters
    assert size(state) / size(pack_bits(state, net)) > 14


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.floats(1e-6, 1e3))
def test_any_layer_survives_packing(before, after, kernel, size):
    layer = nn.Sequential(BinaryConv2d(before, after, kernel, bias=False))
    layer[0].weight.data *= size
    layer[0].weight.data.view(-1)[0] = 0.0  # a zero is +1, on both sides
    x = torch.randn(1, before, 4, 4)
    expected = layer(x)
    layer.load_state_dict(unpack_bits(pack_bits(layer.state_dict(), layer), layer))
    assert torch.equal(layer(x), expected)


def test_binary_inputs_are_signs():
    conv = BinaryConv2d(2, 2, 1, bias=False, binary_input=True)
    x = torch.randn(1, 2, 3, 3)
    assert torch.equal(conv(x), conv(x * 7))


@pytest.mark.parametrize("activations", [False, True])
def test_it_learns(activations):
    net = network(activations=activations, shape=(1, 8, 8))
    x = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(20) % 5
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    assert (net(x).argmax(1) == y).float().mean() > 0.8
