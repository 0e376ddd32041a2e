"""The server's work in worker processes gives the same bits as in its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.algorithm import Round
from fedstill.algorithms import create
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, Value
from fedstill.data.samples import Samples
from fedstill.engine.inprocess import InProcess
from fedstill.run.configuration import parse
from fedstill.run.loop import run
from fedstill.task import Task
from fedstill.task.predictions import predict_later


def config(name: str, workers: int) -> Any:
    return parse(
        {
            "rounds": 1,
            "data": {"domains": ["embedded:optdigits"], "limit": 60, "test_limit": 40, "holdout": 0.5},
            "clients": {"per_domain": 2},
            "model": {"clients": ["mlp", "mobilenetv3-small"]},
            "local": {"epochs": 1},
            "algorithm": {"name": name, "distillation": {"epochs": 1, "batch_size": 16}},
            "engine": {"workers": workers, "threads": 1},
            "evaluation": {"batch_size": 16},
        }
    )


def test_fusion_has_the_same_bits_for_any_number_of_workers(tmp_path: Path) -> None:
    """Features and logits of the pool, test accuracies and two students, of which one has dropout."""
    found = [run(config("fedd3a", workers), tmp_path / str(workers)) for workers in (0, 2)]
    for prototype, state in found[0].server.models.items():
        for key, tensor in state.items():
            assert torch.equal(tensor, found[1].server.models[prototype][key]), (prototype, key)
    for a, b in zip(found[0].history, found[1].history, strict=True):
        for key in ("accuracy", "domains", "merged_accuracy", "ensemble_accuracy", "distillation", "weights"):
            assert a[key] == b[key], key  # type: ignore[literal-required]


def test_workers_predict_what_the_server_would_and_a_failure_is_one_line(tmp_path: Path) -> None:
    algorithm = create(Task(config("feddf", 1)))
    task = algorithm.task
    network, samples = task.networks.get("mlp", "teacher"), Samples(task.tests["optdigits"].x)
    here = predict_later(task, network, samples, 16)()
    engine = InProcess(algorithm, tmp_path, workers=1, threads=1)
    try:
        later = predict_later(task, network, samples, 16)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()  # the weights are those at the time of asking
        # clients use the same pipes: an exchange waits for jobs that nobody has waited for
        message = algorithm.instruct(algorithm.start(), "optdigits-0", Round(1, 1, task.seed))
        (outcome,) = engine.exchange(1, "train", [("optdigits-0", message)])
        assert outcome.reason is None
        assert torch.equal(here, later())
        assert task.jobs is not None
        engine.workers[0].kill()
        (wait,) = task.jobs.submit("fedstill.task.predictions:no_such", Message(), {})
        with pytest.raises(FedstillError, match="no_such"):
            wait()
    finally:
        engine.close()
    assert task.jobs is None


def marked(task: Task, message: Message, shared: Any) -> Message:
    """A job that takes a while, and leaves a mark."""
    (Path(str(message.values["folder"])) / str(message.values["number"])).touch()
    time.sleep(0.5)
    return Message()


def test_stopping_does_not_wait_for_jobs_that_have_not_begun(tmp_path: Path) -> None:
    """Clients wait for a worker behind them, also at Ctrl-C."""
    algorithm = create(Task(config("feddf", 1)))
    engine = InProcess(algorithm, tmp_path, workers=1, threads=1)
    try:
        assert engine.jobs is not None
        calls: list[dict[str, Value]] = [{"folder": str(tmp_path), "number": number} for number in range(20)]
        engine.jobs.submit("tests.engine.test_jobs:marked", Message(), {}, calls)
        message = algorithm.instruct(algorithm.start(), "optdigits-0", Round(1, 1, algorithm.task.seed))
        engine.exchange(1, "train", [("optdigits-0", message)])
        while not (tmp_path / "0").exists():
            time.sleep(0.05)
    finally:
        engine.close()
    assert not (tmp_path / "19").exists()
