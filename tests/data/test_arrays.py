"""Arrays: files of NumPy, and what a Python program holds in memory."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from fedstill.core.errors import FedstillError
from fedstill.data.arrays import federation, store
from fedstill.data.loading import load_domain, load_domains
from fedstill.data.reading import Reading

X = np.arange(40.0).reshape(20, 2)
Y = np.arange(20) % 2


def load(tmp_path, name, **options):
    return load_domain(name, root=tmp_path, cache=tmp_path / "cache", reading=Reading(**{"standardise": "none", **options}))


def rows(domain):
    return sorted(torch.cat([domain.train.x, domain.test.x]).flatten(1).tolist())


def test_an_npz_of_vectors(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    for name in ("a.npz", "a"):
        domain = load(tmp_path, name)
        assert rows(domain) == X.tolist()
        assert domain.classes == ("0", "1")
        assert (len(domain.train), len(domain.test)) == (16, 4)
    assert load(tmp_path, "a", standardise=None).train.x.mean().abs() < 1e-5  # standardised by default


def test_tests_classes_and_words(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y, x_test=X[:3], y_test=Y[:3], classes=["no", "yes"])
    domain = load(tmp_path, "a")
    assert (domain.classes, len(domain.train), len(domain.test)) == (("no", "yes"), 20, 3)
    np.savez(tmp_path / "b.npz", x=X, y=np.where(Y, "sick", "fine"))
    assert load(tmp_path, "b").classes == ("fine", "sick")
    np.savez(tmp_path / "c.npz", X_train=X, y_train=2 * Y[:, None] - 1)
    assert load(tmp_path, "c").classes == ("-1", "1")


def test_images_in_an_npz(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
    np.savez(tmp_path / "last.npz", train_images=images, train_labels=Y[:, None])  # as MedMNIST has them
    np.savez(tmp_path / "first.npz", x=images.transpose(0, 3, 1, 2), y=Y)
    np.savez(tmp_path / "grey.npz", x=images[..., 0], y=Y)
    assert load(tmp_path, "last").train.x.shape == (16, 3, 6, 5)
    assert rows(load(tmp_path, "last")) == rows(load(tmp_path, "first"))
    assert load(tmp_path, "grey").train.x.shape == (16, 1, 6, 5)


def test_images_that_are_not_bytes_need_a_range(tmp_path):
    images = np.linspace(0, 1, 20 * 3 * 16).reshape(20, 3, 4, 4).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=images, y=Y)
    with pytest.raises(FedstillError, match=r"hold values from 0 to 1, .* such as \[0, 1\]"):
        load(tmp_path, "a")
    assert rows(load(tmp_path, "a", range=(0, 1))) == np.rint(images * 255).reshape(20, -1).tolist()


def test_npy_files_and_folders(tmp_path):
    np.save(tmp_path / "pool.npy", X)
    assert load(tmp_path, "pool").train.y is None
    (tmp_path / "parts").mkdir()
    for name, part in (("x", X), ("y", Y), ("x_test", X[:5]), ("y_test", Y[:5])):
        np.save(tmp_path / "parts" / f"{name}.npy", part)
    assert len(load(tmp_path, "parts").test) == 5
    (tmp_path / "splits").mkdir()
    np.savez(tmp_path / "splits" / "train.npz", x=X, y=Y)
    np.savez(tmp_path / "splits" / "test.npz", x=X[:6], y=Y[:6])
    assert (len(load(tmp_path, "splits").train), len(load(tmp_path, "splits").test)) == (20, 6)
    (tmp_path / "shards").mkdir()
    for i in range(2):
        np.savez(tmp_path / "shards" / f"part{i}.npz", x=X[10 * i : 10 * i + 10], y=Y[10 * i : 10 * i + 10])
    assert rows(load(tmp_path, "shards")) == X.tolist()


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"a": X}, "has no array x"),
        ({"x": X, "y": Y[:5]}, r"20 samples in x and labels of shape \(5,\)"),
        ({"x": X, "y": Y + 0.5}, "labels are whole numbers or words, not 0.5"),
        ({"x": X, "y": Y, "classes": ["one"]}, "labels are 20 whole numbers from 0 to 0"),
        ({"x": X, "y": np.where(Y, "a", "b"), "classes": ["a", "c"]}, "unknown label in 'a' 'b'"),
        ({"x": X.reshape(20, 2, 1, 1, 1)}, "samples are images .* not float64 of shape"),
        ({"x": np.where(X > 30, np.inf, X), "y": Y}, "hold infinite numbers"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "the training vectors of 'a' are 2 wide"),
        ({"x": np.array([{}])}, "Object arrays cannot be loaded"),
    ],
)
def test_mistakes_are_one_line(tmp_path, parts, says):
    np.savez(tmp_path / "a.npz", **parts)
    with pytest.raises(FedstillError, match=says) as caught:
        load(tmp_path, "a")
    assert "\n" not in str(caught.value)


def test_a_broken_file(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(FedstillError, match="cannot read 'a'"):
        load(tmp_path, "a")


def test_missing_numbers(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.where(X == 3, np.nan, X), y=Y)
    np.savez(tmp_path / "b.npz", x=X, y=Y)
    both = load_domains(["a", "b"], root=tmp_path, cache=tmp_path / "cache")
    assert [domain.train.x.shape[1] for domain in both.values()] == [3, 3]
    assert sum(float(part.x[:, 2].sum()) for part in (both["a"].train, both["a"].test)) == 1
    assert not both["a"].train.x.isnan().any()


# -- memory ----------------------------------------------------------------------------------------------------------------------


def test_arrays_in_memory_are_written_once(tmp_path):
    source = store(torch.from_numpy(X), Y, name="north", cache=tmp_path)
    assert store(X, torch.from_numpy(Y), name="north", cache=tmp_path) == source
    assert store(X + 1, Y, name="north", cache=tmp_path) != source
    assert len([name for name in os.listdir(tmp_path / "arrays") if not name.startswith(".")]) == 2
    assert rows(load_domain(source, cache=tmp_path, reading=Reading(standardise="none"))) == X.tolist()
    with pytest.raises(FedstillError, match="is no longer in the cache"):
        load_domain("arrays:0123/north", cache=tmp_path)


def test_texts_and_images_in_memory(tmp_path):
    texts = store(["good film", "bad film"] * 10, ["good", "bad"] * 10, cache=tmp_path)
    assert load_domain(texts, cache=tmp_path).train.x.dtype == torch.int32
    images = store(torch.zeros(20, 1, 8, 8, dtype=torch.uint8), Y, cache=tmp_path)
    assert load_domain(images, cache=tmp_path).train.x.shape == (16, 1, 8, 8)


def test_classes_are_counted_over_all_clients(tmp_path):
    made = federation({"a": (X, np.zeros(20)), "b": (X, Y + 1)}, tests={"b": (X[:4], [0, 1, 2, 2])}, cache=tmp_path)
    found = load_domains({source.rpartition("/")[2]: source for source in made["domains"]}, cache=tmp_path)
    assert {domain.classes for domain in found.values()} == {("0", "1", "2")}
    assert found["a"].train.counts(3).tolist() == [16, 0, 0]
    assert found["b"].train.counts(3).tolist() == [0, 10, 10]
    assert found["b"].test.counts(3).tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"clients": {}}, "clients is empty"),
        ({"clients": {"a": X}}, r"clients\['a'\] is a pair \(x, y\), not ndarray"),
        ({"clients": {"a": (X, Y)}, "tests": {"b": (X, Y)}}, "unknown client in tests 'b'"),
        ({"clients": {"a/b": (X, Y)}}, "a client's name is a word without / and :"),
        ({"clients": {"a": (X, Y[:3])}}, "20 samples in x and labels of shape"),
        ({"clients": {"a": (np.array([["x", 1]] * 20, dtype=object), Y)}}, "x of 'a' mixes kinds of values"),
    ],
)
def test_mistakes_in_memory_are_one_line(tmp_path, given, says):
    with pytest.raises(FedstillError, match=says) as caught:
        federation(**given, cache=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("order", ["grey", "channels first", "channels last"])
def test_images_that_are_bytes_already_are_not_decoded(tmp_path, monkeypatch, order):
    """A million of them are ready at once, with the same pixels as one by one."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 6, 5) if order == "grey" else (20, 6, 5, 3), dtype=np.uint8)
    x = pixels if order != "channels first" else pixels.transpose(0, 3, 1, 2)
    np.savez(tmp_path / "a.npz", x=x, y=Y)
    with monkeypatch.context() as without:
        without.setattr("fedstill.data.arrays._planes", lambda array: None)
        slow = load_domain("a", root=tmp_path, cache=tmp_path / "slow")
    monkeypatch.setattr("fedstill.data.loading.stack_images", None)
    monkeypatch.setattr("fedstill.data.looks.look_at", None)
    quick = load_domain("a", root=tmp_path, cache=tmp_path / "quick")
    for part in ("train", "test"):
        assert getattr(quick, part).x.equal(getattr(slow, part).x)
        assert getattr(quick, part).y.equal(getattr(slow, part).y)
