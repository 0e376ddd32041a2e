"""Calibration after the average (CCVR): the head learns anew from virtual features, and nothing else moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.algorithms import create
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.local.reports.statistics import Statistics, described
from fedstill.run.loop import Result, run
from fedstill.task import Task


def settings(name: str = "fedavg", **algorithm: Any) -> dict[str, Any]:
    calibration = {"size": 2000, "epochs": 3, "statistics": {"min_samples": 4}}
    return {
        "data": {"limit": 200, "test_limit": 100},
        "clients": {"per_domain": 3, "partition": {"kind": "dirichlet", "alpha": 0.2}},
        "model": {"name": "mlp", "options": {"hidden": [32]}},
        "local": {"epochs": 4},
        "algorithm": {"name": name, "calibrate": True, "calibration": calibration, **algorithm},
    }


def model(result: Result) -> dict[str, torch.Tensor]:
    return result.server.models["mlp"]


def test_the_head_is_trained_anew_and_nothing_else(tiny: Any, tmp_path: Path) -> None:
    plain = run(tiny(**{**settings(), "algorithm": {"name": "fedavg"}}), tmp_path / "plain")
    found = run(tiny(**settings()), tmp_path / "calibrated")
    line = found.history[-1]
    for name, tensor in model(found).items():
        assert torch.equal(tensor, model(plain)[name]) is not name.startswith("head."), name
    assert line["merged_accuracy"] == plain.history[-1]["accuracy"]
    assert line["accuracy"] > line["merged_accuracy"]  # of clients with few classes each the average's head suffers most
    assert line["calibrated"] > 0
    assert line["bytes_up"] > plain.history[-1]["bytes_up"] + line["calibrated"]
    assert line["dropped"] == []


def test_workers_calibrate_alike(tiny: Any, tmp_path: Path) -> None:
    one, two = (run(tiny(**settings(), engine={"workers": w}), tmp_path / str(w)) for w in (0, 2))
    assert all(torch.equal(tensor, model(two)[name]) for name, tensor in model(one).items())


def test_it_comes_after_the_last_round_or_after_every_one(tiny: Any) -> None:
    for when, first in (("last", ("train",)), ("every", ("train", "describe"))):
        config = settings()
        config["algorithm"]["calibration"]["when"] = when
        algorithm = create(Task(tiny(**config, rounds=2)))
        assert tuple(algorithm.phases(1)) == first
        assert tuple(algorithm.phases(2)) == ("train", "describe")


@pytest.mark.parametrize("name", ["fedprox", "fedavgm", "moon"])
def test_every_averaging_system_can(tiny: Any, tmp_path: Path, name: str) -> None:
    result = run(tiny(**settings(name)), tmp_path)
    assert "calibrated" in result.history[-1]
    assert result.history[-1]["dropped"] == []


@pytest.mark.parametrize("train", ["head", "last:1"])
def test_on_a_frozen_trunk(tiny: Any, tmp_path: Path, train: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    config = {**settings(), "model": {"name": "resnet8", "train": train}, "clients": {}}
    config["data"] = {"limit": 60, "test_limit": 20, "image_size": 16}
    line = run(tiny(**config), tmp_path / "run").history[-1]
    assert line["calibrated"] > 0
    assert line["dropped"] == []


def test_what_trains_the_average_further_does_not_calibrate(tiny: Any) -> None:
    with pytest.raises(FedstillError, match="remove calibrate"):
        create(Task(tiny(**settings("fedgen"))))


def test_a_reply_with_absurd_statistics_is_dropped(tiny: Any) -> None:
    algorithm = create(Task(tiny(**settings())))
    client = next(iter(algorithm.task.clients))
    part = described(torch.rand(40, 5), torch.arange(40) % 4, Statistics()).state()
    fault = algorithm.screen(algorithm.start(), client, Message.of(statistics=part, samples=10))
    assert fault == "its statistics are of features of width 5, expected 32"
