"""Decoding in threads, and its cache: keyed by what the files hold, shared by processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstill.data import images
from fedstill.data.images import stack_images
from fedstill.data.loading import load_domain, load_domains
from fedstill.data.raw import Encoded
from fedstill.data.reading import Reading


def encoded(number: int, threads: set[str]) -> Encoded:
    """An image whose pixels are its number; every tenth cannot be decoded."""

    def read() -> Image.Image:
        threads.add(threading.current_thread().name)
        if number % 10 == 3:
            raise ValueError(f"broken {number}")
        return Image.new("RGB", (4, 4), (number % 256, number // 256, 7))

    return Encoded(f"image {number}", read)


@pytest.mark.parametrize("count", [1, 64, 500])
def test_threads_keep_the_order(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(images.os, "sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    threads: set[str] = set()
    told: list[int] = []
    x, kept, lost = stack_images((encoded(i, threads) for i in range(count)), count, (3, 4, 4), done=told.append)
    sound = [i for i in range(count) if i % 10 != 3]
    assert kept.tolist() == sound
    assert (x[:, 0, 0, 0].long() + 256 * x[:, 1, 0, 0].long()).tolist() == sound
    assert (x[:, 2] == 7).all()
    assert lost == [(f"image {i}", f"broken {i}") for i in range(count) if i % 10 == 3]
    assert told == sorted(told)
    assert told[-1] == count
    assert threading.main_thread().name not in threads


def test_few_images_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of a million images is never in memory as a whole."""
    monkeypatch.setattr(images.os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    read, done = [0], [0]

    def source():  # type: ignore[no-untyped-def]
        for i in range(2000):
            read[0] += 1
            assert read[0] - done[0] <= (2 * 2 + 1) * images._PIECE
            yield encoded(i, set())

    def told(finished: int) -> None:
        done[0] = finished

    stack_images(source(), 2000, (3, 4, 4), done=told)
    assert read[0] == done[0] == 2000


def photographs(folder: Path, damaged: bool = False) -> Path:
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(10):
            file = BytesIO()
            Image.fromarray(rng.integers(256, size=(12, 10, 3), dtype=np.uint8)).save(file, "JPEG")
            data = file.getvalue()
            (folder / label / f"{i}.jpg").write_bytes(data[: len(data) // 4] if damaged and (label, i) == ("dog", 2) else data)
    return folder


def decoded(cache: Path) -> list[Path]:
    return [path for path in cache.glob("*.safetensors") if path.stat().st_size > 4000]


def test_the_same_files_elsewhere_are_not_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = photographs(tmp_path / "first")
    before = load_domain(str(first), cache=tmp_path / "cache").train.x.clone()
    shutil.copytree(first, tmp_path / "second", copy_function=shutil.copyfile)  # with times of their own
    os.utime(first / "cat" / "3.jpg", (1, 1))
    monkeypatch.setattr("fedstill.data.loading.stack_images", None)
    for place in ("first", "second"):
        assert load_domain(str(tmp_path / place), cache=tmp_path / "cache").train.x.equal(before)
    assert len(decoded(tmp_path / "cache")) == 1


@pytest.mark.parametrize("change", ["bytes", "name"])
def test_other_contents_are_decoded(tmp_path: Path, change: str) -> None:
    folder = photographs(tmp_path / "pets")
    load_domain(str(folder), cache=tmp_path / "cache")
    one, other = folder / "cat" / "0.jpg", folder / "dog" / "0.jpg"
    if change == "bytes":
        one.write_bytes(other.read_bytes())
    else:
        one.rename(folder / "dog" / "new.jpg")
    load_domain(str(folder), cache=tmp_path / "cache")
    assert len(decoded(tmp_path / "cache")) == 2


def test_what_cannot_be_decoded_is_named_where_it_is_now(tmp_path: Path) -> None:
    first = photographs(tmp_path / "first", damaged=True)
    skip = Reading(unreadable="skip")
    assert "first/dog/2.jpg" in load_domain(str(first), cache=tmp_path / "cache", reading=skip).notes[0]
    first.rename(tmp_path / "second")
    note = load_domain(str(tmp_path / "second"), cache=tmp_path / "cache", reading=skip).notes[0]
    assert "second/dog/2.jpg" in note
    assert "first" not in note


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    pets = str(photographs(tmp_path / "pets"))
    load_domains({"pets": pets}, cache=tmp_path / "cache", progress=lambda *event: told.append(event))
    assert told == [("decoding pets", 20, 20)]
    load_domains({"pets": pets}, cache=tmp_path / "cache", progress=lambda *event: told.append(event))
    assert len(told) == 1, "nothing is decoded the second time"


def test_two_processes_share_the_cache(tmp_path: Path) -> None:
    """Both begin at the same time; one decodes, the other waits for it."""
    photographs(tmp_path / "pets")
    code = (
        "import sys, fedstill.data.loading as loading\n"
        "stack = loading.stack_images\n"
        "loading.stack_images = lambda *a, **k: (print('decoded'), stack(*a, **k))[1]\n"
        "sys.stdin.readline()\n"
        f"d = loading.load_domain({str(tmp_path / 'pets')!r}, cache={str(tmp_path / 'cache')!r})\n"
        "print(int(d.train.x.long().sum()))"
    )
    pair = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [process.communicate("go\n", timeout=120)[0].split() for process in pair]
    assert not any(process.returncode for process in pair)
    assert said[0][-1] == said[1][-1]
    assert sum(lines.count("decoded") for lines in said) == 1


def test_damage_is_one_line_on_the_command_line(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "pets")
    load_domain(str(folder), cache=tmp_path / "cache", image_size=8)
    (damaged,) = decoded(tmp_path / "cache")
    damaged.write_bytes(damaged.read_bytes()[:-5])
    command = [sys.executable, "-m", "fedstill", "run", "demo", "--out", str(tmp_path / "run"), "--set", "rounds=1"]
    command += ["--set", f'data.domains=["{folder}"]', "--set", "data.image_size=8", "--set", "model.name=mlp"]
    environment = {**os.environ, "FEDSTILL_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
    assert done.stderr == f"warning: {damaged} is damaged and is made again\n"
