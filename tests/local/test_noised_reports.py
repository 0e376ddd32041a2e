"""Noised reports: what one sample changes, attained by construction; the stated noise; the ledger and its budget."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from fedstill.algorithm import Client
from fedstill.algorithms import create
from fedstill.algorithms.fd import noised_means
from fedstill.config.reports import Reports
from fedstill.core.accounting import SPENT, Ledger
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message
from fedstill.data.samples import Samples
from fedstill.local.reports import make_report, noise
from fedstill.local.reports.counts import label_counts
from fedstill.local.reports.moments import clipped, moments_of
from fedstill.local.reports.projection import Projection, private_subspace, projection_matrix
from fedstill.local.reports.statistics import Statistics, described, statistics_fault
from fedstill.run.loop import run, sample_clients
from fedstill.task import Task
from tests.conftest import tiny_config

QUIET = {"noise": 1e-9}


def a_client(options=QUIET, **changes):
    task = Task(tiny_config(privacy={"reports": options}, **changes))
    return Client.of(task, "mnist-0", 1)


def seen(monkeypatch):
    """What mechanisms get: each report's parts and their bounds, before noise."""
    found: list[list[tuple[torch.Tensor, float]]] = []
    real = noise.noised

    def spy(client, name, *parts):
        found.append([(part.clone().double(), bound) for part, bound in parts])
        return real(client, name, *parts)

    for module in ("noise", "projection", "counts"):
        monkeypatch.setattr(f"fedstill.local.reports.{module}.noised", spy)
    return found


def with_and_without(client, make, found):
    """How far each part moves if the client's last sample is removed, divided by its bound."""
    whole = client.data
    for data in (whole, Samples(whole.x[:-1], whole.y[:-1])):
        client.data, client.ledger = data, Ledger()
        make(client)
    here, there = found[-2:]
    return [float((a - b).norm()) / bound for (a, bound), (b, _) in zip(here, there, strict=True)]


# -- sensitivities --------------------------------------------------------------------------------------------------------------


def test_a_sample_changes_one_label_count_by_one(monkeypatch):
    found = seen(monkeypatch)
    assert with_and_without(a_client(), lambda c: label_counts(Message(), c, {}), found) == [1.0]


@pytest.mark.parametrize(("clip", "attained"), [(0.01, True), (1e6, False)])
def test_a_sample_changes_the_second_moments_by_at_most_the_squared_norm(clip, attained, monkeypatch):
    """|z z'| = |z|^2: the bound is attained by every feature that is clipped."""
    found = seen(monkeypatch)
    client = a_client({**QUIET, "clip": clip})
    message = Message.of(model=client.task.networks.initial("mlp"))
    (moved,) = with_and_without(client, lambda c: make_report("projection", message, c, {}), found)
    assert moved == pytest.approx(1.0) if attained else moved < 1.0
    for part in with_and_without(client, lambda c: make_report("statistics", message, c, {}), found):
        assert part <= 1.0 + 1e-9
    if attained:  # counts, sums and second moments all move by their bounds, so that together they move by sqrt(3)
        assert with_and_without(client, lambda c: make_report("statistics", message, c, {}), found) == pytest.approx([1.0] * 3)


def test_a_diagonal_of_second_moments_moves_no_further():
    z = torch.tensor([[0.0, 3.0], [1.0, 1.0]], dtype=torch.float64)
    whole, rest = moments_of(z, None, diagonal=True), moments_of(z[1:], None, diagonal=True)
    assert float((whole.seconds - rest.seconds).norm()) == 9.0  # |z|^2, for a feature along an axis


def test_predictions_may_move_in_every_row(monkeypatch):
    """Two networks that predict opposite clipped rows: the bound 2 clip sqrt(m) is attained."""
    found = seen(monkeypatch)
    client = a_client({**QUIET, "clip": 2.0})
    rows = torch.zeros(7, 3)
    rows[:, 1] = 50.0
    for one in (rows, -rows):
        noise.noised_rows(client, "predictions", one)
    ((here, bound),), ((there, _),) = found
    assert float((here - there).norm()) == pytest.approx(bound)
    assert bound == pytest.approx(2 * 2.0 * math.sqrt(7))


# -- noise ----------------------------------------------------------------------------------------------------------------------


