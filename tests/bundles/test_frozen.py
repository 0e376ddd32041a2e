"""Bundles of heads above one frozen trunk: what they hold, and fusing them with nothing but themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedstill.bundles.bundle import Bundle, read_bundle, write_bundle
from fedstill.bundles.folder import read_fused
from fedstill.bundles.fuse import fuse
from fedstill.bundles.pack import pack
from fedstill.bundles.reference import PHOTOS
from fedstill.bundles.words import in_words
from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.models import build
from fedstill.models.predict import accuracy
from fedstill.models.pretrained import PRETRAINED, Weights, installed
from fedstill.models.trunk import Top

from .sites import SHAPE, blobs, write_folder

ROWS = ["row0", "row1", "row2"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packaged weights of an mlp, as ``toy``."""
    folder = tmp_path / "packages" / "toy_weights"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    network = build("mlp", classes=9, shape=SHAPE, hidden=[96], seed=7)
    safetensors.torch.save_file(network.state_dict(), folder / "w.safetensors")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setitem(PRETRAINED, "mlp", {"toy": Weights("toy_weights", "w.safetensors", 0.25, 0.5, "a toy")})
    return folder


def site(folder: Path, name: str, rows: list[int], seed: int, **options: Any) -> Bundle:
    """A site that has images of some of three rows, packed with its own head."""
    data = write_folder(folder / f"data-{name}", blobs(rows, 120, seed), ROWS)
    head = options.pop("head", [])
    settings = {"model": "mlp", "weights": "toy", "train": "head", "statistics": True, "classes": ROWS, "lr": 0.1, **options}
    given = {"hidden": [96], "head": head} if settings["model"] == "mlp" else {}
    return pack(folder / f"{name}.fed", data=data, options=given, **settings).bundle


def test_three_heads_are_fused_with_nothing_but_bundles(tmp_path: Path, toy: Path) -> None:
    sites = [site(tmp_path, f"s{k}", [k, (k + 1) % 3], k, head=head) for k, head in enumerate([[24], [], [8, 8]])]
    test = blobs(range(3), 200, 9)
    fused = fuse([bundle.path for bundle in sites], validation={"rows": test}, draws=3000, distillation={"steps": 300})
    scores = {figure.who: figure.mean for figure in fused.figures}
    assert scores["student"] > 0.95 > max(scores[f"s{k}"] for k in range(3))
    # one whole network on images, with a card
    folder = fused.save(tmp_path / "fused")
    network = read_fused(folder).network()
    assert network.state_dict().keys() == build("mlp", classes=3, shape=SHAPE, hidden=[96], head=[24]).state_dict().keys()
    assert accuracy(network, test) == scores["student"]
    assert (network.mean, network.std) == (0.25, 0.5)
    card = (folder / "MODEL_CARD.md").read_text()
    assert "3000 features drawn" in card
    assert "No images were used" in card
    assert "Weighting" not in card  # each target is that of one site
    assert "divergence from the targets" in card
    # a site goes on from it, above the same trunk, and is fused again
    again = pack(tmp_path / "next.fed", base=folder, data=tmp_path / "data-s0", statistics=True).bundle
    assert again.about.trunk == sites[0].about.trunk
    assert fuse([again, sites[1]], distillation={"steps": 5}).start in ("next", "own weights")


@pytest.mark.parametrize("targets", ["own", "label", "ensemble"])
def test_classes_are_matched_by_name(tmp_path: Path, toy: Path, targets: Any) -> None:
    one = site(tmp_path, "one", [0, 1], 0, classes=["row1", "row0"])
    other = site(tmp_path, "other", [1, 2], 1, classes=["row2", "row1"])
    fused = fuse(
        [one, other], targets=targets, draws=2000, distillation={"steps": 300}, validation=blobs_named(["row1", "row0", "row2"])
    )
    assert fused.classes == ("row1", "row0", "row2")
    assert fused.figures[-1].mean > (0.8 if targets == "ensemble" else 0.95)


def blobs_named(order: list[str]) -> Samples:
    test = blobs(range(3), 200, 9)
    return Samples(test.x, torch.tensor([order.index(f"row{y}") for y in test.y.tolist()]))  # type: ignore[union-attr]


