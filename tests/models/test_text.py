"""Text classifiers: shapes, padding, pooling, and a tiny encoder of transformers from a local folder."""

import sys

import pytest
import torch

from fedstill import models
from fedstill.core.errors import FedstillError

transformers = pytest.importorskip("transformers")


def small(**options):
    return models.build("text-small", **{"classes": 3, "shape": (8,), "vocab": 20, "width": 16, "seed": 0, **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("distilbert")
    config = transformers.DistilBertConfig(vocab_size=20, dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=8)
    transformers.DistilBertModel(config).save_pretrained(path)
    return path


def ids(*rows):
    return torch.tensor([list(row) + [0] * (8 - len(row)) for row in rows])


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_the_split_and_the_shapes(folder, pool):
    for network in (small(pool=pool), models.build(f"hf:{folder}", classes=3, shape=(8,), pool=pool)):
        network.eval()
        x = ids([3, 4, 5], [7])
        assert network.features(x).shape == (2, network.feature_dim) == (2, 16)
        assert torch.equal(network.head(network.features(x)), network(x))
        assert network(x).shape == (2, 3)


def test_padding_changes_nothing(folder):
    for network in (small(), models.build(f"hf:{folder}", classes=3, shape=(8,), pool="mean")):
        network.eval()
        long = ids([3, 4, 5])
        assert torch.allclose(network(long), network(long[:, :3]), atol=1e-5)
        assert not torch.allclose(network(long), network(ids([3, 4, 6])))


def test_a_text_of_padding_alone_is_finite_and_trains():
    network = small()
    network(ids([], [1, 2])).sum().backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())
    assert network.eval()(ids([])).isfinite().all()


def test_order_matters():
    network = small().eval()
    assert not torch.allclose(network(ids([3, 4])), network(ids([4, 3])))


def test_it_learns_which_token_a_text_contains():
    network = small(dropout=0.0, classes=2)
    x = torch.randint(3, 20, (64, 8), generator=torch.Generator().manual_seed(0))
    y = torch.arange(64) % 2
    x[torch.arange(64), torch.arange(64) % 8] = 1 + y
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    assert (network(x).argmax(1) == y).float().mean() > 0.9


def test_pretrained_weights_are_those_of_the_folder_or_random(folder):
    a, b = (models.build(f"hf:{folder}", classes=3, shape=(8,), seed=seed).state_dict() for seed in (0, 1))
    key = "encoder.embeddings.word_embeddings.weight"
    assert torch.equal(a[key], b[key])
    assert not torch.equal(a["head.weight"], b["head.weight"])
    fresh = models.build(f"hf:{folder}", classes=3, shape=(8,), seed=1, pretrained=False).state_dict()
    assert not torch.equal(fresh[key], b[key])


def test_mistakes_are_one_clear_line(folder, monkeypatch, tmp_path):
    def line(name, **options):
        with pytest.raises(FedstillError) as raised:
            models.build(name, **{"classes": 3, "shape": (8,), **options})
        assert "\n" not in str(raised.value)
        return str(raised.value)

    assert "(length,)" in line("text-small", shape=(1, 8, 8))
    assert "does not divide" in line("text-small", heads=3)
    assert "unknown pool 'last'" in line("text-small", pool="last")
    assert "(length,)" in line(f"hf:{folder}", shape=(1, 8, 8))
    assert "at most 8 tokens" in line(f"hf:{folder}", shape=(9,))
    assert "its own normalisation" in line(f"hf:{folder}", norm="group")
    assert "unknown option" in line(f"hf:{folder}", width=3)
    assert "no encoder could be loaded" in line(f"hf:{tmp_path}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "fedstill[text]" in line(f"hf:{folder}")
