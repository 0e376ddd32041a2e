"""What is there for accelerators, on the CPU: lower precision, compiled networks, one copy of a pool on the device."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.config.tables import Config
from fedstill.core.errors import FedstillError
from fedstill.data import samples
from fedstill.data.samples import resident
from fedstill.models import build, compiled
from fedstill.run.loop import run
from fedstill.task import Task


def test_lower_precision_has_the_same_bits_in_workers_and_keeps_weights_in_full(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    def models(name: str, **engine: Any) -> dict[str, torch.Tensor]:
        config = tiny(
            rounds=1,
            data={"holdout": 0.3},
            algorithm={"name": "feddf", "distillation": {"epochs": 1, "batch_size": 16}},
            engine={"threads": 1, **engine},
        )
        return run(config, tmp_path / name).server.models["mlp"]

    full, lower = models("full"), models("lower", precision="bfloat16")
    again = models("workers", precision="bfloat16", workers=2)
    for key, tensor in lower.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, again[key]), key
        assert torch.allclose(tensor, full[key], atol=0.05), key
    assert any(not torch.equal(tensor, full[key]) for key, tensor in lower.items())


def test_features_of_your_own_module_are_in_full_precision_too() -> None:
    from fedstill.models.wrapped import Whole

    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    network = Whole(body, "mine", (1, 4, 4))
    x = torch.rand(2, 1, 4, 4)
    exact = network.features(x), network(x)
    network.precision = torch.bfloat16
    for before, after in zip(exact, (network.features(x), network(x)), strict=True):
        assert after.dtype == torch.float32
        assert not torch.equal(before, after)
        assert torch.allclose(before, after, atol=0.05)


def test_a_device_that_is_not_there_is_one_line(tiny: Callable[..., Config]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    task = Task(tiny(engine={"device": "cuda:0"}))
    with pytest.raises(FedstillError, match="engine.device = 'cuda:0' cannot be used: "):
        task.networks.get("mlp")


def broken(*_: Any) -> Any:
    raise RuntimeError("no compiler here\nand more lines")


def test_compiled_networks_compute_the_same_and_a_failure_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(4, 1, 4, 4)
    network = build("mlp", classes=3, shape=(1, 4, 4))
    exact = network(x)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", backend)
    assert torch.equal(compiled.compiled(network)(x), exact)
    assert graphs, "it was compiled"
    network(x).sum().backward()
    assert network.head.weight.grad is not None  # type: ignore[union-attr]
    for wrong in (broken, "no-such-backend"):
        monkeypatch.setattr(compiled, "BACKEND", wrong)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert torch.equal(compiled.compiled(network)(x), exact)
            assert torch.equal(network(x), exact)
        [said] = [str(one.message) for one in told if "engine.compile" in str(one.message)]
        assert said.endswith("; going on without")
        assert "\n" not in said


def test_a_pool_is_copied_once_while_it_lives() -> None:
    x, elsewhere = torch.ones(3), torch.device("meta")
    before = len(samples._RESIDENT)
    copy = resident(x, elsewhere)
    assert copy.device.type == "meta"
    assert resident(x, elsewhere) is copy
    x.add_(1)
    assert resident(x, elsewhere) is not copy
    del x
    gc.collect()
    assert len(samples._RESIDENT) == before


def test_dp_sgd_refuses_lower_precision(tiny: Callable[..., Config], tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    config = tiny(privacy={"sample": {"epsilon": 3.0}}, engine={"precision": "bfloat16"}, algorithm={"name": "fedavg"})
    with pytest.raises(FedstillError, match="set engine.precision = 'float32'"):
        run(config, tmp_path)
