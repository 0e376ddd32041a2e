"""Every model by name: shapes, the split, seeds, counts from the literature, mistakes."""

import pytest
import torch

from fedstill import models
from fedstill.core.errors import FedstillError
from fedstill.models.layers import channels_last
from fedstill.models.shufflenet import ShuffleUnit

DEEPER = {"resnet44", "resnet56", "resnet110"}  # the code of resnet32, only slower
IMAGES = [name for name in models.names() if name not in DEEPER and not name.startswith("text")]
LEAST = {"efficientnet-lite0": 32}  # pixels that a network needs

GROUPED = ["resnet8", "cnn", "resnet11", "resnet50", "shufflenetv2", "mobilenetv3-small", "resnet8-binary"]


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 64, 64)], ids=str)
def test_every_model_takes_every_shape_and_splits(name, shape):
    if shape[1] < LEAST.get(name, 0):
        pytest.skip("takes larger images")
    network = models.build(name, classes=7, shape=shape, seed=0).eval()
    x = torch.randn(2, *shape)
    with torch.no_grad():
        z, logits = network.features(x), network(x)
    assert z.shape == (2, network.feature_dim)
    assert logits.shape == (2, network.classes) == (2, 7)
    assert torch.equal(network.head(z), logits)
    assert isinstance(network.head, torch.nn.Module)


@pytest.mark.parametrize(
    ("name", "classes", "shape", "options", "parameters"),
    [
        ("mlp", 10, (1, 28, 28), {}, 199_210),  # the 2NN of McMahan et al.
        ("cnn", 10, (1, 28, 28), {"norm": "none", "hidden": 512}, 1_663_370),  # their CNN
        ("lenet", 10, (3, 32, 32), {}, 62_006),
        ("resnet8", 10, (3, 32, 32), {}, 78_042),  # FedDF
        ("resnet20", 10, (3, 32, 32), {}, 269_722 + 2_752),  # He et al.'s count plus two 1x1 shortcuts with norms
        ("resnet32", 10, (3, 32, 32), {}, 464_154 + 2_752),
        ("resnet56", 10, (3, 32, 32), {}, 853_018 + 2_752),
        ("resnet18", 10, (3, 32, 32), {}, 11_173_962),
        ("resnet18", 1000, (3, 224, 224), {}, 11_689_512),  # torchvision's
        ("resnet34", 1000, (3, 224, 224), {}, 21_797_672),
        ("resnet50", 1000, (3, 224, 224), {}, 25_557_032),
        ("resnet11", 10, (3, 32, 32), {"depth": 20}, 816_826 + 2 * 1_808),  # about 0.82 M: kernels and head, norms
        ("vgg9", 10, (3, 32, 32), {}, 3_491_530),  # FedMA
        ("vgg16", 10, (3, 32, 32), {}, 14_714_688 + 2 * 262_656 + 5_130),  # the convolutions of configuration D
        ("shufflenetv2", 1000, (3, 224, 224), {}, 2_278_604),  # torchvision's
        ("mobilenetv3-small", 1000, (3, 224, 224), {}, 2_542_856),
    ],
)
def test_parameter_counts_of_the_literature(name, classes, shape, options, parameters):
    with torch.device("meta"):
        assert count(models.build(name, classes=classes, shape=shape, **options)) == parameters


def test_the_seed_alone_decides_the_weights_and_the_global_stream_is_untouched():
    before = torch.random.get_rng_state()
    one = models.build("cnn", classes=3, shape=(1, 8, 8), seed=5).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    two = models.build("cnn", classes=3, shape=(1, 8, 8), seed=5).state_dict()
    other = models.build("cnn", classes=3, shape=(1, 8, 8), seed=6).state_dict()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_resnet_convolutions_start_as_the_paper_says():
    network = models.build("resnet8", classes=10, shape=(3, 32, 32), seed=0)
    weight = network.layer3[0].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)  # N(0, 2 / (k^2 c_out))
    assert weight.mean().item() == pytest.approx(0, abs=1e-3)
    assert torch.equal(network.bn1.weight, torch.ones(16))
    assert torch.equal(network.bn1.bias, torch.zeros(16))


@pytest.mark.parametrize(
    "name", ["resnet8", "cnn", "resnet11", "resnet50", "shufflenetv2", "mobilenetv3-small", "resnet8-binary"]
)
def test_group_norm_leaves_no_batch_norm(name):
    network = models.build(name, classes=10, shape=(3, 32, 32), norm="group", groups=2)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules())
    assert {m.num_groups for m in network.modules() if isinstance(m, torch.nn.GroupNorm)} == {2}
    assert not list(network.buffers())


