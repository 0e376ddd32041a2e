"""``fedstill cache``: what is kept, and clearing it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.data.cache import cached, kept_in
from fedstill.data.loading import load_domain


def test_what_is_kept_is_listed_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path))
    run = CliRunner().invoke
    assert "0 files" in run(app, ["cache"]).output
    load_domain("embedded:optdigits", image_size=8)
    cached({"of": "a trunk"}, tmp_path, lambda: ({"x": torch.zeros(5, 3)}, {"check": "0"}), "features-mnist train")
    (tmp_path / ".abc.999999999.part").write_bytes(b"half")
    written = tmp_path / f".def.{os.getpid()}.part"  # of a process that lives
    written.write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("somebody else's")
    assert {kept.what for kept in kept_in(tmp_path)} == {"data", "features", "unfinished"}
    shown = run(app, ["cache"]).output
    for words in ("mnist-train", "frozen network's outputs", "embedded-optdigits", "decoded data", str(tmp_path)):
        assert words in shown.replace("\n", "")
    assert "1 files" in run(app, ["cache", "--clear", "--only", "features"]).output
    assert {kept.what for kept in kept_in(tmp_path)} == {"data", "unfinished"}
    run(app, ["cache", "--clear"])
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", written.name}
    assert run(app, ["cache", "--only", "weights"]).exception is not None


def test_damaged_features_are_one_line_and_computed_again(tmp_path: Path) -> None:
    """The same run twice, with a byte of the kept features changed in between."""
    settings = [
        "model.name=resnet8",
        "model.train=head",
        "rounds=1",
        "data.limit=40",
        "data.test_limit=20",
        "algorithm.name=fedavg",
    ]
    words = [sys.executable, "-m", "fedstill", "run", "demo", *(word for one in settings for word in ("--set", one))]
    accuracies = []
    for k in range(2):
        if k == 1:
            kept = next(tmp_path.glob("features-mnist-train-*.safetensors"))
            changed = bytearray(kept.read_bytes())
            changed[-5] ^= 1
            kept.write_bytes(changed)
        done = subprocess.run(
            [*words, "--out", str(tmp_path / f"run{k}")],
            env={**os.environ, "FEDSTILL_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        damaged = "warning: kept features of mnist train were damaged and are computed again\n"
        assert done.stderr == (damaged if k == 1 else "")
        accuracies.append(done.stdout.split("accuracy ")[-1].split()[0])
    assert len(set(accuracies)) == 1
