"""Damage to what a run leaves is noticed: a file of weights has a digest, a line of the history a checksum."""

from __future__ import annotations

import json
import logging

import pytest
import safetensors
import safetensors.torch

from fedstill.bundles.pack import pack
from fedstill.core.errors import FedstillError
from fedstill.models.files import read_state
from fedstill.report.runs import load_run
from fedstill.run.history import encoded, sound_lines
from fedstill.run.listener import Listener
from fedstill.run.loop import run


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    from tests.conftest import tiny_config

    folder = tmp_path_factory.mktemp("done")
    run(tiny_config(), folder)
    return folder


def packed(weights, tmp_path):
    return pack(
        tmp_path / "a.fed", model="mlp", weights=weights, options={"hidden": [16]}, data="embedded:optdigits", describe=[]
    )


def test_a_damaged_model_is_not_packed(done, tmp_path):
    whole = (done / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for place in (start + 4, len(whole) - 2, whole.index(b'"0') + 1, whole.index(b"fedstill")):
        data = bytearray(whole)
        data[place] ^= 1
        (tmp_path / "model.safetensors").write_bytes(data)
        with pytest.raises(FedstillError, match=r"model.safetensors.*(digest|damaged|readable)|no tensor") as error:
            packed(tmp_path / "model.safetensors", tmp_path)
        assert "\n" not in str(error.value)
    (tmp_path / "model.safetensors").write_bytes(whole)
    assert packed(tmp_path / "model.safetensors", tmp_path).bundle.about.samples == 1797


def test_older_files_have_no_digest_and_load_with_a_warning(done, tmp_path, caplog):
    state, about = read_state(done / "model.safetensors")
    older = {"fedstill": json.dumps({key: about[key] for key in ("model", "classes", "shape")})}
    (tmp_path / "model.safetensors").write_bytes(safetensors.torch.save(state, older))
    with caplog.at_level(logging.WARNING):
        packed(tmp_path / "model.safetensors", tmp_path)
    assert "model.safetensors has no digest" in caplog.text
    caplog.clear()
    (tmp_path / "plain.safetensors").write_bytes(safetensors.torch.save(state, {"format": "pt"}))  # somebody else's
    packed(tmp_path / "plain.safetensors", tmp_path)
    assert not caplog.text


def test_equal_models_are_equal_files(done, tiny, tmp_path):
    run(tiny(), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (done / "model.safetensors").read_bytes()


def test_a_file_of_weights_says_all_that_is_needed_to_use_it(done):
    about = read_state(done / "model.safetensors")[1]
    assert about["classes"] == [str(i) for i in range(10)]
    assert (about["model"], about["options"], about["shape"]) == ("mlp", {"hidden": [16]}, [1, 8, 8])
    assert (about["mean"], about["std"]) == (0.5, 0.5)


def flipped(text, old, new):
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize("change", ['"accuracy": 0.', '"check": "', '"check', '"bytes_up": '])
def test_a_line_with_a_flipped_digit_or_letter_is_reported(done, tmp_path, change):
    for name in ("config.toml", "summary.json", "clients.json"):
        (tmp_path / name).write_bytes((done / name).read_bytes())
    lines = (done / "history.jsonl").read_text().splitlines(keepends=True)
    at = lines[0].index(change) + len(change) - (change == '"check')
    wrong = lines[0][:at] + chr(ord(lines[0][at]) ^ 1) + lines[0][at + 1 :]
    for kept in ([wrong, lines[1]], [wrong]):
        (tmp_path / "history.jsonl").write_text("".join(kept))
        found = load_run(tmp_path)
        assert any("damaged line" in problem for problem in found.problems)
        assert [line["round"] for line in found.history] == [2][: len(kept) - 1]


def test_lines_of_older_versions_have_no_checksum_and_are_read(done, tmp_path):
    lines, damaged = sound_lines((done / "history.jsonl").read_text())
    assert (len(lines), damaged) == (2, [])
    assert all("check" not in line for line in lines)  # it is the file's own affair
    assert sound_lines("".join(json.dumps(line) + "\n" for line in lines)) == (lines, [])
    assert sound_lines(encoded(lines[0]) + json.dumps(lines[1])) == (lines[:1], [2])  # nobody writes half of them


class Warned(Listener):
    def __init__(self):
        self.said = []

    def warn(self, text):
        self.said.append(text)


def test_a_resume_says_that_the_history_is_damaged(tiny, tmp_path):
    run(tiny(), tmp_path)
    path = tmp_path / "history.jsonl"
    path.write_text(path.read_text().replace('"bytes_down": ', '"bytes_down": 1', 1))
    warned = Warned()
    result = run(tiny(rounds=3), tmp_path, resume=True, listeners=[warned])
    assert any("has 1 of the 2 rounds" in text for text in warned.said)
    assert [line["round"] for line in result.history] == [2, 3]
    assert (tmp_path / "history.damaged.jsonl").exists()


def test_a_folder_with_a_damaged_history_is_not_begun_anew(tiny, tmp_path):
    run(tiny(rounds=1), tmp_path)
    (tmp_path / "history.jsonl").write_text("{")
    with pytest.raises(FedstillError, match="already holds a run"):
        run(tiny(rounds=1), tmp_path)


def test_a_damaged_memory_of_a_client_is_not_gone_on_with(tiny, tmp_path):
    config = {"algorithm": {"name": "moon"}}
    run(tiny(rounds=1, **config), tmp_path)
    path = next((tmp_path / "clients").rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(FedstillError, match=rf"{path.name} is damaged"):
        run(tiny(rounds=2, **config), tmp_path, resume=True)
