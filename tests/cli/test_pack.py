"""``fedstill pack`` and ``fedstill fuse`` as a new user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

import fedstill
from fedstill.bundles.bundle import read_bundle
from fedstill.bundles.folder import read_fused
from fedstill.bundles.fuse import fuse
from fedstill.cli import main
from fedstill.data.loading import load_domain
from fedstill.data.samples import Samples, hold_out
from fedstill.models.predict import accuracy

from ..bundles.sites import blob_bundle, blobs, trained, write_folder


def command(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess:
    """The command in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(fedstill.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "fedstill", *map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """The command in this process: its status, what it said, and what it said of a mistake."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedstill", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


# -- the whole way -----------------------------------------------------------------------------------------------------------

SITES = {"mnist": "cnn-small", "optdigits": "lenet", "rotated": "mlp"}


@pytest.mark.slow
def test_three_sites_three_architectures_one_model(tmp_path: Path) -> None:
    """Each site trains on six tenths of its domain's images; the centre has the other four, without labels."""
    tests: dict[str, Samples] = {}
    for name, model in SITES.items():
        domain = load_domain(f"embedded:{name}", image_size=28, channels=1)
        mine, pool = hold_out(domain.train, 0.4, np.random.default_rng(0))
        write_folder(tmp_path / name, mine, domain.classes)
        write_folder(tmp_path / "images" / name, pool.unlabelled(), None)
        torch.save(trained(model, mine, 10).state_dict(), tmp_path / f"{name}.pt")
        tests[name] = domain.test
    for name, model in SITES.items():
        words = ("--model", model, "--weights", f"{name}.pt", "--data", name, "--out", f"{name}.fed")
        packed = command("pack", *words, cwd=tmp_path)
        assert packed.returncode == 0, packed.stderr
        assert "no images" in packed.stdout
    bundles = [f"{name}.fed" for name in SITES]
    options = ("--student", "cnn-small", "--weighting", "projection", "--steps", 400, "--set", "batch_size=64")
    fused = command("fuse", *bundles, "--unlabelled", "images", *options, "--out", "fused", cwd=tmp_path)
    assert fused.returncode == 0, fused.stderr
    assert sorted(path.name for path in (tmp_path / "fused").iterdir()) == ["MODEL_CARD.md", "fused.json", "model.safetensors"]

    before = fuse(
        [tmp_path / bundle for bundle in bundles],
        "embedded:optdigits",
        weighting="projection",
        validation=tests,
        limit=8,
        distillation={"steps": 1},
    )
    figures = {figure.who: figure.mean for figure in before.figures}
    network = read_fused(tmp_path / "fused").network()
    student = float(np.mean([accuracy(network, test) for test in tests.values()]))
    assert student > max(figures[name] for name in SITES) + 0.1, (student, figures)
    assert student > figures["ensemble"] - 0.06, (student, figures)  # how much is lost differs between processors


# -- packing -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "site", blobs(range(3), 60, 3), ["row0", "row1", "row2"])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.save(trained("mlp", blobs(range(3), 120, 3), 3).state_dict(), tmp_path / "w.pt")
    return tmp_path / "w.pt"


def test_pack_show_and_leave_out(cli, site: Path, weights: Path) -> None:
    status, out, _ = cli("pack", "--model", "mlp", "--weights", weights, "--data", site, "--out", "a.fed")
    assert status == 0
    assert "accuracy on the site's own images is 100.0%" in out
    status, out, _ = cli("pack", "--show", "a.fed")
    assert status == 0
    assert "row0 " in out
    assert "subspace" in out
    words = ("--model", "mlp", "--weights", weights, "--data", site, "--out", "b.fed")
    status, out, _ = cli("pack", *words, "--no-counts", "--describe", "none")
    assert status == 0
    assert "number of samples" not in out
    assert "subspace" not in out


def test_classes_in_the_wrong_order_are_suspected(cli, site: Path, weights: Path) -> None:
    words = ("--model", "mlp", "--weights", weights, "--data", site, "--out", "a.fed", "--classes", "row1,row2,row0")
    status, out, _ = cli("pack", *words)
    assert status == 0
    assert "near chance; are --classes in the order" in out


def test_a_model_that_was_trained_here_too_little_is_to_be_trained_longer(cli, site: Path) -> None:
    status, out, _ = cli("pack", "--model", "mlp", "--epochs", 1, "--lr", "1e-9", "--data", site, "--out", "a.fed")
    assert status == 0
    assert "near chance; train longer (--epochs)\n" in out


def test_a_network_of_ones_own(cli, tmp_path: Path, site: Path) -> None:
    (tmp_path / "mynets.py").write_text(
        "from torch import nn\n\n\ndef small(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    torch.save(own.state_dict(), tmp_path / "w.pt")
    status, out, _ = cli("pack", "--model", "mynets:small", "--weights", "w.pt", "--data", site, "--out", "a.fed")
    assert status == 0, out
    words = ("fuse", "a.fed", "--unlabelled", site, "--student", "mlp", "--steps", 2)
    status, _, err = cli(*words)
    assert status == 2
    assert "allow that with trust_code" in err
    assert cli(*words, "--trust-code")[0] == 0
    assert (tmp_path / "fused" / "model.safetensors").exists()


def test_rounds_by_files(cli, tmp_path: Path, site: Path) -> None:
    for name in "ab":
        assert cli("pack", "--model", "mlp", "--data", site, "--epochs", 2, "--lr", "0.1", "--out", f"{name}.fed")[0] == 0
    for out in ("fused1", "fused2"):
        words = ("--unlabelled", site, "--steps", 20, "--out", out, "--validation", site)
        status, said, _ = cli("fuse", "a.fed", "b.fed", *words)
        assert status == 0
        assert "ensemble" in said
        for name in "ab":
            assert cli("pack", "--from", out, "--data", site, "--out", f"{name}.fed")[0] == 0
    facts = json.loads((tmp_path / "fused2" / "fused.json").read_text())
    assert facts["figures"][-1]["mean"] > 0.9


@pytest.mark.parametrize("weighting", ["uniform", "projection", "discriminator", "vote", "median", "random", "examples"])
def test_weightings(cli, tmp_path: Path, site: Path, weighting: str) -> None:
    for seed, name in enumerate("ab"):
        words = ("--model", "mlp", "--data", site, "--epochs", 1, "--lr", "0.1", "--seed", seed, "--out", f"{name}.fed")
        assert cli("pack", *words, "--describe", "projection,discriminator")[0] == 0
    words = ("--unlabelled", site, "--steps", 2, "--weighting", weighting)
    status, out, err = cli("fuse", "a.fed", "b.fed", *words)
    assert status == 0, err
    weights = json.loads((tmp_path / "fused" / "fused.json").read_text())["teachers"]
    assert sum(teacher["weight"] for teacher in weights) == pytest.approx(1, abs=1e-3)


def test_a_weighting_takes_its_options(cli, tmp_path: Path, site: Path) -> None:
    for name in "ab":
        blob_bundle(tmp_path, name, range(3), hidden=[8])
    words = ("fuse", "a.fed", "b.fed", "--unlabelled", site, "--steps", 1, "--weighting", "vote")
    given = ("vote_norm=own", "gate.start=0", "gate.end=0")
    status, _, err = cli(*words, *(word for text in given for word in ("--set", f"weighting_options.{text}")))
    assert status == 0, err
    facts = json.loads((tmp_path / "fused" / "fused.json").read_text())["settings"]
    assert facts["weighting_options"] == {"vote_norm": "own", "gate": {"start": 0, "end": 0}}
    status, _, err = cli(*words, "--set", "weighting_options.vote_nrom=own", "--out", "wrong")
    assert (status, err.count("\n")) == (2, 1)
    assert "did you mean 'weighting_options.vote_norm'" in err
    plain = ("fuse", "a.fed", "b.fed", "--unlabelled", site, "--steps", 1, "--out", "plain")
    assert cli(*plain, "--weighting", "vote", "--set", "weighting_options={vote_norm = 'own'}")[0] == 0
    for text, says in (
        ("weighting_options.rank=1", "unknown key 'weighting_options.rank'; valid: none"),
        ("weighting_options=vote", "weighting_options is a table, such as weighting_options.KEY=VALUE"),
        ("privacy.votes=1", "privacy.votes is a table"),
    ):
        status, _, err = cli(*plain, "--set", text)
        assert (status, err.count("\n")) == (2, 1)
        assert says in err
    status, _, err = cli(*plain, "--set", "weighting_options.rank=1", "--set", "privacy.votes.sigma=20")
    assert (status, "remove weighting_options" in err) == (2, True)


def test_the_distillation_is_set_in_the_spelling_of_runs_too(cli, tmp_path: Path, site: Path) -> None:
    blob_bundle(tmp_path, "a", range(3), hidden=[8])
    words = ("fuse", "a.fed", "--unlabelled", site)
    for out, prefix in (("one", ""), ("two", "distillation.")):
        status, _, err = cli(*words, "--set", f"{prefix}epochs=1", "--set", f"{prefix}optimizer.lr=0.5", "--out", out)
        assert status == 0, err
    told = [json.loads((tmp_path / out / "fused.json").read_text())["settings"] for out in ("one", "two")]
    assert told[0] == told[1]
    assert told[1]["distillation"]["optimizer"]["lr"] == 0.5
    assert "did you mean 'distillation.temperature'" in cli(*words, "--set", "distillation.temprature=2")[2]


# -- mistakes ----------------------------------------------------------------------------------------------------------------


def test_mistakes_in_packing(cli, tmp_path: Path, site: Path, weights: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat").mkdir()
    write_folder(tmp_path / "flat", blobs(range(3), 3, 1).unlabelled(), None)
    write_folder(tmp_path / "more", blobs(range(4), 40, 1), ["row0", "row1", "row2", "row3"])
    write_folder(tmp_path / "alone", blobs(range(1), 2, 1), ["row0"])
    (tmp_path / "words.pt").write_text("these are not weights\n")
    (tmp_path / "words.safetensors").write_text("these are not weights\n")
    spoilt = {name: tensor * torch.nan for name, tensor in torch.load(weights).items()}
    safetensors.torch.save_file(spoilt, tmp_path / "nan.safetensors")
    model = ("--model", "mlp", "--weights", weights)
    mistakes = [
        ((*model, "--data", "alone"), "only one class, 'row0': nothing to classify"),
        ((*model, "--data", "alone#test", "--classes", "row0,row1,row2"), "has no test images"),
        (("--model", "mlp", "--weights", "words.pt", "--data", site), "not a readable file of tensors"),
        (("--model", "mlp", "--weights", "words.safetensors", "--data", site), "not a readable file of tensors"),
        (("--model", "mlp", "--weights", "nan.safetensors", "--data", site), "not finite"),
        (("--model", "mlp", "--data", site, "--epochs", 1, "--lr", "-1"), "(lr) must be a number above zero, not -1"),
        (("--model", "mlp", "--data", site, "--epochs", 1, "--lr", "nan"), "(lr) must be a number above zero"),
        ((*model, "--data", site, "--mean", "nan"), "--mean takes finite numbers"),
        ((*model, "--data", site, "--std", "inf"), "--std takes finite numbers"),
        (("--data", site), "give one of a model, a program"),
        (("--model", "mpl", "--weights", weights, "--data", site), "did you mean 'mlp'"),
        (("--model", "mpl", "--weights", "imagenet", "--data", site), "unknown model 'mpl'; did you mean 'mlp'"),
        (("--model", "mlp", "--data", site), "needs trained weights"),
        (("--model", "mlp", "--weights", "no.pt", "--data", site), "no such file"),
        ((*model, "--data", "empty"), "neither tables nor images"),
        ((*model, "--data", "nowhere/at/all"), "no data at"),
        ((*model, "--data", "flat"), "classes are not known"),
        ((*model, "--data", "more"), "are for 3 classes, but 4 are needed"),
        ((*model, "--data", "more", "--classes", "row0,row1,row2"), "classes that the model does not know: row3"),
        ((*model, "--data", site, "--image-size", 10), "in the file and"),
        ((*model, "--data", site, "--std", "0"), "above zero"),
        ((*model, "--data", site, "--mean", "x"), "takes a number"),
        ((*model, "--data", site, "--mean", "0.5,0.5"), "2 numbers, but the images have 1 channels"),
        ((*model, "--data", site, "--describe", "projectoin"), "did you mean 'projection'"),
        ((*model, "--data", site, "--reference", "nothing"), "unknown reference"),
        ((*model, "--data", f"{site}#tset"), "only train or test may follow #"),
        (("--from", "empty", "--data", site), "not the folder of a fused model"),
        (("--program", weights, "--classes", "a,b,c", "--image-size", 8), "neither a TorchScript nor"),
    ]
    for words, says in mistakes:
        status, _, err = cli("pack", *words, "--out", "bad.fed")
        assert (status, err.count("\n")) == (2, 1), (words, err)
        assert says in err
        assert not (tmp_path / "bad.fed").exists()
    assert cli("pack", *model, "--data", site)[0] == 2
    assert cli("pack", "--show", "nothing.fed")[0] == 2


def test_mistakes_in_fusing(cli, tmp_path: Path, site: Path) -> None:
    for name, classes in (("a", range(3)), ("b", range(3))):
        blob_bundle(tmp_path, name, classes, hidden=[8])
    (tmp_path / "other").mkdir()
    blob_bundle(tmp_path / "other", "a", range(3), seed=1, hidden=[8])
    (tmp_path / "empty").mkdir()
    whole = (tmp_path / "a.fed").read_bytes()
    (tmp_path / "cut.fed").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "changed.fed").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (tmp_path / "photo.fed").write_bytes(b"\x89PNG" + bytes(100))
    write_folder(tmp_path / "strange", blobs(range(2), 20, 1), ["row0", "wolf"])
    pool = ("--unlabelled", site)
    mistakes = [
        (("missing.fed", *pool), "no such bundle"),
        (("empty", *pool), "is a folder, not a bundle"),
        (("cut.fed", *pool), "truncated"),
        (("changed.fed", *pool), "digest does not match"),
        (("photo.fed", *pool), "not a bundle"),
        (("a.fed", "a.fed", *pool), "the bundle of 'a' is given twice: list each bundle once"),
        (("a.fed", "other/a.fed", *pool), "are both called 'a': pack one under another name"),
        (("a.fed", "--unlabelled", "empty"), "neither tables nor images"),
        (("a.fed", *pool, "--student", "resnet99"), "unknown model 'resnet99'"),
        (("a.fed", *pool, "--student", "lenet"), "at least 16 pixels"),
        (("a.fed", *pool, "--weighting", "projection"), "needs a 'projection' report"),
        (("a.fed", *pool, "--weighting", "nearest"), "unknown weighting"),
        (("a.fed", *pool, "--ensemble", "logit"), "--ensemble takes"),
        (("a.fed", *pool, "--validation", "strange"), "classes that no teacher knows: wolf"),
        (("a.fed", *pool, "--set", "temprature=2"), "did you mean 'distillation.temperature'"),
        (("a.fed", *pool, "--start", "average"), "two teachers of its architecture"),
        (("a.fed", *pool, "--set", "optimizer.lr=1e30"), "distillation diverged"),
    ]
    for words, says in mistakes:
        status, _, err = cli("fuse", *words, "--steps", 2, "--out", "out")
        assert (status, err.count("\n")) == (2, 1), (words, err)
        assert says in err, (words, err)
        assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    assert "holds other files" in cli("fuse", "a.fed", *pool, "--out", "out")[2]


# -- what images and tables hold ---------------------------------------------------------------------------------------------


def deep_site(folder: Path, high: int = 4095) -> Path:
    """Two classes of 12-bit images in files of 16 bits: dark and light."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(["dark", "light"]):
        (folder / name).mkdir(parents=True)
        for i in range(20):
            values = rng.integers(0, high // 2, (8, 8)) + label * (high // 2)
            Image.fromarray(values.astype(np.uint16)).save(folder / name / f"{i}.png")
    return folder


def test_what_is_said_of_a_result_on_the_line_is_about_the_result(cli, tmp_path: Path, site: Path) -> None:
    for name in "ab":
        blob_bundle(tmp_path, name, range(3), hidden=[8])
    words = ("fuse", "a.fed", "b.fed", "--unlabelled", site, "--validation", site, "--start", "average", "--steps", 20)
    words = (*words, "--set", "optimizer.lr=3", "--set", "patience=0")  # a rate that ruins the student
    worse = "the result is worse on the labelled images than where the student started"
    said = " ".join(cli(*words, "--line", 1)[1].split())
    assert worse in said
    said = " ".join(cli(*words)[1].split())
    assert "the result is that average itself" in said
    assert worse not in said


def test_deep_images_are_packed_and_fused_by_their_range_or_refused(cli, tmp_path):
    site = deep_site(tmp_path / "site")
    words = ["pack", "--model", "mlp", "--epochs", "3", "--lr", "0.1", "--data", site, "--out", "site.fed", "--describe", "none"]
    status, _, said = cli(*words)
    assert status == 2
    assert "set data.range, such as [0, 4095]" in " ".join(said.split())
    deep = ["--set", "data.range=[0, 4095]"]
    status, said, _ = cli(*words, *deep)
    assert status == 0
    assert "accuracy on the site's own images is 100.0%" in said
    fusing = ["fuse", "site.fed", "--unlabelled", site, "--validation", site, "--steps", "5"]
    status, said, _ = cli(*fusing, "--set", "temperature=2")  # the bundle has its range
    assert status == 0
    assert "100.0" in said
    for model in ("site.fed", "fused"):  # the range travels with the model
        assert "accuracy 100.0 %" in cli("evaluate", model, site)[1]
    assert "accuracy 50.0 %" in cli("evaluate", "site.fed", site, "--set", "data.range=[4092, 4095]")[1]  # all black
    onward = ("pack", "--from", "fused", "--data", site, "--out", "again.fed", "--describe", "none")
    for more, kept in (((), (0, 4095)), (("--set", "data.range=[0, 8190]"), (0, 8190))):
        assert cli(*onward, *more)[0] == 0
        assert read_bundle(tmp_path / "again.fed").about.range == kept
    assert cli("fuse", "site.fed", "again.fed", "--unlabelled", site, "--steps", "1", "--out", "unlike")[0] == 2  # two ranges
    status, _, said = cli(*words, "--set", "temperature=2")
    assert (status, said.count("\n") <= 2) == (2, True)
    assert "unknown key 'data.rang'; did you mean 'data.range'" in cli(*words, "--set", "data.rang=[0, 1]")[2]


def test_colour_of_any_file_and_damaged_files_in_a_pack(cli, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "site" / name).mkdir(parents=True)
        for i in range(6):
            grey = rng.integers(0, 255, (8, 8), dtype=np.uint8)
            Image.fromarray(grey if i == 0 else np.dstack([grey, grey // 2, grey // 3])).save(
                tmp_path / "site" / name / f"{i}.png"
            )
    words = ["pack", "--model", "mlp", "--epochs", "1", "--data", "site", "--out", "site.fed", "--describe", "none"]
    assert cli(*words)[0] == 0
    assert read_bundle(tmp_path / "site.fed").about.shape == [3, 8, 8]
    bad = tmp_path / "site" / "b" / "3.png"
    bad.write_bytes(bad.read_bytes()[:60])
    status, _, said = cli(*words)
    assert status == 2
    assert f"{bad}' cannot be decoded" in said
    assert said.endswith("(--set data.unreadable=skip)\n")
    whole = bad.read_bytes()
    bad.write_bytes(b"no image")  # of which the decoder says the path too
    assert cli(*words)[2].count("3.png") == 1
    bad.write_bytes(whole)
    with pytest.warns(UserWarning, match="1 image of 'site' left out as undecodable: .*3.png"):
        assert cli(*words, "--set", "data.unreadable=skip")[0] == 0
    assert read_bundle(tmp_path / "site.fed").about.samples == 11
    whole = [line for line in cli("predict", "site.fed", "site/a")[1].splitlines() if line]
    for use in ("predict", "evaluate"):
        assert "3.png' cannot be decoded" in "".join(cli(use, "site.fed", "site")[2].split("\n"))
        assert "takes data.range and data.unreadable" in cli(use, "site.fed", "site", "--set", "data.kind=image")[2]
        with pytest.warns(UserWarning, match="1 image of .* left out as undecodable: .*3.png"):
            status, said, _ = cli(use, "site.fed", "site", "--set", "data.unreadable=skip")
        assert status == 0
        if use == "evaluate":
            assert "of 11 samples" in said
        else:  # every other image has its own line
            lines = [line for line in said.splitlines() if line]
            assert lines[:6] == whole
            assert [Path(line.split()[0]).name for line in lines[6:]] == ["0.png", "1.png", "2.png", "4.png", "5.png"]
    for image in Path("site").rglob("*.png"):  # their headers are whole
        image.write_bytes(image.read_bytes()[:60])
    for use in ("predict", "evaluate"):
        status, _, err = cli(use, "site.fed", "site", "--set", "data.unreadable=skip")
        assert (status, err.count("\n")) == (2, 1)
        assert "none of the images" in err


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_tables_and_vectors_are_one_clear_line(cli, tmp_path, ending):
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    if ending == "npz":
        np.savez(tmp_path / "ward.npz", x=x, y=y)
    else:
        lines = [f"{a},{b},{c},{label}" for (a, b, c), label in zip(x, y, strict=True)]
        (tmp_path / "ward.csv").write_text("\n".join(["age,dose,weight,label", *lines]))
    status, _, said = cli("pack", "--model", "mlp", "--epochs", "1", "--data", f"ward.{ending}", "--out", "ward.fed")
    assert status == 2
    assert f"'ward.{ending}' holds numbers, but packing and fusing files is for images" in " ".join(said.split())
    assert not (tmp_path / "ward.fed").exists()
