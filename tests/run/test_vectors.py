"""Vectors end to end: every system on arrays in memory, and what only images can have said before anybody trains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedstill
from fedstill.algorithms import algorithms
from fedstill.cli import app
from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.weightings import weightings
from fedstill.local.reports.discriminator import distorted

FEW = {  # each system's own steps, cut to what a test can wait for
    "dafkd": ["source.size=16", "distillation.steps=2", "generator.noise_dim=4"],
    "feddf": ["distillation.steps=2"],
    "fedbe": ["distillation.epochs=1"],
    "fedd3a": ["distillation.epochs=1"],
    "fedftg": ["iterations=1", "student_steps=1", "generator.noise_dim=4"],
    "fedgen": ["steps=2"],
    "fedvirtual": ["distillation.epochs=1"],
}
ADAPTS = [name for name, kind in algorithms().items() if "target" in kind.needs]


def site(shift, n=30):
    rng = np.random.default_rng(int(10 * shift) + 100)
    labels = np.arange(n) % 3
    return rng.normal(size=(n, 4)) + labels[:, None] + shift, labels


def ran(tmp_path, name, *settings, **given):
    given = {"pool": site(0.5)[0], **given}
    few = [f"algorithm.{text}" for text in FEW.get(name, [])]
    sites = {"north": site(0), "south": site(1)}
    fixed = ["rounds=2", "local.epochs=1", "engine.threads=1", f"algorithm.name={name}"]
    small = [] if any(setting.startswith("model.name") for setting in settings) else ["model.options.hidden=[8]"]
    return fedstill.run(clients=sites, out=tmp_path / "run", settings=[*fixed, *small, *few, *settings], **given)


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_every_system_takes_vectors(tmp_path, name):
    result = ran(tmp_path, name, **({"pool": None, "target": site(0.5)} if name in ADAPTS else {}))
    assert len(result.history) == 2
    assert result.task.kind == "vector"
    assert 0 <= result.accuracy <= 1
    assert not (tmp_path / "run" / "samples").exists(), "vectors are no pictures"


@pytest.mark.parametrize("name", sorted(weightings()))
def test_every_weighting_takes_vectors(tmp_path, name):
    private = "privacy.votes={ sigma = 1.0, sigma_threshold = 1.0, threshold = 0.0 }"  # not by its name: fuse alone takes that
    settings = [private, "algorithm.line=false"] if name == "private-votes" else [f"algorithm.weighting={name}"]
    assert len(ran(tmp_path, "feddf", *settings).history) == 2


def test_private_votes_by_name_are_for_fuse(tmp_path):
    with pytest.raises(FedstillError, match="in a run, set privacy.votes"):
        ran(tmp_path, "feddf", "algorithm.weighting=private-votes")


def test_a_generator_of_vectors_can_be_distilled_on_later(tmp_path):
    ran(tmp_path, "fedftg")
    made = tmp_path / "run" / "generator.safetensors"
    kinds = ["algorithm.source.kind=generator", "algorithm.source.size=8", f"algorithm.source.generator={made}"]
    assert len(ran(tmp_path / "again", "feddf", *kinds, pool=None).history) == 2


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("dafkd", ["algorithm.generator.kind=dcgan"], "makes images, but the inputs are vectors: use 'mlp-conditional'"),
        ("fedftg", ["algorithm.generator.kind=dcgan"], "makes images, but the inputs are vectors"),
        ("feddf", ["algorithm.source.kind=noise"], "'noise' makes images"),
        ("feddf", ["algorithm.source.kind=mixture"], "'noise' makes images"),
        ("kdcl", [], "set data.target"),
        ("fedavg", ["model.name=cnn"], "model 'cnn' is for images, and the data is vectors: leave model.name out, or .* 'mlp'"),
        ("fedavg", ["model.name=text-small"], "model 'text-small' is for text, and the data is vectors"),
    ],
)
def test_what_vectors_cannot_have_is_one_line_before_anybody_trains(tmp_path, name, settings, says, monkeypatch):
    def trains(*_, **__):
        pytest.fail("somebody trained")

    monkeypatch.setattr("fedstill.local.update.client_fit", trains)
    with pytest.raises(FedstillError, match=says) as error:
        ran(tmp_path, name, *settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["dafkd", "fedftg"])
def test_texts_cannot_be_generated(tmp_path, name):
    words = np.array(["a good and lovely film", "a bad and awful film"] * 10), np.array([0, 1] * 10)
    with pytest.raises(FedstillError, match="cannot generate text"):
        fedstill.run(clients={"a": words, "b": words}, out=tmp_path, settings=[f"algorithm.name={name}"])


def test_the_target_is_tested_and_its_inputs_are_the_pool(tmp_path):
    result = ran(tmp_path, "kd3a", pool=None, target=site(0.5))
    assert result.task.target == "target"
    assert torch.equal(result.task.pool.samples.x, result.task.domains["target"].train.x)
    assert result.task.pool.samples.y is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"target": site(0)}, "give target or pool, not both"),
        ({"target": site(0)[0], "pool": None}, r"target is a pair \(x, y\)"),
    ],
)
def test_mistakes_with_the_target(tmp_path, given, says):
    with pytest.raises(FedstillError, match=says):
        ran(tmp_path, "kd3a", **given)


def test_distorted_vectors_keep_their_scale_and_lose_their_samples():
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 10.0, 0.0]) + 5
    made = distorted(Samples(x), torch.Generator().manual_seed(1)).x
    assert made.shape == x.shape
    assert torch.allclose(made.mean(0), x.mean(0), atol=1.5)
    assert torch.equal(made[:, 2], x[:, 2])  # what never changes stays as it is
    assert sum(bool((row == x).all(1).any()) for row in made) < 5  # by chance alone


# -- tables ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clinics(tmp_path):
    """The README's clinics as CSV files, and its configuration."""
    import tomllib

    import pandas
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    frame = pandas.DataFrame(x[:240, :5], columns=["radius", "texture", "perimeter", "area", "smoothness"])
    frame["diagnosis"] = np.array(["malignant", "benign"])[y[:240]]
    frame.iloc[200:, :5].to_csv(tmp_path / "unlabelled.csv", index=False)
    for name, part in zip(["small", "medium", "large"], np.array_split(np.argsort(x[:200, 0]), 3), strict=True):
        frame.iloc[part].to_csv(tmp_path / f"{name}.csv", index=False)
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (tmp_path / "clinics.toml").write_text(readme.split("# clinics.toml")[1].split("```")[0])
    assert tomllib.loads((tmp_path / "clinics.toml").read_text())["data"]["label"] == "diagnosis"
    return tmp_path


def test_the_readmes_clinics_from_files(clinics, monkeypatch, recwarn):
    monkeypatch.chdir(clinics)
    systems = ["--algorithms", "fedavg,feddf,fedd3a", "--seeds", "0", "--out", "runs/clinics"]
    done = CliRunner().invoke(app, ["compare", "clinics.toml", *systems, "--set", "engine.threads=1"])
    assert done.exit_code == 0, done.output
    assert "fedavg: does not use distillation" in " ".join(done.output.split())
    assert not [warning for warning in recwarn if issubclass(warning.category, FutureWarning)]
    runs = sorted((clinics / "runs" / "clinics").rglob("*/summary.json"))
    assert len(runs) == 3
    for path in runs:
        summary = json.loads(path.read_text())
        assert summary["final_accuracy"] > 0.7
    history = next(iter((clinics / "runs" / "clinics").rglob("history.jsonl"))).read_text()
    assert '"small"' in history
    assert "small.csv" not in history  # domains are called without the ending of their file
