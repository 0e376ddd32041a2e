"""FedRAD: median scores by hand, and a liar who is seldom the median."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedstill.algorithm import Round
from fedstill.algorithms import create
from fedstill.algorithms.fedrad import scored_shares
from fedstill.core.errors import FedstillError
from fedstill.fusion.ensemble import ensemble_table
from fedstill.fusion.merges import weighted_sum
from fedstill.fusion.weightings.robust import Median
from fedstill.run.loop import run
from fedstill.task import Task

from ..conftest import tiny_config
from ..fusion.speakers import Linear, pool, teach
from .adaptation import exchange


def test_the_table_is_the_lower_median_of_logits():
    networks, samples = [Linear(4, 3, seed=k) for k in range(4)], pool(9)
    table = ensemble_table(teach(networks), samples, Median())
    together = torch.stack([network(samples.x) for network in networks]).detach()
    lower = together.sort(0).values[1]  # of four, the second smallest
    assert torch.allclose(table.targets, lower.softmax(1), atol=1e-6)
    wanted = [float((together[k] == lower).double().mean()) for k in range(4)]
    assert table.weights.mean(0).tolist() == pytest.approx(wanted)


def test_scores_times_examples():
    assert scored_shares([0.6, 0.4, 0.0], [10, 30, 50]) == pytest.approx([6 / 18, 12 / 18, 0.0])
    assert scored_shares([0.0, 0.0], [1, 3]) == [0.25, 0.75]


def test_a_liar_is_heard_less(tiny, tmp_path):
    config = tiny(
        rounds=2,
        data={"holdout": 0.3, "poison": {"clients": ["mnist-0"], "kind": "gaussian", "scale": 20.0}},
        clients={"per_domain": 3},
        local={"epochs": 3},
        algorithm={"name": "fedrad"},
    )
    weights = run(config, tmp_path / "a").history[-1]["weights"]
    liar = weights.pop("mnist-0")
    assert sum(weights.values()) + liar == pytest.approx(1, abs=1e-3)
    assert liar < min(weights.values())


def test_feddf_with_the_median_is_fedrad_without_scores(tiny, tmp_path):
    config = tiny(data={"holdout": 0.3}, algorithm={"name": "feddf", "weighting": "median", "distillation": {"steps": 5}})
    assert 0 <= run(config, tmp_path / "a").accuracy <= 1


def test_fresh_inputs_are_refused(tiny):
    config = tiny(data={"holdout": 0.3}, algorithm={"name": "fedrad", "distillation": {"fresh": True}})
    with pytest.raises(FedstillError, match="one fixed pool"):
        create(Task(config))


def test_steps_count_where_they_are_given_and_epochs_where_they_are_not():
    def resolved(**distillation):
        tree = {"name": "fedrad", "distillation": distillation}
        config = tiny_config(data={"server": "embedded:rotated"}, algorithm=tree)
        return create(Task(config)).options.distillation  # read twice, as every run does

    assert resolved().epochs == 2
    assert (resolved(steps=7).epochs, resolved(steps=7).steps) == (0, 7)
    assert resolved(steps=7, epochs=3).epochs == 3
    assert resolved(averaging=False).averaging is False
    assert resolved(steps=7).averaging.every == "epoch"


def test_another_merge_is_refused():
    config = tiny_config(data={"server": "embedded:rotated"}, algorithm={"name": "fedrad", "merge": "uniform"})
    with pytest.raises(FedstillError, match="remove merge"):
        create(Task(config))


def test_the_student_starts_from_the_average_by_scores_and_examples():
    still = {"steps": 1, "optimizer": {"lr": 1e-12}}
    config = tiny_config(data={"holdout": 0.3}, clients={"per_domain": 2}, algorithm={"name": "fedrad", "distillation": still})
    algorithm = create(Task(config))
    server, round = algorithm.start(), Round(1, 2, 0)
    replies = [replace(reply, samples=10 * (k + 1)) for k, reply in enumerate(exchange(algorithm, server, round, {}))]
    table = ensemble_table(algorithm.teachers(server, replies, round), algorithm.draw(server, round), Median())
    shares = scored_shares(table.weights.mean(0).tolist(), [reply.samples for reply in replies])
    assert max(abs(share - (k + 1) / 10) for k, share in enumerate(shares)) > 0.01  # examples alone would be another average
    expected = weighted_sum((reply.model for reply in replies), shares)
    [model] = algorithm.fuse(server, replies, round).models.values()
    torch.testing.assert_close(model["head.weight"], expected["head.weight"], atol=1e-6, rtol=1e-5)