def test_a_packaged_trunk_is_not_sent_and_is_checked(tmp_path: Path, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = site(tmp_path, "a", [0, 1, 2], 0)
    assert set(bundle.tensors().group("model")) == {"head.weight", "head.bias"}
    assert set(bundle.state) == set(bundle.network().state_dict()) > {"head.weight", "head.bias"}
    network = build("mlp", classes=9, shape=SHAPE, hidden=[96], seed=8)
    safetensors.torch.save_file(network.state_dict(), toy / "w.safetensors")
    with pytest.raises(FedstillError, match="a.fed: the trunk differs from the one in training"):
        bundle.network()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FedstillError, match=r"pip install 'fedstill\[pretrained\]'"):
        bundle.network()
    monkeypatch.delitem(PRETRAINED, "mlp")
    with pytest.raises(FedstillError, match="which this fedstill does not know"):
        bundle.network()


def test_what_statistics_are_and_reveal_is_said(tmp_path: Path, toy: Path) -> None:
    told = in_words(site(tmp_path, "a", [0, 1, 2], 0))
    assert "head only, on its packaged weights 'toy'" in told
    assert "statistics of 120 images' features of 96 numbers" in told
    assert "can draw virtual features like theirs" in told
    assert "of features as they are" in told
    assert "--clip bounds it" in told
    clipped = in_words(site(tmp_path, "c", [0, 1, 2], 0, statistics={"clip": 2.5}))
    assert "no feature counting with a norm above 2.5" in clipped
    assert "by a bounded amount; no noise hides it" in clipped
    assert "virtual" not in in_words(site(tmp_path, "b", [0, 1, 2], 0, statistics=False))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"variances": -1.0}, "negative variances"),
        ({"counts": 10**6}, "count 3000000 samples, and it has 120"),
        ({"labels": 17}, "name classes that do not exist"),
        ({"trunk": 0}, "are of another trunk"),
        ({"means": None}, "have no means"),
    ],
)
def test_broken_statistics_are_refused(tmp_path: Path, toy: Path, change: dict[str, Any], reason: str) -> None:
    bundle = site(tmp_path, "a", [0, 1, 2], 0)
    parts = {name: dict(bundle.tensors().group(name)) for name in bundle.parts}
    for name, value in change.items():
        tensor = parts["statistics"].pop(name)
        if value is not None:
            parts["statistics"][name] = torch.full_like(tensor, value)
    write_bundle(bundle.path, bundle.about, **parts)
    with pytest.raises(FedstillError, match=reason):
        read_bundle(bundle.path)


def test_what_cannot_be_fused_without_images_is_one_line(tmp_path: Path, toy: Path) -> None:
    good = site(tmp_path, "good", [0, 1, 2], 0)
    silent = site(tmp_path, "silent", [0, 1, 2], 1, statistics=False)
    weights = tmp_path / "other.safetensors"
    safetensors.torch.save_file(build("mlp", classes=3, shape=SHAPE, hidden=[96], seed=3).state_dict(), weights)
    other = site(tmp_path, "other", [0, 1, 2], 2, weights=weights, epochs=1)
    assert (
        "layers" in "".join(other.tensors().group("model")) or len(other.tensors().group("model")) == 4
    )  # a trunk of a file is sent
    with pytest.raises(FedstillError, match=r"silent.fed carries no statistics: .*--unlabelled DIR.*pack --statistics"):
        fuse([good, silent])
    with pytest.raises(FedstillError, match="other.fed has another trunk than good.fed"):
        fuse([good, other])
    parts = {name: good.tensors().group(name) for name in good.parts}
    small = write_bundle(tmp_path / "small.fed", good.about.model_copy(update={"name": "small", "shape": [1, 6, 6]}), **parts)
    with pytest.raises(FedstillError, match=r"small.fed takes images of shape \(1, 6, 6\) and good.fed of \(1, 8, 8\)"):
        fuse([good, small])
    with pytest.raises(FedstillError, match="a module carries no statistics"):
        fuse([torch.nn.Linear(3, 3)])
    with pytest.raises(FedstillError, match="only for a student on the bundles' trunk"):
        fuse([good], student="cnn-small")


