"""FedGen and FedFTG: the generators that learn on the server."""

import math

import pytest
import torch
from torch import nn

from fedstill.algorithm import Round
from fedstill.algorithms import create
from fedstill.algorithms.fedftg import disagreement
from fedstill.algorithms.fedgen import fedgen_loss, kept_optimizer, restore_optimizer
from fedstill.errors import FedstillError
from fedstill.fusion.diversity import diversity_loss
from fedstill.fusion.teacher import teachers_of
from fedstill.local.fit import Batch, optimiser
from fedstill.message import Message
from fedstill.run.config import parse
from fedstill.run.loop import run
from fedstill.task import Task
from tests.algorithms.test_dafkd import replies_of
from tests.conftest import tiny_tree

FEDGEN = {"name": "fedgen", "noise_dim": 4, "hidden": 16, "steps": 10}
FEDFTG = {
    "name": "fedftg",
    "generator": {"kind": "mlp-conditional", "noise_dim": 4, "options": {"hidden": 16}},
    "iterations": 2,
    "batch_size": 16,
    "student_optimizer": {"lr": 0.01},
}


def linear(weight):
    head = nn.Linear(1, 2, bias=False)
    head.weight.data = torch.tensor(weight)
    return head


def test_fedgens_loss_by_hand():
    # client 0 says p(0) = 1/2, client 1 says p(0) = 1/4 of the feature 1; labels 0 and 1
    heads = [linear([[0.0], [0.0]]), linear([[0.0], [math.log(3.0)]])]
    shares = torch.tensor([[0.75, 0.0], [0.25, 1.0]])
    expected = (0.75 * math.log(2) + 0.25 * math.log(4)) / 2 + (0 + 1.0 * math.log(4 / 3)) / 2
    got = fedgen_loss(heads, shares, torch.ones(2, 1), torch.tensor([0, 1]))
    assert got.item() == pytest.approx(expected, abs=1e-6)


def test_diversity_by_hand():
    noise, made = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    # off the diagonal ||e||^2 is 1 a dimension and |g| is 2: the mean over the four pairs is 1
    assert float(diversity_loss(noise, made)) == pytest.approx(math.exp(-1), abs=1e-6)


def test_fedgen_teaches_its_generator_and_keeps_its_optimiser(tiny):
    algorithm = create(Task(tiny(algorithm=FEDGEN)))
    server, context = algorithm.start(), Round(1, 3, 0)
    ids = list(algorithm.task.clients)
    assert "generator" not in algorithm.instruct(server, ids[0], context).groups()
    after = algorithm.fuse(server, replies_of(algorithm, server, context, ids, {}), context)
    assert after.parts["generator-optimizer"]["0.step"].item() == 10
    second = Round(2, 3, 0)
    assert "generator" in algorithm.instruct(after, ids[0], second).groups()
    again = algorithm.fuse(after, replies_of(algorithm, after, second, ids, {}), second)
    assert again.parts["generator-optimizer"]["0.step"].item() == 20
    assert second.notes["generator_loss"] < context.notes["generator_loss"]


def test_fedgens_term_by_hand(tiny):
    algorithm = create(Task(tiny(algorithm={**FEDGEN, "generated_batch": 2, "generative": 3.0, "latent": 5.0})))
    network = algorithm.task.network("mlp")
    generator = algorithm.generator().eval()
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    features = network.features(x)
    batch = Batch(network, x, y, features, network.head(features), 0, torch.Generator().manual_seed(1))
    got = algorithm.generated_term(generator, 0.5)(batch)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        made, labels = generator.sample(2, rng)
        same, _ = generator.sample(4, rng, y)
        ce = nn.functional.cross_entropy(network.head(made), labels)
        p, q = network.head(same).softmax(1), network.head(features).softmax(1)
        kl = (p * (p / q).log()).sum(1).mean()
    assert float(got) == pytest.approx(float(0.5 * (3.0 * ce * 2 / 4 + 5.0 * kl)), rel=1e-4)


