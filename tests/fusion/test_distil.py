"""A student learns a table: towards the teacher, by the best snapshot, and without touching what it must not touch."""

from __future__ import annotations

import pytest
import torch

from fedstill.core.errors import FedstillError
from fedstill.core.message import clone
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.distil import distil
from fedstill.fusion.distillation.divergence import divergence
from fedstill.fusion.distillation.options import Averaging, Distillation
from fedstill.fusion.ensemble import Table, ensemble_table
from fedstill.models import build
from fedstill.models.predict import accuracy, predict_logits
from fedstill.models.statistics import buffer_names
from fedstill.training.options import Optimizer

from .speakers import Given, Linear, pool, teach

FAST = Optimizer(name="adam", lr=0.05)


def rng():
    return torch.Generator().manual_seed(0)


def table_of(network, samples):
    return ensemble_table(teach([network]), samples, Given(1.0))


def same(one, other, names=None):
    return all(torch.equal(one[name], other[name]) for name in (names if names is not None else one))


def test_the_student_becomes_the_teacher():
    samples, teacher, student = pool(80), Linear(4, 3, seed=1), Linear(4, 3, seed=2)
    far = float(divergence(predict_logits(student, samples), predict_logits(teacher, samples).softmax(1)))
    done = distil(student, samples, table_of(teacher, samples), Distillation(steps=300, batch_size=16, optimizer=FAST), rng=rng())
    near = float(divergence(predict_logits(student, samples), predict_logits(teacher, samples).softmax(1)))
    assert near < far / 50
    assert done.steps == 300
    assert done.last_loss < done.first_loss
    assert accuracy(student, Samples(samples.x, predict_logits(teacher, samples).argmax(1))) > 0.95


def test_one_step_of_sgd_is_the_gradient_of_avglogits():
    samples, student = pool(8), Linear(4, 3, seed=2)
    teachers = [Linear(4, 3, seed=k) for k in (3, 4)]
    table = ensemble_table(teach(teachers), samples, Given(0.5, 0.5))
    before = student.head.bias.detach().clone()
    options = Distillation(steps=1, batch_size=8, optimizer=Optimizer(lr=0.1), schedule="constant", clip=None)
    distil(student, samples, table, options, rng=rng())
    # d KL / d bias = mean over samples of (softmax(student) - softmax(mean of the teachers' logits))
    reference = Linear(4, 3, seed=2)
    mean = sum(predict_logits(t, samples) for t in teachers) / 2
    gap = (predict_logits(reference, samples).softmax(1) - mean.softmax(1)).mean(0)
    assert torch.allclose(student.head.bias.detach(), before - 0.1 * gap, atol=1e-6)


def test_epochs_count_batches():
    samples, student = pool(20), Linear(4, 3, seed=2)
    done = distil(student, samples, table_of(Linear(4, 3), samples), Distillation(epochs=2, batch_size=8), rng=rng())
    assert done.steps == 6


def by_hand(seed, samples, targets, rates, **how):
    """A student after plain gradient steps on all samples."""
    student = Linear(4, 3, seed=seed)
    for rate in rates:
        student.zero_grad()
        divergence(student(student.normalise(samples.x)), targets, **how).backward()
        with torch.no_grad():
            for parameter in student.parameters():
                parameter -= rate * parameter.grad
    return student.state_dict()


def test_the_rate_falls_as_half_a_cosine():
    samples, student = pool(8), Linear(4, 3, seed=2)
    table = table_of(Linear(4, 3, seed=5), samples)
    options = Distillation(steps=3, batch_size=8, optimizer=Optimizer(lr=0.4), schedule="cosine", clip=None)
    distil(student, samples, table, options, rng=rng())
    torch.testing.assert_close(dict(student.state_dict()), dict(by_hand(2, samples, table.targets, [0.4, 0.3, 0.1])))


@pytest.mark.parametrize(
    "how", [{"temperature": 3.0}, {"temperature": 3.0, "square": True}, {"reduction": "mean"}, {"direction": "reverse"}]
)
def test_the_loss_is_the_one_that_was_asked_for(how):
    samples, student = pool(8), Linear(4, 3, seed=2)
    table = table_of(Linear(4, 3, seed=5), samples)
    options = Distillation(steps=1, batch_size=8, optimizer=Optimizer(lr=0.4), schedule="constant", clip=None, **how)
    distil(student, samples, table, options, rng=rng())
    torch.testing.assert_close(dict(student.state_dict()), dict(by_hand(2, samples, table.targets, [0.4], **how)))
    plain = by_hand(2, samples, table.targets, [0.4])
    assert not torch.allclose(student.state_dict()["head.weight"], plain["head.weight"], atol=1e-4)


def test_a_lone_last_sample_does_not_cost_a_step():
    samples = pool(17)
    for norm, steps in (("train", 5), ("frozen", 5)):
        student = Linear(4, 3, batch_norm=True)
        options = Distillation(steps=5, batch_size=8, student_norm=norm)
        assert distil(student, samples, table_of(Linear(4, 3, 1), samples), options, rng=rng()).steps == steps


