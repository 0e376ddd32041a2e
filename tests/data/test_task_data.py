"""What a task makes of its domains: the server's pool, the validation set, the target."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from fedstill.core.errors import FedstillError
from fedstill.task import Task


def test_the_servers_pool_is_all_of_a_folder_without_labels(tmp_path, monkeypatch, tiny):
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "images").mkdir()
    for i in range(10):
        Image.new("L", (8, 8), i).save(tmp_path / "images" / f"{i}.png")
    pool = Task(tiny(data={"server": str(tmp_path / "images")})).pool
    assert pool is not None
    assert torch.equal(pool.samples.x[:, 0, 0, 0].sort().values, torch.arange(10, dtype=torch.uint8))


def test_a_validation_set_of_nothing_is_refused(tiny):
    with pytest.raises(FedstillError, match="validation set is empty: data.validation = 0.001"):
        _ = Task(tiny(data={"validation": 0.001})).validation
    found = Task(tiny(data={"validation": 0.1})).validation
    assert found is not None
    assert len(found) == 24


def test_a_target_that_is_the_only_domain_is_refused(tiny):
    task = Task(tiny(data={"domains": ["embedded:mnist"], "target": "embedded:mnist"}))
    with pytest.raises(FedstillError, match="'embedded:mnist' is the only domain"):
        _ = task.classes
    with pytest.raises(FedstillError, match="is the only domain"):
        _ = task.shape


def test_what_each_client_holds_is_counted(tiny):
    task = Task(tiny(clients={"per_domain": 3, "partition": {"kind": "dirichlet", "alpha": 0.3}}))
    counts = task.counts()
    assert counts is not None
    assert list(counts) == list(task.clients)
    for client, held in counts.items():
        assert held == task.data_of(client).counts(10).tolist()
