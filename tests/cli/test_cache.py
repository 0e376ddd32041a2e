"""``fedstill cache``: what is kept, and clearing it."""

from __future__ import annotations

import os
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