def test_a_residual_block_is_what_the_equation_says():
    block = models.build("resnet8", classes=2, shape=(3, 8, 8), seed=0).eval().layer2[0]
    x = torch.randn(2, 16, 8, 8)
    inner = block.bn2(block.conv2(torch.relu(block.bn1(block.conv1(x)))))
    assert torch.allclose(block(x), torch.relu(inner + block.downsample(x)), atol=1e-6)
    assert block(x).shape == (2, 32, 4, 4)


def test_the_imagenet_stem_quarters_the_resolution_and_can_be_asked_for():
    assert models.build("resnet18", classes=2, shape=(3, 32, 32)).conv1.kernel_size == (3, 3)
    assert models.build("resnet18", classes=2, shape=(3, 96, 96)).conv1.kernel_size == (7, 7)
    assert models.build("resnet18", classes=2, shape=(3, 32, 32), stem="imagenet").conv1.kernel_size == (7, 7)


@pytest.mark.parametrize("name", ["cnn", "resnet8", "resnet11", "vgg9", "vgg16", "shufflenetv2", "mobilenetv3-small"])
def test_the_smallest_and_oblong_images(name):
    for shape in ((1, 8, 8), (3, 9, 40)):
        assert models.build(name, classes=2, shape=shape).eval()(torch.zeros(1, *shape)).shape == (1, 2)


def test_resnet11_has_the_depth_it_is_asked_for():
    for depth in (11, 20):
        network = models.build("resnet11", classes=2, shape=(3, 32, 32), depth=depth)
        convs = [name for name, m in network.named_modules() if isinstance(m, torch.nn.Conv2d) and "down" not in name]
        assert len(convs) + 1 == depth


def test_a_shuffle_unit_interleaves_what_passes_with_what_is_convolved():
    unit = ShuffleUnit(4, 4, 1, torch.nn.BatchNorm2d).eval()
    x = torch.randn(1, 4, 3, 3)
    out = unit(x)
    assert torch.equal(out[:, 0::2], x[:, :2])
    assert torch.equal(out[:, 1::2], unit.branch2(x[:, 2:]))


def test_vgg9_drops_out_only_when_training():
    network = models.build("vgg9", classes=2, shape=(1, 8, 8), seed=0)
    x = torch.randn(4, 1, 8, 8)
    assert not torch.equal(network(x), network(x))
    assert torch.equal(network.eval()(x), network(x))
    still = models.build("vgg9", classes=2, shape=(1, 8, 8), dropout=0.0)
    assert torch.equal(still(x), still(x))


def test_the_plane_of_the_toy():
    assert models.build("mlp", classes=3, shape=(2,), hidden=[16, 16])(torch.zeros(5, 2)).shape == (5, 3)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("resnet9", {}, "unknown model 'resnet9'; did you mean"),
        ("cnn", {"hiden": 3}, "unknown option of model 'cnn' 'hiden'; did you mean 'hidden'?"),
        ("resnet8", {"depth": 3}, "unknown option"),
        ("resnet8", {"norm": "none"}, "cannot have norm = 'none'; it takes batch, group"),
        ("mlp", {"norm": "group"}, "it takes no normalisation"),
        ("resnet8", {"norm": "group", "groups": 3}, "groups = 3 does not divide"),
        ("resnet18", {"stem": "tiny"}, "unknown stem 'tiny'"),
        ("resnet11", {"depth": 12}, "9n + 2"),
        ("vgg9", {"dropout": 2}, "dropout = (2, 2)"),
        ("cnn", {"shape": (1, 4, 4)}, "at least 8 pixels"),
        ("lenet", {"shape": (1, 12, 12)}, "at least 16 pixels"),
        ("cnn", {"shape": (28, 28)}, "takes images"),
        ("cnn", {"shape": (1, 0, 8)}, "positive integers"),
        ("cnn", {"classes": 0}, "classes = 0"),
        ("mlp", {"hidden": []}, "at least one hidden layer"),
        ("mlp", {"hidden": "x"}, "model 'mlp'"),
        ("cnn", {"projection": 4, "bottleneck": 4}, "one of them"),
        ("cnn", {"projection": 0}, "projection = 0"),
        ("cnn", {"weights": "nowhere.pt"}, "no such file"),
    ],
)
def test_mistakes_are_one_clear_line(name, options, line):
    with pytest.raises(FedstillError) as raised:
        models.build(name, **{"classes": 10, "shape": (1, 28, 28), **options})
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_fast_memory_order_changes_no_value_and_leaves_weights_and_gradients_plain(channels):
    x = torch.randn(2, channels, 8, 8)
    assert torch.equal(channels_last(x), x)
    network = models.build("cnn", classes=3, shape=(channels, 8, 8), seed=0)
    network(x).sum().backward()
    assert all(p.is_contiguous() and p.grad.is_contiguous() for p in network.parameters())
    conv = network.body[0]
    assert conv(channels_last(x)).is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(conv(channels_last(x)), conv(x), atol=1e-5)
