"""What one has trained, used: the model of a run, a fused folder or a bundle says what it said in training."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fedstill
from fedstill.bundles.export import export
from fedstill.bundles.pack import pack
from fedstill.cli import app
from fedstill.core.errors import FedstillError
from fedstill.data.embedded import embedded_images
from fedstill.models.predict import predict_logits
from fedstill.run.loop import run
from tests.conftest import tiny_config


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(tiny_config(), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def wards(tmp_path_factory):
    """Two wards in CSV files, with numbers far from 0, some missing, and words."""
    folder, rng = tmp_path_factory.mktemp("wards"), np.random.default_rng(0)
    for name, shift in (("north", 0.0), ("south", 500.0)):
        sick = np.arange(120) % 2
        age, dose = 4000 + shift + 900 * sick + rng.normal(size=120), 0.001 * rng.normal(size=120) + 0.002 * sick
        rows = [
            f"{a:.3f},{'' if i % 9 == 0 else f'{d:.6f}'},{'fm'[i % 3 == 0]},{['well', 'sick'][s]}"
            for i, (a, d, s) in enumerate(zip(age, dose, sick, strict=True))
        ]
        (folder / f"{name}.csv").write_text("\n".join(["age,dose,sex,outcome", *rows]) + "\n")
    return folder


def tabular(folder, out, **data):
    tree = {"rounds": 2, "data": {"root": str(folder), "domains": ["north", "south"], "label": "outcome", **data}}
    return fedstill.run({**tree, "local": {"epochs": 4}}, out, progress=False)


def test_a_result_has_its_model_and_says_what_it_says(result):
    assert not result.model.training
    test = result.task.tests["mnist"]
    said = predict_logits(result.model, test).argmax(1)
    assert float((said == test.y).double().mean()) == pytest.approx(result.history[-1]["domains"]["mnist"])
    assert result.predict(test.x) == [result.task.classes[i] for i in said.tolist()]
    shares = result.predict(test.x, probabilities=True)
    assert shares.shape == (len(test), 10)
    assert torch.allclose(shares.sum(1), torch.ones(len(test)))
    table = result.confusion("mnist")
    assert table.accuracy == pytest.approx(result.history[-1]["domains"]["mnist"])
    assert table.support == torch.bincount(test.y, minlength=10).tolist()
    assert result.confusion().samples == sum(len(one) for one in result.task.tests.values())
    with pytest.raises(FedstillError, match="unknown test domain 'mnits'; did you mean 'mnist'"):
        result.confusion("mnits")


def test_a_loaded_run_says_the_same(result):
    model = fedstill.load(result.folder)
    test = result.task.tests["optdigits"]
    assert torch.equal(model.predict(test.x, probabilities=True), result.predict(test.x, probabilities=True))
    assert model.classes == result.task.classes
    assert model.about["algorithm"] == "fedavg"


def test_images_are_made_inputs_as_in_training(result, tmp_path):
    """From files, from images and from arrays: what the run saw of the test set, the model sees of the pictures."""
    pictures, labels = embedded_images("mnist")
    (tmp_path / "in").mkdir()
    for i in range(12):
        pictures[i].convert("RGB").save(tmp_path / "in" / f"{i:02d}.png")
    model = fedstill.load(result.folder)
    files = sorted((tmp_path / "in").iterdir())
    shares = model.predict(files, probabilities=True)
    assert torch.equal(shares, model.predict(tmp_path / "in", probabilities=True))
    assert torch.equal(shares, model.predict([Image.open(file) for file in files], probabilities=True))
    known = fedstill.load(result.folder).evaluate("embedded:mnist")
    assert known.samples == len(labels)
    deep = Image.fromarray((np.asarray(pictures[0]).astype(np.uint16)) * 257)
    deep.save(tmp_path / "deep.png")
    pictures[0].save(tmp_path / "flat.png")
    pair = model.predict([tmp_path / "deep.png", tmp_path / "flat.png"], probabilities=True)
    assert torch.allclose(pair[0], pair[1], atol=1e-2)


def test_what_cannot_be_an_input_is_said_in_one_line(result, tmp_path):
    (tmp_path / "no.png").write_bytes(b"no image")
    for wrong, said in (
        (tmp_path / "no.png", "no.png"),
        (tmp_path / "none.png", "no such file"),
        (torch.zeros(2, 5, 8, 8, dtype=torch.uint8), "shape"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.int64), "uint8"),
        ([{"a": 1}], "takes images"),
    ):
        with pytest.raises(FedstillError, match=said):
            fedstill.load(result.folder).predict(wrong)


def test_rows_are_standardised_as_in_training(wards, tmp_path):
    found = tabular(wards, tmp_path / "run")
    assert found.accuracy > 0.9
    model = fedstill.load(found.folder)
    for name in ("north", "south"):
        said = model.evaluate(str(wards / f"{name}.csv") + "#test")
        assert said.accuracy == pytest.approx(found.history[-1]["domains"][name])
        assert np.array_equal(said.matrix, found.confusion(name).matrix)
    row = {"age": 4900.0, "dose": None, "sex": "f"}
    assert model.predict([row]) == ["sick"]
    assert model.predict({"age": [4000.0, 5400.0], "dose": [0.0, 0.002], "sex": ["m", "f"]})[0] == "well"
    whole = model.predict(wards / "north.csv", probabilities=True)
    assert whole.shape == (120, 2)
    import pandas

    assert torch.equal(model.predict(pandas.read_csv(wards / "north.csv"), probabilities=True), whole)
    with pytest.raises(FedstillError, match="no column 'dose'"):
        model.predict([{"age": 1.0, "sex": "f"}])
    with pytest.raises(FedstillError, match="column 'sex' holds 'x'"):
        model.predict([{**row, "sex": "x"}])
    with pytest.raises(FedstillError, match="takes words too"):
        model.predict(np.zeros((2, 3)))


def test_how_images_are_read_is_not_said_to_a_model_of_rows(wards, tmp_path):
    tabular(wards, tmp_path / "run")
    for use in ("predict", "evaluate"):
        done = CliRunner().invoke(app, [use, str(tmp_path / "run"), str(wards / "north.csv"), "--set", "data.range=[0, 1]"])
        assert isinstance(done.exception, FedstillError)
        assert "the model takes rows of" in str(done.exception)


def test_arrays_are_standardised_as_in_training(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(100) % 2
    x = 1000 + 30 * rng.normal(size=(100, 3)) + 90 * y[:, None]
    found = fedstill.run({"rounds": 2, "local": {"epochs": 4}}, tmp_path, clients={"a": (x, y), "b": (x + 5, y)}, progress=False)
    model = fedstill.load(tmp_path)
    assert float(np.mean(np.array(model.predict(x)) == y.astype(str))) > 0.9
    assert torch.equal(model.predict(torch.tensor(x), probabilities=True), found.predict(x, probabilities=True))
    np.savez(tmp_path / "rows.npz", x=x)
    assert torch.equal(model.predict(tmp_path / "rows.npz", probabilities=True), found.predict(x, probabilities=True))
    with pytest.raises(FedstillError, match="rows of 3 numbers"):
        model.predict(x[:, :2])


def test_rows_of_sites_that_kept_their_means_are_not_guessed_at(wards, tmp_path):
    found = tabular(wards, tmp_path, standardise="local")
    with pytest.raises(FedstillError, match="standardised = True"):
        found.predict([{"age": 1.0, "dose": 1.0, "sex": "f"}])
    test = found.task.tests["north"]
    assert len(fedstill.load(tmp_path).predict(test.x, standardised=True)) == len(test)


def test_texts_are_read_as_in_training(tmp_path):
    for name in ("a", "b"):
        rows = [f'"this film was {"good" if i % 2 else "bad"} and it was number {i}",{i % 2}' for i in range(60)]
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "\n".join(rows))
    data = {"root": str(tmp_path), "domains": ["a", "b"], "text": {"length": 12, "vocab": 200}}
    found = fedstill.run({"rounds": 1, "data": data, "local": {"epochs": 2}}, tmp_path / "run", progress=False)
    model = fedstill.load(tmp_path / "run")
    assert len(model.predict(["it was good", "it was bad"])) == 2
    said = model.evaluate(f"{tmp_path / 'a.csv'}#test")
    assert said.accuracy == pytest.approx(found.history[-1]["domains"]["a"])


def test_a_run_on_a_frozen_trunk_leaves_a_whole_model(tmp_path):
    config = tiny_config(model={"name": "resnet8", "train": "head"}, data={"image_size": 16})
    found = run(config, tmp_path)
    raw = found.task.raw_domains["mnist"].test
    loaded = fedstill.load(tmp_path)
    assert torch.allclose(loaded.predict(raw.x, probabilities=True), found.predict(raw.x, probabilities=True), atol=1e-5)
    assert found.confusion("mnist").accuracy == pytest.approx(loaded.evaluate(raw).accuracy)


def test_several_models_none_and_other_kinds_of_folders(result, tmp_path):
    found = run(tiny_config(model={"clients": ["mlp", "cnn-small"]}), tmp_path / "two")
    with pytest.raises(FedstillError, match="this run has 2 models"):
        _ = found.model
    assert set(found.classifiers) == {"mlp", "cnn-small"}
    with pytest.raises(FedstillError, match=r"has 2 models: name one \(model\): cnn-small, mlp"):
        fedstill.load(tmp_path / "two")
    assert type(fedstill.load(tmp_path / "two", model="mlp").network).__name__ == "MLP"
    none = run(tiny_config(rounds=1, algorithm={"name": "fd"}), tmp_path / "fd")
    with pytest.raises(FedstillError, match="no model on the server"):
        _ = none.model
    with pytest.raises(FedstillError, match="writes no model"):
        fedstill.load(tmp_path / "fd")
    for wrong in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FedstillError, match="not the folder of a run|no such file or folder"):
            fedstill.load(wrong)
    weights = result.folder / "model.safetensors"
    bundle = tmp_path / "site.fed"
    pack(bundle, model="mlp", weights=weights, options={"hidden": [16]}, data="embedded:optdigits", describe=[])
    test = result.task.tests["optdigits"]
    assert fedstill.load(bundle).predict(test.x) == result.predict(test.x)
    fused = fedstill.fuse({"a": bundle, "b": bundle}, test.x, distillation={"steps": 2})
    fused.save(tmp_path / "fused")
    assert torch.equal(fedstill.load(tmp_path / "fused").logits(test.x), predict_logits(fused.network.eval(), test).cpu())


def test_damage_is_refused(result, tmp_path):
    whole = (result.folder / "model.safetensors").read_bytes()
    for place in (len(whole) // 2, len(whole) - 3, whole.index(b"classes") + 1):
        data = bytearray(whole)
        data[place] ^= 4
        (tmp_path / "model.safetensors").write_bytes(data)
        with pytest.raises(FedstillError, match="damaged|cannot be read"):
            fedstill.load(tmp_path / "model.safetensors")


BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
BLOCKED = "import sys\nsys.modules['fedstill'] = None  # who imports it now fails\n"


@pytest.mark.parametrize("kind", ["image", "rows", "text"])
def test_the_card_works_without_fedstill(kind, result, wards, tmp_path):
    """Both programs in fresh processes that cannot import fedstill, and both say what the model says."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    if kind == "image":
        model, out = fedstill.load(result.folder), tmp_path / "out"
        embedded_images("optdigits")[0][7].resize((8, 8), Image.Resampling.BILINEAR).save(tmp_path / "image.png")
        asked = [tmp_path / "image.png"]
    elif kind == "rows":
        found = tabular(wards, tmp_path / "run")
        model, out = fedstill.load(found.folder), tmp_path / "out"
        rows = model.preprocessing.rows
        asked = [{name: round(m, 4) for name, m in zip(rows.plan.numbers, rows.mean, strict=True)} | {"sex": "f"}]
    else:
        for name in ("a", "b"):
            lines = [f'"a {"good" if i % 2 else "bad"} film, as I said, number {i}",{i % 2}' for i in range(40)]
            (tmp_path / f"{name}.csv").write_text("text,label\n" + "\n".join(lines))
        data = {"root": str(tmp_path), "domains": ["a", "b"], "text": {"length": 12, "vocab": 200}}
        fedstill.run({"rounds": 1, "data": data}, tmp_path / "run", progress=False)
        model, out = fedstill.load(tmp_path / "run"), tmp_path / "out"
        asked = ["some text"]
    export(model, out, onnx=True)
    if kind == "image":
        (tmp_path / "image.png").rename(out / "image.png")
        asked = [out / "image.png"]
    card = (out / "MODEL_CARD.md").read_text()
    blocks = [block for block in BLOCK.findall(card) if "import fedstill" not in block]
    assert len(blocks) == 2
    shares = model.predict(asked, probabilities=True)[0]
    for block in blocks:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [sys.executable, "-c", BLOCKED + block], cwd=out, env=environment, capture_output=True, text=True, timeout=120
        )
        assert not done.returncode, done.stderr[-2000:]
        word, share = done.stdout.split()
        assert word == model.classes[int(shares.argmax())]
        assert float(share) == pytest.approx(float(shares.max()), abs=2e-3)


