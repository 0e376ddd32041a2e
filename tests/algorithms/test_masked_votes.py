"""Private votes under a secure sum: the plain majority without noise, noise and budget as stated, lost clients."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.algorithms import create, masked_votes
from fedstill.audit.items import privacy_words
from fedstill.config.tables import Config
from fedstill.core.errors import FedstillError
from fedstill.fusion.weightings.private_votes import spent_epsilon
from fedstill.run.loop import Result, drive, run
from fedstill.task import Task
from tests.algorithms.test_secure_average import Losing
from tests.conftest import tiny_config

pytest.importorskip("cryptography", reason="the extra fedstill[secure] is not installed")

CLIENTS, THRESHOLD = 4, 3  # of four clients three must stay
ALGORITHM = {"name": "feddf", "line": False, "distillation": {"steps": 4, "start": "previous"}}


def config(sigma: float = 1e-9, secure: bool = True, **changes: Any) -> Config:
    votes = {"sigma": sigma, "sigma_threshold": sigma, "threshold": 0.0, **changes.pop("votes", {})}
    tree = {"data": {"holdout": 0.3}, "clients": {"per_domain": CLIENTS}, "rounds": 1, "algorithm": ALGORITHM, **changes}
    tree["data"] = {"domains": ["embedded:mnist"], **tree["data"]}
    return tiny_config(**tree, privacy={"votes": votes, **({"secure": {}} if secure else {})})


def weights(result: Result) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in sorted(result.server.models["mlp"].items())])


def test_without_noise_the_student_is_that_of_open_votes(tmp_path: Path) -> None:
    votes = {"threshold": 2.5}  # no ties
    masked, plain = (run(config(secure=s, votes=votes), tmp_path / str(s)) for s in (True, False))
    told = [result.history[0]["votes"] for result in (masked, plain)]
    assert told[0]["answered"] == told[1]["answered"] > 0
    assert torch.allclose(weights(masked), weights(plain), atol=1e-6)
    assert "model" not in masked.history[0]["sent"]
    assert "loss" not in masked.history[0]["sent"]
    assert masked.history[0]["secure"] == {"asked": CLIENTS, "summed": CLIENTS}


def test_the_sum_has_the_votes_and_at_least_the_stated_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of K clients adds sigma^2 / (t - 1), where t must stay."""
    seen: list[torch.Tensor] = []
    learned = masked_votes.learned
    monkeypatch.setattr(masked_votes, "learned", lambda *given: (seen.append(given[2]), learned(*given))[1])
    run(config(1e-9), tmp_path / "plain")
    run(config(5.0), tmp_path / "noised")
    counts, noised = seen
    assert torch.equal(counts.round().sum(1), torch.full((len(counts),), float(CLIENTS), dtype=torch.float64))
    noise = noised - counts
    wanted = 5.0 * math.sqrt(CLIENTS / (THRESHOLD - 1))
    assert float(noise.std()) == pytest.approx(wanted, rel=5 / math.sqrt(2 * noise.numel()))
    assert abs(float(noise.mean())) < 5 * wanted / math.sqrt(noise.numel())


def test_a_lost_client_leaves_enough_noise_and_the_others_votes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' parts of the noise are enough, also for a client that subtracts its own."""
    seen: list[torch.Tensor] = []
    learned = masked_votes.learned
    monkeypatch.setattr(masked_votes, "learned", lambda *given: (seen.append(given[2]), learned(*given))[1])
    for sigma in (1e-9, 5.0):
        algorithm, out = create(Task(config(sigma, votes={"threshold": 2.5}))), tmp_path / str(sigma)
        gone = list(algorithm.task.clients)[:1]
        with contextlib.closing(Losing(algorithm, out).lose("mask", gone)) as engine:
            done = drive(algorithm, engine, out)
        assert done.history[0]["secure"] == {"asked": CLIENTS, "summed": CLIENTS - 1}
        assert done.history[0]["votes"]["answered"] > 0
    counts, noised = seen
    assert torch.equal(counts.round().sum(1), torch.full((len(counts),), float(CLIENTS - 1), dtype=torch.float64))
    deviation, left = float((noised - counts).std()), CLIENTS - 1
    assert deviation == pytest.approx(5.0 * math.sqrt(left / (THRESHOLD - 1)), rel=5 / math.sqrt(2 * counts.numel()))
    assert deviation * math.sqrt((left - 1) / left) == pytest.approx(5.0, rel=5 / math.sqrt(2 * counts.numel()))


def test_a_budget_is_divided_by_the_samples(tmp_path: Path) -> None:
    """Epsilon of n samples is that of n Gaussian mechanisms with sensitivity sqrt(2); nothing is asked after it is spent."""
    sigma = 20.0
    budget = spent_epsilon(25 / sigma**2, 1e-5)
    result = run(config(sigma, votes={"epsilon": budget}, rounds=3, data={"holdout": 0.2}), tmp_path)
    pool = len(result.task.pool.samples)
    assert pool < 25 < 2 * pool
    told = [line["votes"] for line in result.history]
    assert [one["asked"] for one in told] == [pool, 25, 25]
    assert told[0]["epsilon"] == pytest.approx(spent_epsilon(pool / sigma**2, 1e-5))
    assert told[-1]["epsilon"] == pytest.approx(budget)
    assert "what the server sees" in told[-1]["covers"]
    assert result.summary["votes"]["epsilon"] == pytest.approx(budget)


def test_only_secret_noise_holds_against_those_who_know_the_seed(tmp_path: Path) -> None:
    told = []
    for name, more in (("a", {}), ("b", {}), ("c", {"secret": True}), ("d", {"secret": True})):
        result = run(config(2.0, votes=more), tmp_path / name)
        told.append((weights(result), "seed" in result.history[0]["votes"]["covers"]))
    assert torch.equal(told[0][0], told[1][0])
    assert not torch.equal(told[2][0], told[3][0])
    assert [seeded for _, seeded in told] == [True, True, False, False]


def test_several_architectures_vote_together(tmp_path: Path) -> None:
    changes = {"model": {"clients": ["mlp", "lenet"]}, "data": {"holdout": 0.3, "image_size": 16}}
    result = run(config(votes={"threshold": 3.5}, **changes), tmp_path)
    assert result.history[0]["secure"]["summed"] == CLIENTS
    assert set(result.server.models) == {"mlp", "lenet"}


def test_what_needs_a_clients_weights_is_refused() -> None:
    for changed in ({"line": {"judge": "server"}}, {"distillation": {"start": "average"}}, {"contrastive": {"mu": 1.0}}):
        with pytest.raises(FedstillError, match="hides all weights"):
            create(Task(config(algorithm={**ALGORITHM, **changed})))
    with pytest.raises(FedstillError, match="or add privacy.votes"):
        create(Task(tiny_config(algorithm={"name": "feddf"}, data={"holdout": 0.3}, privacy={"secure": {}})))


def test_the_audit_calls_it_private() -> None:
    private, words = privacy_words({"privacy": {"votes": {}, "secure": {}}}, {"votes": {"epsilon": 2.0, "covers": "x"}})
    assert private
    assert words == ["votes are noised before a student learns from them: epsilon 2; x", words[1]]
    assert "noised sum" in words[1]
