"""``clients.json``: written in a stream, and compared with what a resumed run finds there."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np

from fedstill.config.tables import Config
from fedstill.core.files import atomic_write, to_json
from fedstill.data.arrays import store
from fedstill.run.clients import as_json, client_records
from fedstill.run.listener import Listener
from fedstill.run.loop import run
from fedstill.task import Task


def test_many_clients_need_little_more_memory_than_their_samples_positions(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    count, rng = 5000, np.random.default_rng(0)
    x, y = rng.integers(0, 256, (2 * count, 8, 8), dtype=np.uint8), rng.integers(0, 10, 2 * count)
    source = store(x, y, name="many", test=(x[:20], y[:20]))
    task = Task(Config(data={"domains": [source]}, clients={"per_domain": count}))
    _ = task.raw_domains
    tracemalloc.start()
    drawn = [task.client_ids[i] for i in (0, 7, count - 1)]
    atomic_write(tmp_path / "clients.json", as_json(client_records(task)))
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 60 * count  # 16 bytes of positions, 8 of where a share ends; a record and a dictionary's entry would be 500
    assert most < 400 * count + 2_000_000  # records are written in pieces
    text = (tmp_path / "clients.json").read_text()
    found = json.loads(text)
    assert text == to_json(found)
    assert [one["id"] for one in found["clients"]] == list(task.clients)
    assert {one["id"]: one["counts"] for one in found["clients"] if one["id"] in drawn} == {
        client: task.data_of(client).counts(10).tolist() for client in drawn
    }


class Warned(Listener):
    def __init__(self):
        self.said = []

    def warn(self, text):
        self.said.append(text)


def test_a_resume_says_whether_the_clients_data_has_changed(tiny, tmp_path):
    def warnings(rounds):
        warned = Warned()
        run(tiny(rounds=rounds), tmp_path, resume=True, listeners=[warned])
        return [text for text in warned.said if "clients' data has changed" in text]

    run(tiny(rounds=1), tmp_path)
    path = tmp_path / "clients.json"
    written = path.read_bytes()
    assert warnings(2) == []
    path.write_bytes(written.replace(b'"samples": 120', b'"samples": 121', 1))
    assert len(warnings(3)) == 1
    assert path.read_bytes() == written
