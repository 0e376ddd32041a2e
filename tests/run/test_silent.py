"""What used to be taken in silence and was not meant: said, refused, or done as asked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedstill.core.errors import FedstillError
from fedstill.run.configuration import configuration, parse, resolve
from fedstill.run.history import read_history
from fedstill.run.loop import run
from tests.conftest import tiny_tree

FEW = {"steps": 3, "batch_size": 16}


@pytest.mark.parametrize("pool", [{"server": "embedded:blended"}, {"target": "embedded:blended"}])
def test_samples_held_back_that_nobody_uses_are_refused(pool):
    with pytest.raises(FedstillError, match=rf"data.holdout .* data.{next(iter(pool))} is the pool") as error:
        parse(tiny_tree(data={"holdout": 0.2, **pool}))
    assert "\n" not in str(error.value)
    with pytest.raises(FedstillError, match=r"data\.holdout"):
        configuration("demo", ["data.holdout=0.1"])


def test_a_key_can_be_unset():
    assert configuration("demo", ["data.server="]).data.server is None
    assert configuration("demo", ["data.server=null", "data.holdout=0.1"]).data.server is None
    assert configuration("demo", ["data.server=none"]).data.server is None
    assert resolve(tiny_tree(data={"limit": "null"})).data.limit is None
    assert configuration("demo", ["model.norm=none"]).model.norm == "none"  # where it is a value, it is that value
    assert configuration("demo", ["local.epochs="]).local.epochs == 1
    with pytest.raises(FedstillError, match=r"rounds = .null"):
        configuration("demo", ["rounds=null"])


class Plain(nn.Module):
    def forward(self, z):
        return z


class Makes(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.made = shape

    def sample(self, n, generator):
        return torch.rand(n, *self.made, generator=generator), None


class Breaks(Makes):
    def sample(self, n, generator):
        raise ZeroDivisionError("by hand")


colour = Makes(3, 8, 8)
fits = Makes(1, 8, 8)
no_samples = Plain()
breaks = Breaks()
number = lambda: 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no_samples", "has no method sample"),
        ("colour", r"makes samples of shape \(3, 8, 8\), but this task's inputs have shape \(1, 8, 8\)"),
        ("breaks", "cannot make samples: by hand"),
        ("number", "returned a int, not a module"),
        ("FEW", "cannot be called"),
    ],
)
def test_a_generator_that_does_not_fit_is_one_line_before_anybody_trains(tiny, tmp_path, name, text):
    algorithm = {"name": "feddf", "distillation": FEW, "source": {"kind": "generator", "generator": f"{__name__}:{name}"}}
    with pytest.raises(FedstillError, match=rf"source\.generator = .*{text}") as error:
        run(tiny(algorithm=algorithm), tmp_path)
    assert "\n" not in str(error.value)
    assert not read_history(tmp_path / "history.jsonl")
    fine = {**algorithm, "source": {"kind": "generator", "size": 20, "generator": f"{__name__}:fits"}}
    if name == "colour":
        assert run(tiny(algorithm=fine, rounds=1), tmp_path / "fine").history[0]["distillation"]["mlp"]["steps"] == 3


GENERATING = {
    "dafkd": {"distillation": FEW, "source": {"size": 20}},
    "fedftg": {"generator": {"kind": "mlp-conditional"}, "iterations": 1, "student_steps": 1},
    "fedgen": {"steps": 2},
}


@pytest.mark.parametrize("name", GENERATING)
def test_a_run_leaves_its_generator_for_another(tiny, tmp_path, name):
    run(tiny(rounds=1, algorithm={"name": name, **GENERATING[name]}), tmp_path / "first")
    file = tmp_path / "first" / "generator.safetensors"
    source = {"kind": "generator", "size": 20, "generator": str(file)}
    result = run(tiny(rounds=1, algorithm={"name": "feddf", "distillation": FEW, "source": source}), tmp_path / "second")
    assert result.history[0]["distillation"]["mlp"]["steps"] == 3
    other = tiny(rounds=1, data={"image_size": 10}, model={"options": {"hidden": [12]}})
    with pytest.raises(FedstillError, match=r"source\.generator = .* makes samples of shape"):
        run(other.model_copy(update={"algorithm": {"name": "feddf", "source": source}}), tmp_path / "third")
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 4
    file.write_bytes(damaged)
    with pytest.raises(FedstillError, match="its digest does not match"):
        run(tiny(rounds=1, algorithm={"name": "feddf", "source": source}), tmp_path / "fourth")


def test_features_from_a_generator_take_a_weighting_that_looks_at_none(tiny, tmp_path):
    run(tiny(rounds=1, algorithm={"name": "fedgen", "steps": 1}), tmp_path / "first")
    source = {"kind": "generator", "generator": str(tmp_path / "first" / "generator.safetensors")}
    with pytest.raises(FedstillError, match="makes features"):
        run(tiny(algorithm={"name": "fedd3a", "source": source}), tmp_path / "second")


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "fedavg"}},
        {"algorithm": {"name": "fedprox", "merge": "uniform"}},
        {"algorithm": {"name": "shot", "multi": "merged", "epochs": 1}, "data": {"target": "embedded:blended", "channels": 3}},
        {"algorithm": {"name": "feddf", "distillation": {**FEW, "fresh": True}}, "data": {"holdout": 0.3}},
        {"algorithm": {"name": "fedd3a", "distillation": {**FEW, "fresh": True}}, "data": {"holdout": 0.3}},
    ],
)
def test_every_round_records_the_sources_weights(tiny, tmp_path, changes):
    for line in run(tiny(**changes), tmp_path).history:
        assert line["weights"].keys() == {"optdigits-0", "mnist-0"}
        assert sum(line["weights"].values()) == pytest.approx(1, abs=1e-4)
