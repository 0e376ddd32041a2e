"""FedDF: Algorithm 1 and 3 against their parts, starts, and low-bit clients."""

from __future__ import annotations

import pytest
import torch

from fedstill.algorithm import Client, Reply, Round, Server
from fedstill.algorithms import create
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.engine.exchange import Outcome
from fedstill.engine.memory import Memory
from fedstill.engine.turn import client_turn
from fedstill.fusion.distillation.distil import distil
from fedstill.fusion.ensemble import Table
from fedstill.fusion.merges import weighted_sum
from fedstill.models.predict import predict_logits
from fedstill.run.loop import run
from fedstill.run.screening import screening
from fedstill.task import Task

STEPS = {"steps": 8, "batch_size": 16}


def trained(task, round=1):
    """Replies of every client after one local update from the initial weights."""
    algorithm = create(task)
    replies = []
    for client, info in task.clients.items():
        message = algorithm.train(Message.of(model=task.networks.initial(info.prototype)), Client.of(task, client, round))
        replies.append(Reply(client, info.domain, info.prototype, info.samples, lambda message=message: message))
    return algorithm, replies


def test_algorithm_1_line_by_line(tiny):
    config = tiny(data={"holdout": 0.3}, algorithm={"name": "feddf", "distillation": STEPS}, evaluation={"ensemble": False})
    task = Task(config)
    algorithm, replies = trained(task)
    fused = algorithm.fuse(algorithm.start(), replies, Round(1, 2, config.seed)).models["mlp"]
    # line 6: the average by examples; line 9: softmax of the mean of logits, all teachers alike
    total = sum(r.samples for r in replies)
    average = weighted_sum([r.model for r in replies], [r.samples / total for r in replies])
    logits = [predict_logits(task.networks.load("mlp", r.model, role="teacher"), task.pool.samples) for r in replies]
    table = Table((sum(logits) / len(logits)).softmax(1), torch.ones(len(task.pool), 1))
    student = task.networks.load("mlp", average, role="student")
    distil(student, task.pool.samples, table, algorithm.options.distillation, rng=Round(1, 2, config.seed).rng("distil", "mlp"))
    assert all(torch.allclose(fused[k], t, atol=1e-6) for k, t in student.state_dict().items())


def test_students_start_where_they_are_told(tiny):
    task = Task(tiny(data={"holdout": 0.3}))
    merged, server = {"mlp": {"w": torch.ones(1)}}, Server({"mlp": {"w": torch.zeros(1)}})
    for start, wanted in (
        ("average", merged["mlp"]),
        ("previous", server.models["mlp"]),
        ("scratch", task.networks.initial("mlp")),
    ):
        tree = {"name": "feddf", "distillation": {**STEPS, "start": start}}
        found = create(Task(tiny(data={"holdout": 0.3}, algorithm=tree))).starts(server, merged, Round(1, 2, 0))["mlp"]
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[k], wanted[k]) for k in wanted)


def test_algorithm_3_distils_every_prototype_from_all_models(tiny, tmp_path):
    config = tiny(
        rounds=2,
        model={"name": "mlp", "clients": ["mlp", "lenet"]},
        data={"image_size": 16, "holdout": 0.3},
        clients={"per_domain": 2, "per_round": 1},
        algorithm={"name": "feddf", "distillation": STEPS},
    )
    result = run(config, tmp_path / "a")
    assert set(result.server.models) == {"mlp", "lenet"}
    for line in result.history:
        assert set(line["prototypes"]) == {"mlp", "lenet"}
        assert set(line["distillation"]) == {"mlp", "lenet"}  # the one without a client learns as well
        assert len(line["clients"]) == 1
    assert sorted(path.name for path in (tmp_path / "a" / "models").iterdir()) == ["lenet.safetensors", "mlp.safetensors"]


def test_a_prototype_without_clients_carries_on_from_its_last_weights(tiny):
    config = tiny(
        model={"name": "mlp", "clients": ["mlp", "lenet"]},
        data={"image_size": 16, "holdout": 0.3},
        algorithm={"name": "feddf", "distillation": {**STEPS, "optimizer": {"name": "sgd", "lr": 1e-30}}},
    )
    task = Task(config)
    algorithm, replies = trained(task)
    server = algorithm.start()
    fused = algorithm.fuse(server, [r for r in replies if r.prototype == "mlp"], Round(1, 2, 0))
    assert all(torch.allclose(fused.models["lenet"][k], t) for k, t in server.models["lenet"].items())


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_works_with_every_normalisation(tiny, tmp_path, norm):
    config = tiny(
        rounds=1,
        model={"name": "cnn-small", "norm": norm},
        data={"image_size": 16, "holdout": 0.3},
        algorithm={"name": "feddf", "distillation": STEPS},
    )
    assert 0 <= run(config, tmp_path / norm).accuracy <= 1


def test_without_a_pool_it_says_so(tiny):
    with pytest.raises(FedstillError, match=r"data\.server, data\.target or data\.holdout"):
        create(Task(tiny(algorithm={"name": "feddf"})))


