"""The ensemble as a product: kept by a run, read again, and as good as the history says."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.bundles.export import program_bytes
from fedstill.bundles.loading import load, read_ensemble
from fedstill.core.errors import FedstillError
from fedstill.fusion.kept import INDEX
from fedstill.models.files import read_state, state_bytes
from fedstill.models.predict import accuracy
from fedstill.run.loop import Result, run

FAST = {"distillation": {"steps": 2, "batch_size": 16}}


def kept(tiny: Any, tmp_path: Path, algorithm: dict, **tree: Any) -> Result:
    data = {"server": "embedded:blended"}
    config = tiny(data=data, algorithm=algorithm, evaluation={"keep_ensemble": True}, **tree)
    return run(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("algorithm", "tree"),
    [
        ({"name": "feddf", **FAST}, {}),
        ({"name": "fedd3a", **FAST}, {}),
        ({"name": "fedbe", "samples": 2, **FAST}, {}),
        ({"name": "fedrad", **FAST}, {}),
        ({"name": "feddf", "weighting": "vote", **FAST}, {}),
        ({"name": "feddf", "weighting": "counts", "ensemble": "probabilities", **FAST}, {}),
        ({"name": "fedd3a", **FAST}, {"model": {"clients": ["mlp", "cnn-small"]}}),
    ],
    ids=lambda value: value.get("weighting", value.get("name", "")) if "name" in value else "",
)
def test_what_is_kept_is_the_ensemble_that_was_measured(algorithm: dict, tree: dict, tiny: Any, tmp_path: Path) -> None:
    result = kept(tiny, tmp_path, algorithm, **tree)
    network, about = read_ensemble(tmp_path / "run" / "ensemble")
    tests = result.task.tests.values()
    found = sum(accuracy(network, test) for test in tests) / len(tests)
    assert found == pytest.approx(result.history[-1]["ensemble_accuracy"], abs=1e-6)
    assert about["classes"] == list(result.task.classes)
    sums = network(next(iter(tests)).x[:5]).exp().sum(1)
    assert torch.allclose(sums, torch.ones(5), atol=1e-4)


def test_damage_is_told_and_nothing_is_read_outside_of_the_folder(tiny: Any, tmp_path: Path) -> None:
    kept(tiny, tmp_path, {"name": "fedd3a", **FAST})
    folder = tmp_path / "run" / "ensemble"
    teacher = folder / "teacher-0.safetensors"
    whole = teacher.read_bytes()
    teacher.write_bytes(whole[:-3] + b"xyz")
    with pytest.raises(FedstillError, match="changed or damaged"):
        read_ensemble(folder)
    teacher.write_bytes(whole)
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**index, "backbones": {"mlp": "../model.safetensors"}}))
    with pytest.raises(FedstillError, match="outside its folder"):
        read_ensemble(folder)
    (folder / INDEX).write_text(json.dumps({**index, "teachers": [{}]}))
    with pytest.raises(FedstillError, match="not a readable ensemble"):
        read_ensemble(folder)


def test_a_system_without_teachers_says_so_before_anything_runs(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match="fedavg has no ensemble"):
        kept(tiny, tmp_path, {"name": "fedavg"})
    assert not (tmp_path / "run" / "history.jsonl").exists()


@pytest.mark.parametrize("name", ["fedrad", "fedd3a", "feddf"])  # a vote, weights by projection, equal ones
def test_it_is_loaded_like_any_model_and_exported_as_one_program(tiny: Any, tmp_path: Path, name: str) -> None:
    result = kept(tiny, tmp_path, {"name": name, **FAST})
    found = load(tmp_path / "run", model="ensemble")
    images = next(iter(result.task.tests.values())).x[:7]
    assert load(tmp_path / "run" / "ensemble").predict(images) == found.predict(images)
    file = io.BytesIO(program_bytes(found))
    program = torch.export.load(file).module()
    assert torch.allclose(program(images).softmax(1), found.predict(images, probabilities=True), atol=1e-4)


@pytest.mark.parametrize("norm", ["pool", "own"])
def test_voters_that_are_kept_say_the_same_in_any_company(norm: str, tiny: Any, tmp_path: Path) -> None:
    algorithm = {"name": "feddf", "weighting": "median", "weighting_options": {"vote_norm": norm}, **FAST}
    result = kept(tiny, tmp_path, algorithm, rounds=1, model={"name": "cnn-small", "options": {}})
    network, _ = read_ensemble(tmp_path / "run" / "ensemble")
    x = next(iter(result.task.tests.values())).x[:6]
    with torch.no_grad():
        assert torch.allclose(network(x)[:2], network(x[:2]), atol=1e-4)


def test_an_ensemble_that_names_code_is_not_opened_unasked(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tiny, tmp_path, {"name": "feddf", **FAST})
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "run" / "ensemble" / "teacher-0.safetensors"
    state, about = read_state(file)
    file.write_bytes(state_bytes(state, {**about, "model": "evil:net"}))
    with pytest.raises(FedstillError, match="trust_code"):
        load(tmp_path / "run", model="ensemble")
    assert not (tmp_path / "ran").exists()
