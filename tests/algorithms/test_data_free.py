"""FedGen and FedFTG: the generators that learn on the server."""

import math

import pytest
import torch
from torch import nn

from fedstill.algorithm import Reply, Round
from fedstill.algorithms import create
from fedstill.algorithms.fedftg import disagreement
from fedstill.algorithms.fedgen import fedgen_loss
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.fusion.distillation.diversity import diversity_loss
from fedstill.fusion.teacher import Teacher, teachers_of
from fedstill.run.configuration import parse
from fedstill.run.loop import run
from fedstill.task import Task
from fedstill.training.fit import Batch
from fedstill.training.optimizers import make_optimizer
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
    assert after.parts["generator-optimizer"]["step body.0.weight"].item() == 10
    second = Round(2, 3, 0)
    assert "generator" in algorithm.instruct(after, ids[0], second).groups()
    again = algorithm.fuse(after, replies_of(algorithm, after, second, ids, {}), second)
    assert again.parts["generator-optimizer"]["step body.0.weight"].item() == 20
    assert second.notes["generator_loss"] < context.notes["generator_loss"]


def test_fedgens_clients_learn_from_the_generator_from_the_second_round_on(tiny):
    def trained(round, **options):
        algorithm = create(Task(tiny(rounds=3, algorithm={**FEDGEN, **options})))
        [reply] = replies_of(algorithm, algorithm.start(), Round(round, 3, 0), ["mnist-0"], {})
        return reply.model["head.weight"]

    without = {"generative": 0.0, "latent": 0.0}
    assert torch.equal(trained(1), trained(1, **without))
    assert not torch.equal(trained(2), trained(2, **without))
    assert not torch.equal(trained(2), trained(2, latent=0.0))


def test_fedgens_term_by_hand(tiny):
    algorithm = create(Task(tiny(algorithm={**FEDGEN, "generated_batch": 2, "generative": 3.0, "latent": 5.0})))
    network = algorithm.task.networks.get("mlp")
    generator = algorithm.generator().eval()
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    features = network.features(x)
    batch = Batch(network, x, y, features, network.head(features), 0, torch.Generator().manual_seed(1))
    got = algorithm.generated_terms(generator, 0.5, None)[0](batch)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        made, labels = generator.sample(2, rng)
        same, _ = generator.sample(4, rng, y)
        ce = nn.functional.cross_entropy(network.head(made), labels)
        p, q = network.head(same).softmax(1), network.head(features).softmax(1)
        kl = (p * (p / q).log()).sum(1).mean()
    assert float(got) == pytest.approx(float(0.5 * (3.0 * ce * 2 / 4 + 5.0 * kl)), rel=1e-4)


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
    student = task.networks.load("mlp", server.models["mlp"], role="student")
    generator = algorithm.generator()
    labels, noise = torch.arange(16) % 10, generator.draw(16, torch.Generator().manual_seed(0))
    shares = torch.full((2, 10), 0.5)

    def gap():
        with torch.no_grad():
            made = generator.train()(noise, labels)
            return sum(float(disagreement(student(made), t.load()(made)).mean()) for t in teachers)

    before = gap()
    steps = make_optimizer(algorithm.options.generator_optimizer, list(generator.parameters()))
    for _ in range(5):
        algorithm.train_generator(generator, steps, student, teachers, shares, noise, labels)
    assert gap() > before
    learner = make_optimizer(algorithm.options.student_optimizer, list(student.parameters()))
    losses = algorithm.train_student(generator, student, learner, teachers, shares, noise, labels)
    assert losses[-1] < losses[0]


def scene(tiny, model="mlp", **options):
    """FedFTG with two teachers, a student, a generator, noise and labels."""
    tree = tiny_tree(algorithm={**FEDFTG, **options})
    tree["model"] = {"name": model}
    algorithm = create(Task(parse(tree)))
    server, context = algorithm.start(), Round(1, 1, 0)
    replies = replies_of(algorithm, server, context, list(algorithm.task.clients), {})
    student = algorithm.task.networks.load(model, server.models[model], role="student")
    generator = algorithm.generator()
    labels, noise = torch.arange(16) % 10, generator.draw(16, torch.Generator().manual_seed(0))
    return algorithm, replies, teachers_of(algorithm.task, replies), student, generator, noise, labels


