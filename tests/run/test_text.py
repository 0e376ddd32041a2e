"""Text end to end: a local table of sentences, federated and fused by FedDF."""

from __future__ import annotations

import json
import random

import pytest
import torch

from fedstill.cli import app
from fedstill.run.configuration import configuration, parse
from fedstill.run.loop import run

GOOD, BAD = ("good", "lovely", "fine", "bright"), ("bad", "awful", "dull", "grim")
REST = ("a", "film", "the", "plot", "is", "and", "actor", "with")


@pytest.fixture
def sentences(tmp_path):
    """``tmp_path/films``: sentences that one word of theirs gives away."""
    chance = random.Random(0)

    def line():
        label = chance.randrange(2)
        words = [chance.choice(REST) for _ in range(5)] + [chance.choice(BAD if label else GOOD)]
        chance.shuffle(words)
        return json.dumps({"text": " ".join(words), "label": label})

    folder = tmp_path / "films"
    folder.mkdir()
    for split, count in (("train", 400), ("test", 100)):
        (folder / f"{split}.jsonl").write_text("\n".join(line() for _ in range(count)) + "\n")
    return folder


def tree(folder, **algorithm):
    return {
        "rounds": 2,
        "data": {"domains": [str(folder)], "holdout": 0.3, "text": {"length": 8, "vocab": 128}},
        "clients": {"per_domain": 3},
        "model": {"name": "text-small", "options": {"width": 16, "layers": 1, "heads": 2}},
        "local": {"epochs": 3, "batch_size": 16, "optimizer": {"name": "adam", "lr": 0.01}},
        "algorithm": algorithm,
        "engine": {"threads": 1},
    }


def test_feddf_learns_sentences(sentences, tmp_path):
    result = run(parse(tree(sentences, name="feddf", distillation={"steps": 40, "batch_size": 32})), tmp_path / "a")
    assert result.accuracy > 0.8
    assert result.history[-1]["ensemble_accuracy"] > 0.8
    # the network's vocabulary is the tokenizer's
    assert result.server.models["text-small"]["tokens.weight"].shape == (128, 16)
    assert result.task.shape == (8,)
    assert result.task.pool.samples.x.dtype == torch.int32


@pytest.mark.parametrize("given", [{}, {"text": None}, {"text": {"vocab": 500}}])
def test_text_has_a_model_by_default(sentences, tmp_path, given, recwarn):
    data = {"domains": [str(sentences)], "holdout": 0.3, "limit": 60, "test_limit": 20, **given}
    result = run(parse({"rounds": 1, "data": data, "algorithm": {"name": "fedavg"}}), tmp_path / "a")
    assert list(result.server.models) == ["text-small"]
    assert result.server.models["text-small"]["tokens.weight"].shape[0] == (given.get("text") or {}).get("vocab", 8192)
    assert 'name = "text-small"' in (tmp_path / "a" / "config.toml").read_text()
    assert not [warning for warning in recwarn if issubclass(warning.category, FutureWarning)]


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet20"])
def test_models_that_cannot_read_are_told_so_before_anybody_trains(sentences, tmp_path, name):
    from fedstill.core.errors import FedstillError

    with pytest.raises(FedstillError, match=f"model '{name}' is for .*, and the data is text: .* 'text-small'"):
        run(parse({**tree(sentences, name="fedavg"), "model": {"name": name}}), tmp_path / "a")


def test_noise_is_for_images(sentences, tmp_path):
    from fedstill.core.errors import FedstillError

    with pytest.raises(FedstillError, match="not images"):
        run(parse(tree(sentences, name="feddf", source={"kind": "noise"})), tmp_path / "a")


def test_the_command_runs_the_preset_on_a_local_folder(sentences, tmp_path):
    from typer.testing import CliRunner

    sets = [
        f'data.domains=["{sentences}"]',
        "rounds=1",
        "clients.per_domain=2",
        "data.text.length=8",
        "data.text.vocab=64",
        "algorithm.distillation.steps=5",
        "engine.threads=1",
    ]
    done = CliRunner().invoke(app, ["run", "text", *(f"--set={s}" for s in sets), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_distilbert_by_name_is_a_matter_of_configuration():
    sets = ["model.name=hf:distilbert-base-uncased", "data.text.tokenizer=hf:distilbert-base-uncased"]
    config = configuration("text", sets)
    assert config.model.name == config.data.text.tokenizer
