"""Projection head and bottleneck, pretrained weights, and networks written elsewhere."""

import copy
import sys
import types

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from fedstill import models
from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.models.layers import with_norm
from fedstill.models.predict import apply
from fedstill.models.wrapped import Whole, Wrapped
from fedstill.training.private import check_network

BATCH, GROUP = nn.BatchNorm2d, nn.GroupNorm


def build(name="cnn", **options):
    return models.build(name, **{"classes": 4, "shape": (3, 8, 8), "seed": 0, **options})


def test_moons_projection_sits_below_the_classifier():
    network = build(projection=16).eval()
    x = torch.randn(3, 3, 8, 8)
    first, _, second = network.neck
    expected = second(F.relu(first(network.backbone(x))))
    assert torch.equal(network.features(x), expected)
    assert expected.shape == (3, network.feature_dim) == (3, 16)
    assert torch.equal(network(x), network.head(expected))
    assert network.head.in_features == 16


def test_shots_bottleneck_and_weight_normalised_classifier():
    network = build(bottleneck=16)
    assert isinstance(network.neck[1], nn.BatchNorm1d)
    z = torch.randn(5, 16)
    g, v = network.head.parametrizations.weight.original0, network.head.parametrizations.weight.original1
    expected = z @ (g * v / v.norm(dim=1, keepdim=True)).T + network.head.bias
    assert torch.allclose(network.head(z), expected, atol=1e-6)
    assert network(torch.randn(5, 3, 8, 8)).shape == (5, 4)
    assert copy.deepcopy(network)(torch.randn(2, 3, 8, 8)).shape == (2, 4)


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_a_backbone_is_loaded_and_a_head_of_another_size_keeps_its_own_start(tmp_path, kind):
    source = build("resnet18", classes=7, seed=1).state_dict()
    # torchvision's names, as in its ImageNet files
    state = {key.replace("head.", "fc."): value for key, value in source.items()}
    file = tmp_path / f"weights.{kind}"
    save_file(state, file) if kind == "safetensors" else torch.save(state, file)
    network, fresh = build("resnet18", weights=file), build("resnet18")
    assert torch.equal(network.layer4[1].conv2.weight, source["layer4.1.conv2.weight"])
    assert torch.equal(network.head.weight, fresh.head.weight)
    assert torch.equal(build("resnet18", classes=7, weights=file).head.weight, source["head.weight"])
    assert torch.equal(build("resnet18", projection=8, weights=file).conv1.weight, source["conv1.weight"])
    assert "fc.weight" in state


@pytest.mark.parametrize("name", ["cnn", "vgg9", "mobilenetv3-small", "resnet8"])
def test_a_networks_own_state_can_be_loaded_whole(tmp_path, name):
    source = build(name, bottleneck=8, seed=1).state_dict()
    save_file(source, tmp_path / "w.safetensors")
    loaded = build(name, bottleneck=8, weights=tmp_path / "w.safetensors").state_dict()
    assert all(torch.equal(source[key], loaded[key]) for key in source)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda state: state.pop("conv1.weight"), "no tensor 'conv1.weight'"),
        (lambda state: state.update(extra=torch.zeros(1)), "the network has no tensor 'extra'"),
        (lambda state: state.update({"conv1.weight": torch.zeros(1)}), r"'conv1.weight' is \(1,\) in the file"),
    ],
)
def test_any_other_difference_is_an_error(tmp_path, change, line):
    state = build("resnet8").state_dict()
    change(state)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(FedstillError, match=line):
        build("resnet8", weights=tmp_path / "w.safetensors")


def test_files_that_are_no_weights(tmp_path):
    for name in ("w.safetensors", "w.pt"):
        (tmp_path / name).write_bytes(b"nonsense, really")
        with pytest.raises(FedstillError, match="not a readable file"):
            build(weights=tmp_path / name)
    torch.save({"epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(FedstillError, match="not a dictionary of tensors"):
        build(weights=tmp_path / "w.pt")


class Foreign(nn.Module):
    """A network like torchvision's VGG, whose classifier is defined before what it reads."""

    def __init__(self, num_classes):
        super().__init__()
        self.classifier = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, num_classes))
        self.features = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.AdaptiveAvgPool2d(2))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


@pytest.fixture
def own(monkeypatch):
    """A module ``own`` with callables, as a user would write it."""
    module = types.ModuleType("own")
    module.plain = lambda classes: Foreign(classes)
    module.sized = lambda classes, shape, norm, width=3: nn.Sequential(
        nn.Flatten(), nn.Linear(shape[1] * shape[2] * 3, width), nn.Linear(width, classes)
    )
    module.split = lambda classes, **options: models.build("mlp", classes=classes, shape=options["shape"])
    module.soft = lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(192, classes), nn.Softmax(1))
    module.normed = lambda classes, width=6: nn.Sequential(
        nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(36 * width, classes)
    )
    module.odd = lambda classes: module.normed(classes, width=3)
    module.wrong = lambda classes: 3
    module.constant = 3
    monkeypatch.setitem(sys.modules, "own", module)
    return module


def test_a_users_network_is_split_before_its_last_linear_layer(own):
    network = build("own:plain").eval()
    x = torch.randn(2, 3, 8, 8)
    torch.manual_seed(0)
    original = Foreign(4).eval()
    assert torch.equal(network(x), original(x))
    assert network.features(x).shape == (2, network.feature_dim) == (2, 6)
    assert torch.equal(network.head(network.features(x)), network(x))
    assert sorted(network.state_dict()) == sorted(
        ["head.weight", "head.bias", "body.features.0.weight", "body.features.0.bias"]
        + ["body.classifier.0.weight", "body.classifier.0.bias"]
    )
    assert network.training is False
    assert build("own:plain").training is True
    assert build("own:plain", projection=5)(x).shape == (2, 4)