def test_what_cannot_be_packed_is_one_line(tmp_path: Path, toy: Path) -> None:
    for changes, reason in (
        ({"counts": False}, "reveal the number of images"),
        ({"epochs": 0}, r"have other classes: train a head on data \(--train head\), or the whole network \(--epochs\)"),
        ({"statistics": {"min_samples": 500}}, "nothing to describe"),
        ({"statistics": {"rnk": 5}}, "did you mean 'statistics.rank'"),
        ({"train": "all", "epochs": 1}, "under a frozen trunk"),
        ({"weights": "toyy"}, "did you mean 'toy'"),
    ):
        with pytest.raises(FedstillError, match=reason):
            site(tmp_path, "a", [0, 1, 2], 0, **changes)


def test_a_missing_description_is_told_with_its_option(tmp_path: Path, toy: Path) -> None:
    """Bundles with statistics describe their domains only if that is asked for."""
    pair, pool = [site(tmp_path, name, [0, 1, 2], 0) for name in "ab"], blobs(range(3), 10, 5).unlabelled()
    for report in ("projection", "discriminator"):
        with pytest.raises(FedstillError, match=f"which a, b did not send; pack them with --describe {report}$"):
            fuse(pair, pool, weighting=report)
    with pytest.raises(FedstillError, match="a 'counts' report, which a, b did not send$"):
        fuse(pair, pool, weighting="counts")


@pytest.mark.parametrize("weighting", ["uniform", "discriminator"])
def test_a_pool_passes_a_common_trunk_once(tmp_path: Path, toy: Path, monkeypatch: pytest.MonkeyPatch, weighting: str) -> None:
    """On images the same as when every teacher computes its own features, which it does for a student of another kind."""
    sites = [site(tmp_path, f"s{k}", [k, k + 1], k, statistics=False, describe=["discriminator"]) for k in range(2)]
    pool, passed = blobs(range(3), 90, 5).unlabelled(), []
    trunk = Top.trunk
    monkeypatch.setattr(Top, "trunk", lambda self, x: passed.append(len(x)) or trunk(self, x))
    once = fuse(sites, pool, weighting=weighting, distillation={"steps": 20})
    assert sum(n for n in passed if n > 1) == 90  # single samples are to find the trunk's shape
    plain = build("mlp", classes=3, shape=SHAPE, hidden=[96], seed=0)
    each = fuse(sites, pool, plain, weighting=weighting, distillation={"steps": 1})
    assert once.teachers == pytest.approx(each.teachers, abs=1e-4)


@pytest.mark.skipif(not installed(PHOTOS, "imagenet"), reason="the extra fedstill[pretrained] is not installed")
def test_photographs_are_described_under_the_pretrained_reference(tmp_path: Path) -> None:
    """Weights by projection are the same whether the common trunk is passed once or by every teacher."""
    settings = {"model": PHOTOS, "weights": "imagenet", "train": "head", "describe": ["projection"], "epochs": 2}
    sites = []
    for k in range(2):
        data = write_folder(tmp_path / f"data-{k}", blobs([0, 1], 8, k), ["row0", "row1"])
        sites.append(pack(tmp_path / f"s{k}.fed", data=data, image_size=160, channels=3, **settings).bundle)
    assert [bundle.about.subspace.reference for bundle in sites if bundle.about.subspace] == [PHOTOS] * 2
    assert sites[0].about.mean == pytest.approx(127 / 255)  # as the weights want it
    x = torch.nn.functional.interpolate(blobs([0, 1], 6, 5).x.float(), 160).expand(-1, 3, -1, -1).to(torch.uint8)
    once = fuse(sites, Samples(x), weighting="projection", distillation={"steps": 2})
    plain = build("cnn-small", classes=2, shape=(3, 160, 160), seed=0)
    each = fuse(sites, Samples(x), plain, weighting="projection", distillation={"steps": 1})
    assert once.about is not None
    assert once.about.trunk == sites[0].about.trunk
    assert once.teachers == pytest.approx(each.teachers, abs=1e-4)
