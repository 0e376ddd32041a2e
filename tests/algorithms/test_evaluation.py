"""What is measured for the history passes the networks in batches of ``evaluation.batch_size``, and only when it is due."""

from __future__ import annotations

import pytest

from fedstill.core.nested import laid_over
from fedstill.fusion import ensemble
from fedstill.models import predict
from fedstill.run.configuration import parse
from fedstill.run.loop import run
from tests.conftest import tiny_tree

TESTED = 37  # no other set of samples has this size, alone or twice
SHORT = {"distillation": {"steps": 5}}
PLANS = {
    "fedavg": {},
    "feddf": {"data": {"holdout": 0.2}, "algorithm": SHORT},
    "fedd3a": {"data": {"holdout": 0.2}, "model": {"student": "mlp"}},
    "fd": {},
    "shot": {"data": {"target": "embedded:rotated"}, "algorithm": {"epochs": 1}},
    "kd3a": {"data": {"target": "embedded:rotated"}, "algorithm": {"vote_norm": "running"}},
}


@pytest.mark.parametrize("name", PLANS)
def test_accuracies_are_measured_in_batches_of_the_evaluation(name, tmp_path, monkeypatch):
    seen: list[int] = []
    original = predict.apply

    def watched(function, network, samples, batch_size=predict.BATCH):
        if len(samples) in (TESTED, 2 * TESTED):
            seen.append(batch_size)
        return original(function, network, samples, batch_size)

    monkeypatch.setattr(predict, "apply", watched)
    monkeypatch.setattr(ensemble, "apply", watched)
    tree = laid_over(tiny_tree(data={"test_limit": TESTED}, algorithm={"name": name}), PLANS[name])
    lines = [run(parse(laid_over(tree, {"evaluation": {"batch_size": size}})), tmp_path / str(size)).history for size in (7, 512)]
    assert set(seen) == {7, 512}
    for small, large in zip(*lines, strict=True):
        assert small["accuracy"] == pytest.approx(large["accuracy"])


def test_nothing_is_measured_between(tmp_path):
    tree = tiny_tree(rounds=3, data={"holdout": 0.2}, algorithm={"name": "feddf", **SHORT}, evaluation={"every": 2})
    measured = [line["merged_accuracy"] is not None for line in run(parse(tree), tmp_path / "run").history]
    assert measured == [False, True, True]
