"""Eq. 5 of FedD3A: the recursion, the closed form and the definition are one matrix; compression and sampling."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstill.algorithm import Client
from fedstill.core.message import Message
from fedstill.local.reports.projection import (
    Projection,
    batch_means,
    compress,
    definition,
    expand,
    project,
    projection_matrix,
    projection_report,
    scaled_alpha,
    subspace,
)
from fedstill.run.configuration import configuration
from fedstill.task import Task

shapes = st.tuples(st.integers(1, 12), st.integers(1, 10), st.integers(0, 10_000))
alphas = st.floats(0.01, 10.0)


def random_rows(shape: tuple[int, int, int]) -> torch.Tensor:
    n, d, seed = shape
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(shapes, alphas)
@settings(max_examples=60, deadline=None)
def test_recursion_closed_form_and_definition_agree(shape, alpha):
    z = random_rows(shape)
    wanted = definition(z, alpha)
    for method in ("closed", "iterative"):
        torch.testing.assert_close(projection_matrix(z, alpha, method=method), wanted, atol=1e-5, rtol=0)


@given(shapes, alphas)
@settings(max_examples=30, deadline=None)
def test_the_printed_form_differs_by_alpha_on_p_hat(shape, alpha):
    z = random_rows(shape)
    eye = torch.eye(z.shape[1], dtype=z.dtype)
    p_hat = torch.linalg.inv(alpha * eye + z.T @ z)
    for method in ("closed", "iterative"):
        literal = projection_matrix(z, alpha, method=method, literal=True)
        torch.testing.assert_close(literal, eye - p_hat, atol=1e-5, rtol=1e-6)


def test_the_printed_form_is_right_only_at_alpha_one():
    z = random_rows((3, 4, 0))
    torch.testing.assert_close(projection_matrix(z, 1.0, literal=True), definition(z, 1.0))
    # one direction outside the subspace: 1 - 1/alpha = -9, where a projection has 0
    assert torch.linalg.eigvalsh(projection_matrix(z, 0.1, literal=True)).min() == pytest.approx(-9)
    assert torch.linalg.eigvalsh(projection_matrix(z, 0.1)).min() == pytest.approx(0, abs=1e-9)


@given(shapes, alphas)
@settings(max_examples=30, deadline=None)
def test_a_projection_shrinks_and_is_symmetric(shape, alpha):
    p = projection_matrix(random_rows(shape), alpha)
    values = torch.linalg.eigvalsh(p)
    torch.testing.assert_close(p, p.T)
    assert values.min() > -1e-9
    assert values.max() < 1


def test_a_small_alpha_gives_the_exact_projector():
    z = random_rows((2, 5, 1))
    p = projection_matrix(z, 1e-9)
    torch.testing.assert_close(z @ p, z, atol=1e-6, rtol=0)  # inside: unchanged
    outside = torch.linalg.svd(z).Vh[2:]
    assert (outside @ p).abs().max() < 1e-6


def test_batch_means_are_the_rows_of_eq_5():
    features = torch.arange(10.0).reshape(5, 2)
    assert batch_means(features, 2).tolist() == [[1.0, 2.0], [5.0, 6.0], [8.0, 9.0]]
    assert batch_means(features, 1) is features


def test_alpha_follows_the_scale_of_the_features():
    z = random_rows((40, 6, 2))
    options = Projection(alpha=0.1, batch_size=4)
    one, other = subspace(z, options), subspace(100 * z, options)
    torch.testing.assert_close(one["matrix"], other["matrix"])
    plain = options.model_copy(update={"relative": False})
    assert not torch.allclose(subspace(z, plain)["matrix"], subspace(100 * z, plain)["matrix"], atol=1e-2)
    assert scaled_alpha(torch.zeros(3, 2), 0.1) == 0.1


def test_features_of_zeros_span_nothing():
    assert subspace(torch.zeros(8, 3), Projection())["matrix"].abs().max() == 0


@given(shapes, alphas)
@settings(max_examples=30, deadline=None)
def test_full_rank_compression_changes_nothing(shape, alpha):
    z = random_rows(shape)
    p = projection_matrix(z, alpha)
    rank = min(z.shape)  # what there is to keep
    sent = compress(p, rank)
    torch.testing.assert_close(expand(sent), p, atol=1e-8, rtol=0)
    u = random_rows((3, z.shape[1], 7))
    torch.testing.assert_close(project(u, sent), u @ p, atol=1e-8, rtol=0)
    torch.testing.assert_close(project(u, compress(p, "full")), u @ p)


def test_compression_keeps_the_largest_and_drops_the_rest():
    p = torch.diag(torch.tensor([0.5, 0.9, 0.1, 0.5]))
    torch.testing.assert_close(expand(compress(p, 1)), torch.diag(torch.tensor([0.0, 0.9, 0.0, 0.0])))
    assert compress(p, 0.9)["values"].shape == (3,)  # .9 + .5 = 70%, with another .5 95%
    assert compress(p, 0.7)["values"].shape == (2,)
    assert compress(p, 99).keys() == compress(p, 1.0).keys() == {"matrix"}  # four vectors and values are more than the matrix
    assert compress(torch.zeros(2, 2), 0.5)["values"].shape == (1,)


def test_the_error_of_compression_is_the_first_dropped_eigenvalue():
    z = random_rows((6, 8, 3))
    p = projection_matrix(z, 1.0)
    values = torch.linalg.eigvalsh(p).flip(0)
    gap = torch.linalg.matrix_norm(expand(compress(p, 3)) - p, 2)
    assert gap == pytest.approx(float(values[3]))


def test_rank_is_full_a_number_or_a_share():
    assert Projection(rank=16).rank == 16
    assert Projection(rank=0.95).rank == 0.95
    for wrong in (0, 1.5, "half"):
        with pytest.raises(ValidationError):
            Projection(rank=wrong)


@pytest.fixture(scope="module")
def task() -> Task:
    return Task(configuration("demo", ["data.limit=60", "data.test_limit=10"]))


def report_of(task: Task, **options) -> dict[str, torch.Tensor]:
    client = Client.of(task, "mnist-0", 1)
    message = Message.of(model=task.networks.initial(client.prototype))
    return projection_report(message, client, options)


def test_the_report_is_eq_5_on_the_received_backbone(task):
    sent = report_of(task, batch_size=1, alpha=0.5, relative=False)["matrix"]
    network = task.networks.load("cnn-small", task.networks.initial("cnn-small")).eval()
    with torch.no_grad():
        z = network.features(network.normalise(task.data_of("mnist-0").x)).double()
    torch.testing.assert_close(sent, definition(z, 0.5).float(), atol=1e-4, rtol=1e-3)


def test_the_report_is_the_same_when_asked_again_and_smaller_when_compressed(task):
    assert torch.equal(report_of(task)["matrix"], report_of(task)["matrix"])
    assert {k: tuple(t.shape) for k, t in report_of(task, rank=4).items()} == {"vectors": (64, 4), "values": (4,)}


def test_features_may_be_extracted_on_a_sample(task):
    sampled = report_of(task, sample=20, batch_size=1)["matrix"]
    assert torch.linalg.matrix_rank(sampled, tol=1e-5) <= 20