def test_an_optimisers_state_comes_back():
    parameter = nn.Parameter(torch.ones(3))
    one = torch.optim.Adam([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    one.step()
    kept = kept_optimizer(one, [parameter])
    two = torch.optim.Adam([parameter], lr=0.1)
    restore_optimizer(two, [parameter], kept)
    assert torch.equal(two.state[parameter]["exp_avg"], one.state[parameter]["exp_avg"])
    two.step()


def test_disagreement_is_kl_of_student_and_teacher():
    p, q = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.5, 0.5]])
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert float(disagreement(p.log(), q.log())) == pytest.approx(expected, abs=1e-6)


def test_fedftgs_generator_finds_hard_samples_and_the_student_learns_them(tiny):
    algorithm = create(Task(tiny(algorithm={**FEDFTG, "classification": 0.0, "diversity": 0.0})))
    task = algorithm.task
    server, context = algorithm.start(), Round(1, 1, 0)
    replies = replies_of(algorithm, server, context, list(task.clients), {})
    teachers = teachers_of(task, replies)
    student = task.load("mlp", server.models["mlp"], role="student")
    generator = algorithm.generator()
    labels, noise = torch.arange(16) % 10, generator.draw(16, torch.Generator().manual_seed(0))
    shares = torch.full((2, 10), 0.5)

    def gap():
        with torch.no_grad():
            made = generator.train()(noise, labels)
            return sum(float(disagreement(student(made), t.load()(made)).mean()) for t in teachers)

    before = gap()
    steps = optimiser(algorithm.options.generator_optimizer, list(generator.parameters()))
    for _ in range(5):
        algorithm.harden(generator, steps, student, teachers, shares, noise, labels)
    assert gap() > before
    learner = optimiser(algorithm.options.student_optimizer, list(student.parameters()))
    losses = algorithm.learn(generator, student, learner, teachers, shares, noise, labels)
    assert losses[-1] < losses[0]


def test_class_level_weights_can_be_left_out(tiny):
    counts = torch.tensor([[3, 1], [1, 1]])
    algorithm = create(Task(tiny(algorithm=FEDFTG)))
    replies = replies_of(algorithm, algorithm.start(), Round(1, 1, 0), list(algorithm.task.clients), {})
    assert algorithm.shares(counts, replies).tolist() == [[0.75, 0.5], [0.25, 0.5]]
    plain = create(Task(tiny(algorithm={**FEDFTG, "class_level": False})))
    assert plain.shares(counts, replies).tolist() == [[0.5, 0.5], [0.5, 0.5]]  # 120 samples each


@pytest.mark.parametrize("options", [FEDGEN, FEDFTG])
def test_runs_resume_exactly(tiny, tmp_path, options):
    whole = run(tiny(rounds=3, algorithm=options), tmp_path / "whole")
    run(tiny(rounds=2, algorithm=options), tmp_path / "parts")
    resumed = run(tiny(rounds=3, algorithm=options), tmp_path / "parts", resume=True)
    for name, tensor in whole.server.models["mlp"].items():
        assert torch.equal(tensor, resumed.server.models["mlp"][name])


def test_what_they_cannot_do_is_said(tiny):
    tree = tiny_tree(algorithm={"name": "fedftg"})
    tree["model"] = {"clients": ["mlp", "cnn-small"]}
    with pytest.raises(FedstillError, match="same architecture"):
        create(Task(parse(tree)))
    tree["algorithm"] = {"name": "fedgen"}
    with pytest.raises(FedstillError, match="equally wide"):
        create(Task(parse(tree)))
    with pytest.raises(FedstillError, match="conditional"):
        create(Task(tiny(algorithm={"name": "fedftg", "generator": {"kind": "dcgan"}}))).start()


@pytest.mark.parametrize("options", [FEDGEN, FEDFTG])
def test_counts_that_are_none_are_screened(tiny, options):
    algorithm = create(Task(tiny(algorithm=options)))
    server, name = algorithm.start(), next(iter(algorithm.task.clients))
    for wrong in (torch.ones(10), torch.tensor([-1] * 10), torch.ones(3, dtype=torch.int64)):
        assert "counts" in algorithm.screen(server, name, Message.of(counts={"labels": wrong}))
    assert algorithm.screen(server, name, Message.of(counts={"labels": torch.arange(10)})) is None
