"""Runs on a frozen trunk: what is trained and sent, kept features, and what is saved."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from PIL import Image

from fedstill.algorithms import create
from fedstill.core.errors import FedstillError
from fedstill.models import build
from fedstill.models.predict import accuracy
from fedstill.run.configuration import resolve
from fedstill.run.judging import delivered
from fedstill.run.listener import Listener
from fedstill.run.loop import Result, run
from fedstill.task import Task


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path_factory.mktemp("cache")))


def frozen(train: str = "head", **changes: Any) -> dict[str, Any]:
    model = {"name": "resnet8", "train": train, **changes.pop("model", {})}
    data = {"server": "embedded:blended", "limit": 40, "test_limit": 20, "image_size": 16}
    return {"data": data, "model": model, "algorithm": {"name": "fedd3a", "distillation": {"epochs": 1}}, **changes}


def weights(result: Result) -> dict[str, torch.Tensor]:
    return delivered(result.server).models[result.task.networks.student]


@pytest.mark.parametrize("train", ["head", "last:1"])
def test_kept_features_give_the_same_model_as_computing_them(tiny: Any, tmp_path: Path, train: str) -> None:
    kept = run(tiny(**frozen(train)), tmp_path / "kept")
    computed = run(tiny(**frozen(train, model={"cache": False})), tmp_path / "computed")
    for name, tensor in weights(kept).items():
        assert torch.allclose(tensor.float(), weights(computed)[name].float(), atol=1e-5), name
    assert kept.task.shape != computed.task.shape == (1, 16, 16)


def test_private_training_above_kept_features(tiny: Any, tmp_path: Path) -> None:
    """The trunk, with BatchNorm, is frozen and public; what is clipped and noised is the head. Keeping its outputs changes
    neither the model nor what is spent."""
    config = frozen(privacy={"sample": {"noise": 1.0}}, algorithm={"name": "fedprox"})
    kept = run(tiny(**config), tmp_path / "kept")
    computed = run(tiny(**{**config, "model": {**config["model"], "cache": False}}), tmp_path / "computed")
    assert kept.task.kept_trunk is not None
    assert computed.task.kept_trunk is None
    for name, tensor in weights(kept).items():
        assert torch.allclose(tensor.float(), weights(computed)[name].float(), atol=1e-5), name
    assert kept.summary["privacy"] == computed.summary["privacy"]
    assert kept.summary["privacy"]["sample"]["epsilon"] > 0


def test_what_is_frozen_is_never_sent(tiny: Any, tmp_path: Path) -> None:
    config = {**frozen(), "algorithm": {"name": "fedavg"}}
    head = run(tiny(**config), tmp_path / "head")
    whole = run(tiny(**{**config, "model": {"name": "resnet8"}}), tmp_path / "whole")
    sent = 4 * (64 * 10 + 10)
    assert head.history[0]["bytes_down"] == pytest.approx(2 * sent, abs=100)
    assert whole.history[0]["bytes_down"] > 50 * head.history[0]["bytes_down"]


def test_the_saved_model_is_whole(tiny: Any, tmp_path: Path) -> None:
    result = run(tiny(**frozen()), tmp_path)
    network = build("resnet8", classes=10, shape=(1, 16, 16))
    network.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    raw = {name: domain.test for name, domain in result.task.raw_domains.items() if name in result.task.tests}
    assert {name: accuracy(network.eval(), test) for name, test in raw.items()} == pytest.approx(result.history[-1]["domains"])


def test_workers_map_the_same_features(tiny: Any, tmp_path: Path) -> None:
    here, there = run(tiny(**frozen()), tmp_path / "0"), run(tiny(**frozen(engine={"workers": 2})), tmp_path / "2")
    assert all(torch.equal(tensor, weights(there)[name]) for name, tensor in weights(here).items())


def test_features_are_computed_once_and_damage_is_noticed(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path))
    computed = []
    first = Task(tiny(**frozen()))
    first.progress = lambda what, done, of: computed.append(what)
    x = first.domains["mnist"].train.x.clone()
    assert any("mnist train" in what for what in computed)
    computed.clear()
    again = Task(tiny(**frozen()))
    again.progress = first.progress
    assert torch.equal(again.domains["mnist"].train.x, x)
    assert computed == []
    other = Task(tiny(**frozen(), seed=1))  # other weights of the trunk, and other samples
    assert not torch.equal(other.domains["mnist"].train.x, x)
    for entry in tmp_path.glob("features-mnist-train-*"):
        data = bytearray(entry.read_bytes())
        data[-3] ^= 64
        entry.write_bytes(bytes(data))
    with pytest.warns(UserWarning, match="damaged"):
        assert torch.equal(Task(tiny(**frozen())).domains["mnist"].train.x, x)


def test_heads_of_several_kinds_share_a_trunk(tiny: Any, tmp_path: Path) -> None:
    variants = {"plain": {"name": "resnet8"}, "wide": {"name": "resnet8", "options": {"head": [32]}}}
    model = {"variants": variants, "clients": ["plain", "wide"], "weights": str(tmp_path / "trunk.safetensors")}
    safetensors.torch.save_file(build("resnet8", classes=10, shape=(1, 16, 16), seed=3).state_dict(), model["weights"])
    result = run(tiny(**frozen(model=model)), tmp_path / "run")
    assert set(result.server.models) == {"plain", "wide"}
    assert result.task.kept_trunk is not None
    assert result.history[-1]["dropped"] == []


def test_what_cannot_be_frozen_is_one_line(tiny: Any) -> None:
    with pytest.raises(FedstillError, match="cannot be cut: train 'all' or 'head'"):
        create(Task(tiny(**frozen("last:1", model={"name": "cnn-small"})))).task.domains  # noqa: B018


def test_training_draws_among_kept_views(tiny: Any, tmp_path: Path) -> None:
    changes = {"local": {"augment": {"flip": True, "crop": 2}}, "model": {"views": 3}}
    task = Task(tiny(**frozen(**changes)))
    data = task.data_of("mnist-0")
    assert data.views is not None
    assert data.views.shape == (len(data), 2, 64)
    assert not torch.equal(data.views[:, 0], data.views[:, 1])
    whole = task.networks.get("resnet8")
    raw = task.raw_domains["mnist"].train.take(torch.from_numpy(task.clients["mnist-0"].indices))
    assert torch.allclose(data.x, whole.normalise(raw.x), atol=1e-5)  # reports, tests and the pool see images as they are
    assert task.pool is not None
    assert task.pool.samples.views is None
    result = run(task.config, tmp_path / "views")
    again = run(task.config, tmp_path / "again")
    assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in weights(result).items())
    plain = run(tiny(**frozen(local={})), tmp_path / "plain")
    assert any(not torch.equal(tensor, weights(plain)[name]) for name, tensor in weights(result).items())


def test_views_need_something_to_be_views_of(tiny: Any) -> None:
    for changes in ({"model": {"views": 3}}, {"model": {"views": 3, "train": "all"}, "local": {"augment": {"flip": True}}}):
        with pytest.raises(FedstillError, match=r"model.views needs a frozen backbone"):
            tiny(**frozen(**changes))


def test_processes_share_what_one_computes(tiny: Any) -> None:
    """Whoever comes second waits for the first: a lock on the file, which holds between threads as between processes."""
    computed: list[str] = []
    found: list[torch.Tensor] = []

    def ask() -> None:
        task = Task(tiny(**frozen()))
        task.progress = lambda what, done, of: computed.append(f"{what} {done}")
        found.append(task.domains["mnist"].train.x)

    Task(tiny(**frozen())).raw_domains  # noqa: B018 - decoded beforehand
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(torch.equal(found[0], x) for x in found)
    assert len(computed) == len(set(computed))


def test_progress_of_features_is_told(tiny: Any, tmp_path: Path) -> None:
    told: list[str] = []

    class Heard(Listener):
        def progress(self, what: str, done: int, of: int) -> None:
            told.append(what)

    run(tiny(**frozen()), tmp_path, listeners=[Heard()])
    assert "features of mnist train" in told


def test_weights_of_another_architecture_are_one_line(tiny: Any, tmp_path: Path) -> None:
    path = tmp_path / "cnn.safetensors"
    safetensors.torch.save_file(build("cnn-small", classes=10, shape=(1, 16, 16)).state_dict(), path)
    with pytest.raises(FedstillError, match="the network has no tensor"):
        Task(tiny(**frozen(model={"weights": str(path)}))).domains  # noqa: B018


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "I;16", "CMYK", "1", "LA"])
def test_images_of_odd_modes_pass_a_trunk(tmp_path: Path, mode: str) -> None:
    for k in range(4):
        folder = tmp_path / "site" / f"c{k % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.new(mode, (20, 24), 60_000 if mode == "I;16" else 0)
        ending = "jpg" if mode == "CMYK" else "png"
        image.save(folder / f"{k}.{ending}")
    config = resolve(
        {
            "data": {"domains": [str(tmp_path / "site")], "image_size": 16, "channels": 3},
            "model": {"name": "resnet8", "train": "head"},
        }
    )
    x = Task(config).domains["site"].train.x
    assert x.shape[1:] == (64,)
    assert bool(torch.isfinite(x).all())