@pytest.mark.parametrize("norm", ["train", "recalibrate"])
def test_a_pool_of_one_sample_has_no_batch_statistics(norm):
    samples, options = pool(1), Distillation(steps=2, student_norm=norm)
    table = table_of(Linear(4, 3, 1), samples)
    with pytest.raises(FedstillError, match="one sample has no batch statistics"):
        distil(Linear(4, 3, batch_norm=True), samples, table, options, rng=rng())
    assert distil(Linear(4, 3), samples, table, options, rng=rng()).steps == 2
    frozen = options.model_copy(update={"student_norm": "frozen"})
    assert distil(Linear(4, 3, batch_norm=True), samples, table, frozen, rng=rng()).steps == 2


def test_clipping_bounds_the_step():
    samples, student = pool(16), Linear(4, 3, seed=2)
    before = clone(student.state_dict())
    options = Distillation(steps=1, batch_size=16, optimizer=Optimizer(lr=1.0), clip=0.01)
    distil(student, samples, table_of(Linear(4, 3, 7), samples), options, rng=rng())
    moved = sum(float((student.state_dict()[k] - before[k]).square().sum()) for k in before) ** 0.5
    assert moved == pytest.approx(0.01, rel=1e-3)


def test_a_proximal_pull_keeps_the_student_near_its_start():
    samples, teacher = pool(40), Linear(4, 3, seed=1)
    moved = {}
    for mu in (0.0, 1.0, 100.0):
        student = Linear(4, 3, seed=2)
        before = clone(student.state_dict())
        options = Distillation(steps=60, batch_size=20, optimizer=Optimizer(lr=0.01), schedule="constant", clip=None, proximal=mu)
        distil(student, samples, table_of(teacher, samples), options, rng=rng())
        moved[mu] = sum(float((student.state_dict()[k] - before[k]).square().sum()) for k in before) ** 0.5
    assert moved[0.0] > 1.1 * moved[1.0] > 1.1 * moved[100.0] > 0  # mu = 100 holds it where the loss has a slope of 100 gaps
    assert moved[100.0] < moved[0.0] / 20


def test_a_factor_of_the_rate_below_the_head():
    samples, moved = pool(16), {}
    for factor in (None, 0.1):
        student = build("mlp", classes=3, shape=(4,), hidden=[5], seed=0)
        before = clone(student.state_dict())
        sgd = Optimizer(name="sgd", lr=0.1, momentum=0.0)
        options = Distillation(steps=1, batch_size=16, optimizer=sgd, schedule="constant", clip=None, backbone_rate=factor)
        distil(student, samples, table_of(Linear(4, 3, seed=1), samples), options, rng=rng())
        moved[factor] = {name: tensor - before[name] for name, tensor in student.state_dict().items()}
    for name, step in moved[None].items():
        assert torch.allclose(moved[0.1][name], step if name.startswith("head") else 0.1 * step, atol=1e-7), name


def test_samples_of_no_weight_teach_nothing():
    samples = pool(20)
    right, wrong = predict_logits(Linear(4, 3, 1), samples).softmax(1), predict_logits(Linear(4, 3, 2), samples).softmax(1)
    half = torch.arange(20) < 10
    mixed = Table(torch.where(half[:, None], right, wrong), torch.ones(20, 1), half.float())
    student = Linear(4, 3, seed=5)
    distil(student, samples, mixed, Distillation(steps=600, batch_size=20, optimizer=FAST), rng=rng())
    spoken = predict_logits(student, samples)
    assert float(divergence(spoken[:10], right[:10])) < 0.02
    assert float(divergence(spoken[10:], wrong[10:])) > 0.1


def test_sharpened_targets_are_what_is_learned():
    samples, teacher, student = pool(60), Linear(4, 3, seed=1), Linear(4, 3, seed=2)
    options = Distillation(steps=800, batch_size=60, optimizer=FAST, sharpen=0.5)
    distil(student, samples, table_of(teacher, samples), options, rng=rng())
    # p^2 / sum p^2 is softmax(2 z)
    assert float(divergence(predict_logits(student, samples), (2 * predict_logits(teacher, samples)).softmax(1))) < 0.01


def test_early_stopping_returns_the_best_snapshot_not_the_last_iterate():
    samples, student = pool(60), Linear(4, 3, seed=2)
    truth = Linear(4, 3, seed=2)  # validation agrees with the start; the table pulls away from it
    validation = Samples(samples.x, predict_logits(truth, samples).argmax(1))
    options = Distillation(steps=1000, batch_size=60, optimizer=FAST, check_every=2, patience=10, schedule="constant")
    seen = []
    done = distil(
        student,
        samples,
        table_of(Linear(4, 3, seed=8), samples),
        options,
        rng=rng(),
        validation=validation,
        progress=lambda step, of: seen.append(step),
    )
    assert done.steps == 12  # the first check was the best; ten steps later it ends
    two = Linear(4, 3, seed=2)
    short = Distillation(steps=2, batch_size=60, optimizer=FAST, schedule="constant")
    distil(two, samples, table_of(Linear(4, 3, seed=8), samples), short, rng=rng())
    assert same(student.state_dict(), two.state_dict())
    assert done.after == accuracy(two, validation)