def test_noise_has_the_stated_deviation():
    """noise * bound * sqrt(parts), normal, on every part."""
    client = a_client({"noise": 3.0})
    parts = [(torch.zeros(20_000), 1.0), (torch.zeros(100, 200), 0.25)]
    for made, wanted in zip(noise.noised(client, "x", *parts), (3.0 * math.sqrt(2), 0.75 * math.sqrt(2)), strict=True):
        assert float(made.std()) == pytest.approx(wanted, rel=0.02)
        assert stats.kstest(made.flatten().numpy() / wanted, "norm").pvalue > 0.01
    again = noise.noised(a_client({"noise": 3.0}), "x", *parts)
    assert torch.equal(again[0], noise.noised(a_client({"noise": 3.0}), "x", *parts)[0])  # of the seed, the round, the client
    secret = [noise.noised(a_client({"noise": 3.0, "secret": True}), "x", *parts)[0] for _ in range(2)]
    assert not torch.equal(*secret)


def test_a_symmetric_matrix_has_each_entry_once():
    noisy = noise.symmetric(torch.randn(2, 5, 5))
    assert torch.equal(noisy, noisy.transpose(1, 2))
    z = torch.randn(5, dtype=torch.float64)
    assert float(torch.outer(z, z).triu().norm()) <= float(z.square().sum())