def test_fedftgs_student_learns_the_class_level_ensemble(tiny):
    algorithm, replies, _, student, generator, noise, labels = scene(tiny, student_steps=1)
    rng = torch.Generator().manual_seed(0)
    states = [{name: t + 0.5 * torch.randn(t.shape, generator=rng) for name, t in r.model.items()} for r in replies]
    teachers = [Teacher(str(k), lambda state=state: algorithm.task.networks.load("mlp", state)) for k, state in enumerate(states)]
    shares = torch.stack([torch.linspace(0, 1, 10), torch.linspace(1, 0, 10)])
    with torch.no_grad():
        made = generator.eval()(noise, labels)
        said = [teacher.load()(made).softmax(1) for teacher in teachers]
        target = shares[0, labels][:, None] * said[0] + shares[1, labels][:, None] * said[1]
        expected = (target * (target.log() - student(made).log_softmax(1))).sum(1).mean()
    learner = make_optimizer(algorithm.options.student_optimizer, list(student.parameters()))
    [loss] = algorithm.train_student(generator, student, learner, teachers, shares, noise, labels)
    scale = 10 if algorithm.options.reduction == "mean" else 1  # the authors' mean is over the classes as well
    assert float(loss) * scale == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("term", ["classification", "diversity"])
def test_each_term_of_fedftgs_generator_has_its_sign(term, tiny):
    terms = dict.fromkeys(("hard", "classification", "diversity"), 0.0)
    algorithm, _, teachers, student, generator, noise, labels = scene(tiny, **{**terms, term: 1.0})
    shares = torch.full((2, 10), 0.5)

    def value():
        with torch.no_grad():
            made = generator.train()(noise, labels)
            if term == "diversity":
                return float(diversity_loss(noise, made))
            return sum(float(nn.functional.cross_entropy(t.load()(made), labels)) for t in teachers)

    before = value()
    steps = make_optimizer(algorithm.options.generator_optimizer, list(generator.parameters()))
    for _ in range(10):
        algorithm.train_generator(generator, steps, student, teachers, shares, noise, labels)
    assert value() < before


def test_fedftgs_labels_follow_the_counts_or_are_uniform(tiny):
    seen = {}
    for kind in ("counts", "uniform"):
        algorithm, replies, _, student, generator, *_ = scene(tiny, label_sampling=kind, iterations=4)
        only = torch.zeros(10, dtype=torch.int64)
        only[3] = 5
        told = [
            Reply(r.client, r.domain, r.prototype, 5, lambda m=r.message, n=only: m.with_parts(counts={"labels": n}))
            for r in replies
        ]
        found = []
        algorithm.train_student = lambda *given, found=found: found.append(given[-1]) or [torch.zeros(())]
        algorithm.fine_tune(student, generator, told, Round(1, 1, 0))
        seen[kind] = set(torch.cat(found).tolist())
    assert seen["counts"] == {3}
    assert len(seen["uniform"]) > 5


def test_fedftgs_student_keeps_its_statistics_where_they_are_frozen(tiny):
    for kind, kept in (("frozen", True), ("train", False)):
        algorithm, _, teachers, student, generator, noise, labels = scene(tiny, "cnn-small", student_norm=kind)
        before = student.body[2].running_mean.clone()
        learner = make_optimizer(algorithm.options.student_optimizer, list(student.parameters()))
        algorithm.train_student(generator, student, learner, teachers, torch.full((2, 10), 0.5), noise, labels)
        assert torch.equal(before, student.body[2].running_mean) == kept


def test_fedgens_generator_may_seek_what_the_student_does_not_know(tiny):
    ends = []
    for adversarial in (0.0, 1.0):
        algorithm = create(Task(tiny(algorithm={**FEDGEN, "teacher": 0.0, "diversity": 0.0, "adversarial": adversarial})))
        server, context = algorithm.start(), Round(1, 1, 0)
        algorithm.fuse(server, replies_of(algorithm, server, context, list(algorithm.task.clients), {}), context)
        ends.append(context.notes["generator_loss"])
    assert ends[0] == 0
    assert ends[1] < 0  # minus the divergence between ensemble and student


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({**FEDGEN, "optimizer": {"name": "sgd", "lr": 1e30}}, "not a number"),
        ({**FEDFTG, "student_optimizer": {"lr": 1e30}}, "diverged"),
    ],
)
def test_what_diverges_is_an_error(tiny, tmp_path, options, text):
    with pytest.raises(FedstillError, match=text):
        run(tiny(algorithm=options), tmp_path / "a")


@pytest.mark.parametrize("options", [FEDGEN, FEDFTG])
def test_a_dropped_client_teaches_nobody(tiny, options, monkeypatch):
    algorithm = create(Task(tiny(algorithm=options)))
    server, context = algorithm.start(), Round(1, 1, 0)
    replies = replies_of(algorithm, server, context, list(algorithm.task.clients), {})
    monkeypatch.setattr(algorithm, "trusted", lambda replies, round: replies[:1])
    both = algorithm.fuse(server, replies, context)
    monkeypatch.undo()
    alone = algorithm.fuse(server, replies[:1], Round(1, 1, 0))
    assert all(torch.equal(tensor, alone.parts["generator"][name]) for name, tensor in both.parts["generator"].items())
    assert all(torch.equal(tensor, alone.models["mlp"][name]) for name, tensor in both.models["mlp"].items())


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
    with pytest.raises(FedstillError, match="equal width"):
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
