"""What a task makes of its domains: the server's pool, the validation set, the target."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fedstill.core.errors import FedstillError
from fedstill.core.streams import numpy_stream
from fedstill.data.partition import Shares, partition
from fedstill.task import Task
from fedstill.task.clients import ClientTable


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
    for client, held in zip(task.clients, counts, strict=True):
        assert held == task.data_of(client).counts(10).tolist()


@pytest.mark.parametrize("by", ["client", "domain"])
@pytest.mark.parametrize("holdout", [0.0, 0.25])
def test_clients_hold_the_shares_of_their_domain_and_are_dealt_architectures_in_turn(tiny, by, holdout):
    task = Task(
        tiny(
            data={"domains": ["embedded:optdigits", "embedded:mnist"], "holdout": holdout},
            clients={"per_domain": 3, "partition": {"kind": "dirichlet", "alpha": 0.3}},
            model={"clients": ["mlp", "cnn-small"], "by": by},
        )
    )
    wanted = {}
    for place, domain in enumerate(["optdigits", "mnist"]):
        labels = task.raw_domains[domain].train.y.numpy()
        order = numpy_stream(task.seed, "split", domain).permutation(len(labels))
        mine = np.sort(order[round(holdout * len(labels)) :])
        shares = partition(labels[mine], 3, task.config.clients.partition, numpy_stream(task.seed, "partition", domain))
        for i, share in enumerate(shares):
            turn = place if by == "domain" else 3 * place + i
            wanted[f"{domain}-{i}"] = (f"{domain}-{i}", domain, ["mlp", "cnn-small"][turn % 2], mine[share].tolist())
    told = lambda info: (info.id, info.domain, info.prototype, info.indices.tolist())
    assert [told(info) for info in task.clients.values()] == list(wanted.values())
    assert {client: told(task.clients[client]) for client in task.clients} == wanted
    assert (len(task.clients), list(task.client_ids), task.client_ids[4]) == (6, list(wanted), "mnist-1")


def test_ids_that_no_client_has_are_none_of_the_table():
    table = ClientTable({"a-1": Shares(np.arange(12), np.arange(1, 13)), "b": Shares(np.arange(2), np.array([2]))}, ["mlp"])
    assert table["a-1-11"].indices.tolist() == [11]
    assert (table.ids[-1], table.ids[10:]) == ("b-0", ["a-1-10", "a-1-11", "b-0"])
    for other in ("a-1", "a-1-12", "a-1-01", "a-1--1", "b-1", "b-", "b", "", "c-0", "b-\u0660", "b-" + "9" * 5000):
        assert other not in table
    with pytest.raises(IndexError):
        table.ids[13]