def test_an_export_overwrites_nothing_of_others(result, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FedstillError, match="holds other files"):
        export(fedstill.load(result.folder), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def ask(*words):
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)


def test_the_commands(result, tmp_path):
    embedded_images("mnist")[0][3].save(tmp_path / "three.png")
    said = ask("predict", result.folder, tmp_path / "three.png")
    assert said.exit_code == 0
    assert result.predict([tmp_path / "three.png"])[0] in said.output
    ask("predict", result.folder, tmp_path, "--out", tmp_path / "said.csv", "--probabilities")
    lines = (tmp_path / "said.csv").read_text().splitlines()
    assert lines[0].startswith("input,class,probability,0,1")
    assert len(lines) == 2
    written = ("--out", tmp_path / "figures.json", "--page", tmp_path / "figures.html")
    said = ask("evaluate", result.folder, "embedded:optdigits#test", *written)
    figures = json.loads((tmp_path / "figures.json").read_text())["embedded:optdigits#test"]
    assert f"accuracy {100 * figures['accuracy']:.1f} %" in said.output
    assert "recall %" in said.output
    assert sum(map(sum, figures["confusion"]["matrix"])) == figures["samples"] == 359
    page = (tmp_path / "figures.html").read_text()
    assert f"embedded:optdigits#test: {100 * figures['accuracy']:.1f} % of 359 samples" in page
    assert page.count('title="') == sum(count > 0 for row in figures["confusion"]["matrix"] for count in row)
    assert "<script" not in page
    assert ask("export", result.folder, "--out", tmp_path / "out", "--no-onnx").exit_code == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["MODEL_CARD.md", "model.pt2"]


def test_names_from_others_are_shown_and_not_interpreted_in_a_card(tmp_path):
    name = "site|<img src=x>\n# owned"
    bundle = tmp_path / "site.fed"
    pack(bundle, model="mlp", data="embedded:optdigits", epochs=1, name=name, describe=[])
    folder = export(fedstill.load(bundle), tmp_path / "out")
    pool = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    fused = fedstill.fuse({name: bundle, "other": bundle}, pool, distillation={"steps": 1})
    fused.save(tmp_path / "fused")
    for card in (folder / "MODEL_CARD.md", tmp_path / "fused" / "MODEL_CARD.md"):
        text = card.read_text()
        assert "<img" not in text
        assert not any(line.startswith("# owned") for line in text.splitlines())
        assert r"site\|&lt;img src=x&gt; \# owned" in text


def test_paths_are_taken_as_they_are(result):
    assert fedstill.load(str(result.folder)).shape == fedstill.load(Path(result.folder)).shape == (1, 8, 8)