def test_authors_code_is_a_preset_that_what_is_given_wins_over(tiny):
    tree = {"name": "feddf", "preset": "authors-code", "distillation": {"steps": 7, "fresh": False}}
    options = create(Task(tiny(data={"holdout": 0.3}, algorithm=tree))).options
    assert (options.merge, options.distillation.student_norm, options.distillation.batch_size) == ("uniform", "train", 64)
    assert (options.distillation.steps, options.distillation.fresh, options.distillation.augment.crop) == (7, False, 4)
    assert create(Task(tiny(data={"holdout": 0.3}, algorithm={"name": "feddf"}))).options.distillation.student_norm == "frozen"


# -- low-bit clients (Table 4) ----------------------------------------------------------------------------------------------


def packed(tiny, name):
    return tiny(
        rounds=1,
        model={"name": name},
        data={"image_size": 16, "holdout": 0.2, "limit": 40},
        algorithm={"name": "feddf", "distillation": {"steps": 2, "batch_size": 8}},
        evaluation={"ensemble": False},
    )


def test_low_bit_clients_send_bits_and_the_server_has_full_precision(tiny, tmp_path):
    result = run(packed(tiny, "resnet8-binary"), tmp_path / "bits")
    full = run(packed(tiny, "resnet8"), tmp_path / "full")
    bits, floats = result.history[0], full.history[0]
    assert bits["bytes_down"] == pytest.approx(floats["bytes_down"], abs=100)  # full-precision weights go down
    assert bits["bytes_up"] < floats["bytes_up"] / 15
    assert bits["dropped"] == []
    model = result.server.models["resnet8-binary"]
    convolution = model["layer1.0.conv1.weight"]
    assert len(convolution[0].abs().unique()) > 2  # not a sign times a scale any more
    about = safetensors_metadata(tmp_path / "bits" / "model.safetensors")
    assert '"model": "resnet8"' in about


def safetensors_metadata(path):
    import safetensors

    with safetensors.safe_open(path, framework="pt") as file:
        return file.metadata()["fedstill"]


def test_what_the_server_reads_of_a_low_bit_client_acts_as_the_client_did(tiny):
    from fedstill.engine.wire import packed as pack
    from fedstill.models.binary import unpack_bits

    task = Task(packed(tiny, "resnet8-binary"))
    algorithm = create(task)
    client = Client.of(task, "mnist-0", 1)
    reply = algorithm.train(Message.of(model=task.networks.initial("resnet8-binary")), client)
    spoken = predict_logits(task.networks.load("resnet8-binary", reply.group("model")), task.pool.samples)
    sent = pack(reply, task.networks.get("resnet8-binary"))
    assert sent.values == reply.values
    read = unpack_bits(sent.group("model"), task.networks.get("resnet8-binary"))
    assert torch.equal(predict_logits(task.networks.load("resnet8-binary", read), task.pool.samples), spoken)
    # and so does the full-precision network with the same weights
    assert torch.allclose(
        predict_logits(task.networks.load("resnet8-binary", read, role="student"), task.pool.samples), spoken, atol=1e-5
    )


def test_where_statistics_stay_with_clients_teachers_get_those_of_the_pool(tiny, tmp_path):
    """The server's own from before are of other weights; in the first round they are of none."""
    changes = {"data": {"holdout": 0.3}, "model": {"name": "cnn-small", "buffers": "local", "options": {}}}
    algorithm = create(Task(tiny(algorithm={"name": "feddf", "distillation": {"steps": 2}}, local={"epochs": 3}, **changes)))
    task, server = algorithm.task, algorithm.start()
    replies = []
    for client in task.clients:
        instructed = algorithm.instruct(server, client, Round(1, 2, 0))
        sent = client_turn(algorithm, client, 1, "train", instructed, Memory(tmp_path))
        reply, problem = screening(algorithm, server, "train")(Outcome(client, lambda sent=sent: sent))
        assert reply is not None, problem
        replies.append(reply)
    assert "body.2.running_mean" not in replies[0].message.group("model")
    for teacher in algorithm.teachers(server, replies, Round(1, 2, 0)):
        network = teacher.load()
        spoken = predict_logits(network, task.pool.samples)
        network.train()
        with torch.no_grad():
            together = network(network.normalise(task.pool.samples.x))
        assert float((spoken - together).abs().max()) < 0.2 * float(together.abs().max())


@pytest.mark.parametrize("system", ["feddf", "kd3a"])
def test_students_train_below_the_head_at_the_clients_rate(tiny, system):
    """With a rate of nearly nothing below the head, neither clients nor the student move the backbone."""
    pool = {"holdout": 0.3} if system == "feddf" else {"domains": ["embedded:optdigits"], "target": "embedded:mnist"}
    own = {"distillation": STEPS, "line": False} if system == "feddf" else {"contributions": {"gate": {"start": 0.0, "end": 0.0}}}
    task = Task(tiny(data=pool, local={"backbone_rate": 1e-9}, algorithm={"name": system, **own}))
    algorithm, replies = trained(task)
    before = task.networks.initial("mlp")
    fused = algorithm.fuse(algorithm.start(), replies, Round(1, 2, 0)).models["mlp"]
    for name, start in before.items():
        assert torch.allclose(fused[name], start, atol=1e-6) == (not name.startswith("head")), name