def test_without_patience_the_last_iterate_is_the_result():
    samples = pool(30)
    validation = Samples(samples.x, torch.zeros(30, dtype=torch.long))
    one, other = Linear(4, 3, seed=2), Linear(4, 3, seed=2)
    table = table_of(Linear(4, 3, seed=8), samples)
    options = Distillation(steps=20, batch_size=10, patience=None)
    done = distil(one, samples, table, options, rng=rng(), validation=validation)
    distil(other, samples, table, options, rng=rng())
    assert done.steps == 20
    assert same(one.state_dict(), other.state_dict())


def shifted(n=64):
    """Inputs whose mean and scale are not the running statistics' (0 and 1)."""
    return Samples(pool(n).x * 3 + 5)


def test_frozen_statistics_stay_and_the_layers_own_weights_learn():
    student = Linear(4, 3, seed=2, batch_norm=True)
    before = clone(student.state_dict())
    distil(student, shifted(), table_of(Linear(4, 3, 1), shifted()), Distillation(steps=20, batch_size=16), rng=rng())
    after = student.state_dict()
    assert same(before, after, buffer_names(student))
    assert not torch.equal(before["norm.weight"], after["norm.weight"])


def test_frozen_holds_through_validation_checks_and_weight_averaging():
    student, samples = Linear(4, 3, seed=2, batch_norm=True), shifted()
    before = clone(student.state_dict())
    validation = Samples(samples.x, torch.zeros(64, dtype=torch.long))
    options = Distillation(steps=20, batch_size=16, check_every=5, averaging=Averaging(every=5))
    distil(student, samples, table_of(Linear(4, 3, 1), samples), options, rng=rng(), validation=validation)
    assert same(before, student.state_dict(), buffer_names(student))


def test_train_mode_takes_the_pools_statistics_and_recalibration_takes_them_exactly():
    samples = shifted()
    moving = Linear(4, 3, seed=2, batch_norm=True)
    distil(
        moving,
        samples,
        table_of(Linear(4, 3, 1), samples),
        Distillation(steps=20, batch_size=16, student_norm="train"),
        rng=rng(),
    )
    assert float((moving.norm.running_mean - 5).abs().max()) < 1.5
    exact = Linear(4, 3, seed=2, batch_norm=True)
    options = Distillation(steps=20, batch_size=16, student_norm="recalibrate")
    distil(exact, samples, table_of(Linear(4, 3, 1), samples), options, rng=rng())
    assert torch.allclose(exact.norm.running_mean, samples.x.mean(0), atol=1e-4)
    assert torch.allclose(exact.norm.running_var, samples.x.var(0), atol=1e-2)
    assert exact.norm.momentum == 0.1


def test_keep_if_worse_keeps_the_merged_model():
    samples = pool(60)
    validation = Samples(samples.x, predict_logits(Linear(4, 3, seed=2), samples).argmax(1))
    table = table_of(Linear(4, 3, seed=8), samples)
    kept, lost = Linear(4, 3, seed=2), Linear(4, 3, seed=2)
    options = Distillation(steps=100, batch_size=60, optimizer=FAST, keep_if_worse="merged")
    done = distil(kept, samples, table, options, rng=rng(), validation=validation)
    assert done.hurt
    assert done.kept == "merged"
    assert same(kept.state_dict(), Linear(4, 3, seed=2).state_dict())
    done = distil(lost, samples, table, options.model_copy(update={"keep_if_worse": "student"}), rng=rng(), validation=validation)
    assert done.hurt
    assert done.kept == "student"
    assert accuracy(lost, validation) < 1


def test_weight_averaging_is_the_mean_of_its_snapshots():
    samples, table = pool(16), table_of(Linear(4, 3, 1), pool(16))
    options = Distillation(steps=4, batch_size=16, schedule="constant", averaging=Averaging(start=2, every=2))
    student = Linear(4, 3, seed=2)
    distil(student, samples, table, options, rng=rng())
    snapshots = []
    for steps in (2, 4):
        one = Linear(4, 3, seed=2)
        distil(one, samples, table, Distillation(steps=steps, batch_size=16, schedule="constant"), rng=rng())
        snapshots.append(one.head.bias.detach())
    assert torch.allclose(student.head.bias.detach(), (snapshots[0] + snapshots[1]) / 2, atol=1e-6)


def test_fresh_inputs_ask_the_teachers_each_step_and_agree_with_the_table():
    samples, teacher = pool(32), Linear(4, 3, seed=1)
    asked = []

    def ask(x):
        asked.append(len(x))
        return ensemble_table(teach([teacher]), Samples(x), Given(1.0))

    options = Distillation(steps=6, batch_size=16)
    one, other = Linear(4, 3, seed=2), Linear(4, 3, seed=2)
    distil(one, samples, ask, options, rng=rng())
    distil(other, samples, table_of(teacher, samples), options, rng=rng())
    assert asked == [16] * 6
    assert all(torch.allclose(one.state_dict()[k], t, atol=1e-6) for k, t in other.state_dict().items())
