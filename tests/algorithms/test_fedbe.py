"""FedBE: who teaches, and that sampled teachers are sound and repeatable."""

from __future__ import annotations

import pytest
import torch

from fedstill.algorithm import Client, Reply, Round
from fedstill.algorithms import create
from fedstill.config.tables import to_toml
from fedstill.core.message import Message
from fedstill.models.statistics import buffer_names
from fedstill.run.configuration import from_toml
from fedstill.run.loop import run
from fedstill.task import Task

FAST = {"epochs": 1, "batch_size": 16, "averaging": {"start": 0, "every": 1}}


def made(tiny, **options):
    config = tiny(
        model={"name": "cnn-small"},
        data={"image_size": 16, "holdout": 0.3, "limit": 60},
        algorithm={"name": "fedbe", "distillation": FAST, **options},
    )
    task = Task(config)
    algorithm = create(task)
    replies = []
    for client, info in task.clients.items():
        message = algorithm.train(Message.of(model=task.networks.initial(info.prototype)), Client.of(task, client, 1))
        replies.append(Reply(client, info.domain, info.prototype, info.samples, lambda message=message: message))
    return algorithm, replies


def test_the_average_the_clients_and_the_samples_teach(tiny):
    algorithm, replies = made(tiny, samples=3)
    names = [t.name for t in algorithm.teachers(algorithm.start(), replies, Round(1, 2, 0))]
    assert names == ["optdigits-0", "mnist-0", "average", "sample0", "sample1", "sample2"]
    algorithm, replies = made(tiny, samples=2, clients_teach=False, average_teaches=False)
    assert [t.name for t in algorithm.teachers(algorithm.start(), replies, Round(1, 2, 0))] == ["sample0", "sample1"]


@pytest.mark.parametrize("posterior", ["gaussian", "unit-gaussian", "dirichlet", "swag"])
def test_samples_differ_repeat_and_keep_the_averages_buffers(tiny, posterior):
    algorithm, replies = made(tiny, samples=2, posterior=posterior, recalibrate=False)
    server = algorithm.start()
    *_, first, second = algorithm.teachers(server, replies, Round(1, 2, 0))
    merged = algorithm.merge(server, replies, Round(1, 2, 0))["cnn-small"]
    one = {k: t.clone() for k, t in first.load().state_dict().items()}
    other = {k: t.clone() for k, t in second.load().state_dict().items()}
    again = first.load().state_dict()
    buffers = buffer_names(algorithm.task.networks.get("cnn-small"))
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert all(torch.equal(one[k], merged[k]) for k in buffers)
    assert all(torch.isfinite(t).all() for t in one.values())
    assert not torch.equal(one["head.weight"], other["head.weight"])
    assert not torch.equal(one["head.weight"], merged["head.weight"])


def test_recalibrated_samples_take_the_pools_statistics(tiny):
    algorithm, replies = made(tiny, samples=1, recalibrate=True)
    server = algorithm.start()
    merged = algorithm.merge(server, replies, Round(1, 2, 0))["cnn-small"]
    sample = algorithm.teachers(server, replies, Round(1, 2, 0))[-1].load().state_dict()
    moved = [k for k in buffer_names(algorithm.task.networks.get("cnn-small")) if k.endswith("running_mean")]
    assert all(not torch.equal(sample[k], merged[k]) for k in moved)


def test_a_run_keeps_the_papers_other_values(tiny, tmp_path):
    result = run(tiny(data={"holdout": 0.3}, algorithm={"name": "fedbe", "samples": 2, "distillation": FAST}), tmp_path / "a")
    line = result.history[-1]
    assert set(line["weights"]) == {"optdigits-0", "mnist-0", "average", "sample0", "sample1"}
    distillation = result.task.config.algorithm["distillation"]
    assert (distillation["sharpen"], distillation["optimizer"]["lr"], distillation["epochs"]) == (0.5, 1e-3, 1)


def test_swag_brings_its_own_student_and_survives_config_toml(tiny):
    config = tiny(data={"holdout": 0.3}, algorithm={"name": "fedbe", "posterior": "swag"})
    again = from_toml(to_toml(config))
    for options in (create(Task(config)).options, create(Task(again)).options):
        student = options.distillation
        assert (student.steps, student.epochs, student.sharpen, student.averaging.start) == (250, 0, None, 0)
        assert options.ensemble == "logits"
        assert (options.average_teaches, options.clients_teach, options.recalibrate) == (False, True, True)  # Table 7