def test_a_users_network_gets_what_its_signature_takes(own):
    assert build("own:sized", width=9).feature_dim == 9
    assert isinstance(build("own:split"), models.Network)


def test_a_users_batchnorm_is_replaced_where_another_norm_is_asked_for(own):
    def layers(norm):
        return [type(layer) for layer in build("own:normed", norm=norm).modules() if isinstance(layer, BATCH | GROUP)]

    assert [layers(norm) for norm in ("batch", "group", "none")] == [[BATCH], [GROUP], []]
    with pytest.raises(FedstillError, match="mixes the samples of a batch"):
        check_network(build("own:normed"), "normed", torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    check_network(build("own:normed", norm="group"), "normed", torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


def test_a_replaced_layer_keeps_its_scales_and_shifts():
    layer = nn.BatchNorm2d(4)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    body = with_norm(nn.ModuleDict({"inner": nn.Sequential(layer)}), "group", "it")
    assert torch.equal(body["inner"][0].weight, layer.weight)
    assert torch.equal(body["inner"][0].bias, layer.bias)


def test_weights_of_the_original_fit_the_wrapped_network(own, tmp_path):
    original = Foreign(4)
    save_file(original.state_dict(), tmp_path / "w.safetensors")
    network = build("own:plain", weights=tmp_path / "w.safetensors").eval()
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(network(x), original.eval()(x))


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("own:soft", {}, "does not end in a linear layer"),
        ("own:wrong", {}, "returned int"),
        ("own:constant", {}, "not callable"),
        ("own:absent", {}, "has no attribute 'absent'"),
        ("nowhere.at.all:net", {}, "No module named 'nowhere'"),
        ("own:plain", {"shape": (1, 8, 8)}, r"does not take inputs of shape \(1, 8, 8\)"),
        ("own:plain", {"depth": 3}, "unexpected keyword argument"),
        ("own:plain", {"norm": "group"}, "'own:plain' has no BatchNorm that norm = 'group' could replace"),
        ("own:odd", {"norm": "group"}, "groups = 2 does not divide a layer of 3 channels"),
    ],
)
def test_mistakes_are_one_clear_line(own, name, options, line):
    with pytest.raises(FedstillError, match=line) as raised:
        build(name, **options)
    assert "\n" not in str(raised.value)


def test_a_network_with_another_number_of_outputs_is_refused():
    with pytest.raises(FedstillError, match="has 5 outputs, but 4 classes are needed"):
        Wrapped(Foreign(5), 4, (3, 8, 8), "own")


def test_torchvision_by_name(own, monkeypatch):
    def get_model(name, num_classes):
        if name not in ("vgg", "normed"):
            raise ValueError(f"Unknown model {name}")
        return own.normed(num_classes) if name == "normed" else Foreign(num_classes)

    stand_in = types.ModuleType("torchvision.models")
    stand_in.get_model = get_model
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", stand_in)
    assert build("torchvision:vgg").feature_dim == 6
    assert not any(isinstance(layer, BATCH) for layer in build("torchvision:normed", norm="group").modules())
    with pytest.raises(FedstillError, match="Unknown model vg"):
        build("torchvision:vg")
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(FedstillError, match="needs torchvision"):
        build("torchvision:vgg")


def test_a_module_is_used_whole():
    module = Foreign(4).eval()
    network = Whole(module, "mine", (3, 8, 8))
    x = torch.randn(5, 3, 8, 8)
    assert network.classes == 4
    assert torch.equal(network(x), module(x))
    assert torch.equal(network.features(x), module.classifier[:3](module.features(x).flatten(1)))
    assert torch.equal(network.head(network.features(x)), module(x))
    # with its head known its tensors are still those of the module, under their own names
    assert list(network.state_dict()) == [f"body.{name}" for name in module.state_dict()]
    assert len(list(network.parameters())) == len(list(module.parameters()))
    twin = copy.deepcopy(network)
    assert twin.head is twin.body.classifier[3]


@pytest.mark.parametrize("training", [True, False])
def test_a_module_used_whole_keeps_its_mode(training):
    module = Foreign(4).train(training)
    network = Whole(module, "mine", (3, 8, 8))
    apply(network.features, network, Samples(torch.randn(5, 3, 8, 8)))
    assert {part.training for part in network.modules()} - {network.neck.training} <= {training}
    assert module.training is training


def test_a_module_used_whole_need_not_take_floats():
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    assert Whole(module, "mine").features(torch.randint(0, 9, (5, 3))).shape == (5, 12)


def test_a_module_without_a_last_linear_layer_has_no_features():
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 2), nn.Softmax(1))
    network = Whole(module, "model 'mine'", (3, 2, 2))
    assert network(torch.zeros(1, 3, 2, 2)).shape == (1, 2)
    with pytest.raises(FedstillError, match="model 'mine' has no features to look at") as raised:
        network.features(torch.zeros(1, 3, 2, 2))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (nn.Conv2d(3, 2, 1), r"mine returns shape \(2, 2, 8, 8\) for two inputs"),
        (nn.Linear(5, 2), r"mine does not take inputs of shape \(3, 8, 8\)"),
        (Foreign(5), "mine has 5 outputs, but 4 classes are named"),
    ],
)
def test_a_module_that_cannot_be_used_whole_is_refused(module, line):
    with pytest.raises(FedstillError, match=line):
        Whole(module, "mine", (3, 8, 8), classes=4)
