"""Generators: shapes, ranges, random streams, and the counts of the authors' networks."""

import pytest
import torch
from torch.nn import functional as F

from fedstill.core.errors import FedstillError
from fedstill.models import build_generator, generator_kinds

IMAGES = [kind for kind in generator_kinds() if kind != "features"]


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 30, 21), (2, 64, 64)], ids=str)
def test_images_have_the_shape_and_the_normalised_range(kind, shape):
    net = build_generator(kind, classes=4, shape=shape, noise_dim=7, seed=1)
    x, labels = net.sample(6, stream())
    assert x.shape == (6, *shape)
    assert -1 <= x.min() < 0 < x.max() <= 1
    if net.conditional:
        assert labels.shape == (6,)
        assert labels.max() < 4
    else:
        assert labels is None


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        # FC 100-4096 and 10-4096 with bias, convs 128-128, 128-64, 64-3 with bias, BN 128, 128, 64
        ("conditional", 413_696 + 45_056 + 147_584 + 73_792 + 1_731 + 640),
        # the same with a quarter of the maps: 1024 instead of 4096, convs 32-32, 32-16, 16-3
        ("conditional-16", 103_424 + 11_264 + 9_248 + 4_624 + 435 + 160),
        # kernels 16 * (100*256 + 256*128 + 128*64 + 64*3), BN 256, 128, 64
        ("dcgan", 1_068_032 + 896),
    ],
)
def test_counts_at_32_pixels(kind, parameters):
    kind, _, width = kind.partition("-")
    net = build_generator(kind, classes=10, shape=(3, 32, 32), **({"width": int(width)} if width else {}))
    assert net.sample(2, stream())[0].shape == (2, 3, 32, 32)
    assert sum(p.numel() for p in net.parameters()) == parameters


@pytest.mark.parametrize("kind", generator_kinds())
def test_the_stream_decides_the_sample_and_the_seed_the_weights(kind):
    def sample(seed, draw):
        net = build_generator(kind, classes=3, shape=(1, 8, 8), feature_dim=5, noise_dim=6, seed=seed)
        return net.sample(4, stream(draw))[0]

    assert torch.equal(sample(0, 0), sample(0, 0))
    assert not torch.equal(sample(0, 0), sample(0, 1))
    assert not torch.equal(sample(0, 0), sample(1, 0))


@pytest.mark.parametrize("kind", [kind for kind in generator_kinds() if kind != "dcgan"])
def test_conditional_samples_depend_on_the_label_that_is_given(kind):
    net = build_generator(kind, classes=3, shape=(1, 8, 8), feature_dim=5, noise_dim=6, seed=0).eval()
    zeros, given = net.sample(4, stream(), labels=torch.zeros(4, dtype=torch.long))
    ones, _ = net.sample(4, stream(), labels=torch.ones(4, dtype=torch.long))
    assert given.tolist() == [0, 0, 0, 0]
    assert not torch.allclose(zeros, ones)
    with pytest.raises(ValueError, match="needs labels"):
        net(torch.zeros(4, 6))


def test_the_feature_generator_is_fedgens():
    net = build_generator("features", classes=10, feature_dim=32, noise_dim=32, seed=0).eval()
    first, norm, _, last = net.body
    z = net.draw(5, stream())
    y = torch.arange(5)
    hidden = F.relu(norm(first(torch.cat([z, F.one_hot(y, 10).float()], dim=1))))
    assert torch.allclose(net(z, y), last(hidden))
    assert net(z, y).shape == (5, 32)
    assert net.draw(1000, stream()).min() >= 0
    assert 0.45 < net.draw(1000, stream()).mean() < 0.55  # uniform on [0, 1]
    normal = build_generator("features", classes=10, feature_dim=32, noise="normal").draw(1000, stream())
    assert normal.std() == pytest.approx(1, abs=0.02)


def test_the_final_norm_of_fedftgs_code_standardises_each_channel():
    net = build_generator("conditional", classes=3, shape=(3, 8, 8), final_norm=True, seed=0)
    x, _ = net.sample(64, stream())
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)


@pytest.mark.parametrize("kind", ["conditional", "mlp-conditional"])
def test_vectors_have_no_range(kind):
    net = build_generator(kind, classes=4, shape=(5,), noise_dim=7, seed=1)
    torch.nn.init.constant_(net.body[-2].bias, 3.0)
    x, labels = net.sample(6, stream())
    assert x.shape == (6, 5)
    assert x.max() > 1
    assert labels.shape == (6,)


@pytest.mark.parametrize(
    ("kind", "options", "line"),
    [
        ("dcgam", {}, "did you mean 'dcgan'"),
        ("features", {}, "needs feature_dim"),
        ("dcgan", {"shape": (1, 4, 8)}, "at least 8 pixels"),
        ("dcgan", {"shape": None}, "needs a shape"),
        ("dcgan", {"shape": (5,)}, "makes images, but the inputs are vectors"),
        ("dcgan", {"hidden": 3}, "unknown option of generator 'dcgan' 'hidden'"),
        ("dcgan", {"noise": "gauss"}, "unknown noise"),
        ("dcgan", {"noise_dim": 0}, "noise_dim = 0"),
    ],
)
def test_mistakes_are_one_clear_line(kind, options, line):
    with pytest.raises(FedstillError, match=line):
        build_generator(kind, **{"classes": 3, "shape": (1, 8, 8), **options})