def test_a_projection_without_noise_is_that_of_the_single_features():
    """P of the second moments equals the paper's with batches of one sample, and with its scale for larger batches."""
    z = clipped(torch.randn(60, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 2.0)
    options = Projection(batch_size=1)
    alpha = 0.01 * float(z.square().sum(1).mean())
    found = private_subspace(z.T @ z, 60, 0.0, options)["matrix"]
    torch.testing.assert_close(found.double(), projection_matrix(z, alpha), rtol=0, atol=1e-6)
    found = private_subspace(z.T @ z, 60, 0.0, Projection(batch_size=4, relative=False, alpha=0.5, literal=True))["matrix"]
    torch.testing.assert_close(found.double(), projection_matrix(z / 2, 0.5, literal=True), rtol=0, atol=1e-6)


def test_noise_alone_makes_no_subspace():
    """The eigenvalues of the noise end at 2 sigma sqrt(d) (Wigner), so that next to nothing of it is left."""
    rng = torch.Generator().manual_seed(0)
    noisy = noise.symmetric(torch.randn(200, 200, generator=rng, dtype=torch.float64) * 5.0)
    assert float(torch.linalg.matrix_rank(private_subspace(noisy, 50, 5.0, Projection())["matrix"])) <= 2
    edge = float(torch.linalg.eigvalsh(noisy).max()) / (2 * 5.0 * math.sqrt(200))
    assert edge == pytest.approx(1.0, abs=0.05)


def test_noised_statistics_describe_every_class_and_are_taken():
    """Counts with noise may add up to more than there are samples, and classes that a client does not have are not told apart."""
    client = a_client({"noise": 2.0, "clip": 3.0})
    z = torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 2
    options = Statistics(clip=3.0, min_samples=2, rare="leave", covariance="diagonal")
    found = described(z, labels, options, noise.moments_mechanism(client))
    assert set(found.labels.tolist()) > {0, 1}
    state = found.state()
    assert statistics_fault(state, 4, 10, 10) is not None  # more than ten samples
    assert statistics_fault(state, 4, 10, None) is None


def test_counts_are_numbers_of_samples_whatever_the_noise():
    labels = label_counts(Message(), a_client({"noise": 40.0}), {})["labels"]
    assert labels.dtype == torch.int64
    assert bool((labels >= 0).all())
    assert bool(labels.any())
    told = noised_means(a_client(QUIET), torch.ones(10, 10), 10)
    assert told["held"].tolist() == (a_client().data.counts(10) > 0).tolist()


# -- the ledger -----------------------------------------------------------------------------------------------------------------


def test_a_report_costs_one_mechanism_and_a_spent_budget_stops_the_client():
    client = a_client({"epsilon": 4.0}, rounds=5)
    for _ in range(5):
        noise.noised(client, "x", (torch.zeros(3), 1.0), (torch.zeros(3), 2.0))
    level = noise.report_noise(client.task.config.privacy.reports, 5)
    assert client.ledger == Ledger().gaussian(level).gaussian(level).gaussian(level).gaussian(level).gaussian(level)
    assert 3.99 < client.ledger.epsilon(1e-5) <= 4.0
    with pytest.raises(FedstillError, match=r"its privacy budget is spent: 4 of epsilon 4") as found:
        noise.noised(client, "x", (torch.zeros(3), 1.0))
    assert "\n" not in str(found.value)


SYSTEMS = {
    "fedd3a": {"data": {"server": "embedded:rotated"}},
    "feddf": {"data": {"server": "embedded:rotated"}, "algorithm": {"weighting": "counts", "distillation": {"steps": 4}}},
    "fedftg": {},
    "fedma": {},
    "fedavg": {"algorithm": {"calibrate": True, "calibration": {"statistics": {"min_samples": 2}}}},
    "fd": {},
    "fedmd": {"data": {"server": "embedded:rotated"}, "algorithm": {"subset": 20}},
}


def a_run(name, options, folder, resume=False, **changes):
    given = SYSTEMS[name]
    tree = {"algorithm": {"name": name, **given.get("algorithm", {})}, "data": given.get("data", {}), **changes}
    return run(tiny_config(privacy={"reports": options}, **tree), folder, resume=resume)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_with_reports_tells_what_its_clients_spent(name, tmp_path):
    done = a_run(name, {"noise": 2.0, "clip": 3.0}, tmp_path, rounds=1)
    entry = done.summary["privacy"]["reports"]
    assert set(entry["clients"]) == {"optdigits-0", "mnist-0"}
    spent = 0.0 if name == "fedma" else Ledger().gaussian(2.0).epsilon(1e-5)  # which counts with the last layer of a cycle
    assert entry["epsilon"] == pytest.approx(spent)
    assert "weights, losses" in entry["covers"]


def test_a_spent_budget_stops_the_client_and_not_the_run_also_after_a_resume(tmp_path):
    """A budget of one report each: of the second round's two clients, the one of the first round stops."""
    level = noise.report_noise(Reports(epsilon=4.0), 1)
    ids = ["optdigits-0", "optdigits-1", "mnist-0", "mnist-1"]

    def common(seed):
        return set(sample_clients(ids, 2, seed, 1)) & set(sample_clients(ids, 2, seed, 2))

    seed = next(seed for seed in range(100) if len(common(seed)) == 1)
    changes = {"seed": seed, "clients": {"per_domain": 2, "fraction": 0.5}}
    options = {"epsilon": 4.0, "noise": level}
    a_run("fd", options, tmp_path, rounds=1, **changes)
    done = a_run("fd", options, tmp_path, rounds=2, resume=True, **changes)
    (stopped,) = done.history[1]["dropped"]
    assert SPENT in stopped["reason"]
    assert {stopped["client"]} == common(seed)
    assert "its privacy budget is spent: 4 of epsilon 4" in stopped["reason"]
    entry = done.summary["privacy"]["reports"]
    assert len(entry["clients"]) == 3  # who has ever taken part
    assert entry["epsilon"] == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        ({}, {}, "set epsilon, or noise"),
        ({"noise": 1.0}, {"algorithm": {"name": "fedavg"}}, "fedavg sends none of them"),
        ({"noise": 1.0}, {"algorithm": {"name": "dafkd"}, "data": {"holdout": 0.2}}, "'discriminator' of dafkd"),
        ({"noise": 1.0, "clip": -1.0}, {}, "privacy.reports.clip"),
        (
            {"epsilon": 1.0},
            {"algorithm": {"name": "fedd3a", "source": {"kind": "mixture", "shares": {"data": 0.5, "statistics": 0.5}}}},
            "projection and statistics",
        ),
        ({"noise": 1.0}, {"algorithm": {"name": "fedd3a", "weighting_options": {"sample": 5}}}, "weighting_options.sample"),
        ({"noise": 1.0}, {"algorithm": {"name": "fedvirtual"}, "model": {"buffers": "local"}}, "model.buffers = 'local'"),
    ],
)
def test_bad_input_is_one_line(options, changes, words):
    tree = {"algorithm": {"name": "fedd3a"}, "data": {"server": "embedded:rotated"}, **changes}
    with pytest.raises(FedstillError, match=words) as found:
        create(Task(tiny_config(privacy={"reports": options}, **tree)))
    assert "\n" not in str(found.value)
