"""FedD3A's report: the subspace that a client's features span, as a projection matrix (Su, Li and Xue, section 3, Eq. 5).

With the features' batch means as the rows of ``Z``, the matrix is ``P = Z' (Z Z' + alpha I)^-1 Z``: a vector inside the subspace
stays nearly as it is, one outside it shrinks. Nothing but ``P`` leaves the client.

The paper obtains ``P`` from the recursion ``P^_0 = I / alpha``, Eq. 5, as ``I - P^``. The recursion ends at
``P^ = (alpha I + Z'Z)^-1``, and it is ``I - alpha P^`` that equals the definition: the two agree at ``alpha = 1`` only, and below
it the former has large negative eigenvalues. So ``I - alpha P^`` is what we compute; ``literal`` gives the form as printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithm import Client
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State
from fedstill.core.options import Part, Positive
from fedstill.local.reports.contract import report
from fedstill.local.reports.moments import clipped
from fedstill.local.reports.noise import noised, report_noise, symmetric
from fedstill.models.predict import apply

__all__ = [
    "Projection",
    "batch_means",
    "compress",
    "definition",
    "expand",
    "fault",
    "private_subspace",
    "project",
    "projection_matrix",
    "scaled_alpha",
    "subspace",
]


class Projection(Part):
    """How the matrix is made and sent, and how its scores become weights (``weighting_options``)."""

    alpha: Annotated[float, Field(gt=0)] = 0.01
    """Regularisation of the projection matrix. The paper gives no value; docs/fedd3a.md has the measurement."""

    relative: bool = True
    """Multiply ``alpha`` by the mean squared norm of the features, so that it has the same effect for every backbone."""

    method: Literal["closed", "iterative"] = "closed"
    """One factorisation, or Eq. 5 step by step; the matrix is the same."""

    literal: bool = False
    """Use I - P^ as printed instead of I - alpha P^, which is what the definition implies (docs/fedd3a.md)."""

    batch_size: Positive = 32
    """Samples in each mean feature of Eq. 5; 1 uses every sample's own feature."""

    sample: Positive | None = None
    """Extract features of at most this many of the client's samples, drawn again each round."""

    rank: Literal["full"] | Annotated[int, Field(gt=0, strict=True)] | Annotated[float, Field(gt=0, le=1)] = "full"
    """What is sent of the matrix: all of it, this many eigenvectors (an integer), or as many as keep this share of the trace (a
    fraction)."""

    unbiased: bool = False
    """Divide the variance of Eq. 6 by m - 1 instead of m."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the softmax in Eq. 6; below 1 it sharpens."""


def batch_means(features: Tensor, batch_size: int) -> Tensor:
    """The mean feature of each batch (the ``z-bar`` of Eq. 5), (batches, d); the last batch may be smaller.

    >>> batch_means(torch.tensor([[0.0], [2.0], [5.0]]), 2).tolist()
    [[1.0], [5.0]]
    """
    if batch_size == 1:
        return features
    return torch.stack([part.mean(0) for part in features.split(batch_size)])


def scaled_alpha(features: Tensor, alpha: float, relative: bool = True) -> float:
    """``alpha``, or ``alpha`` times the mean squared norm of the features, so that it has the same effect for every backbone.

    >>> scaled_alpha(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 0.1)
    1.25
    """
    norm = float(features.square().sum(1).mean()) if relative else 1.0
    return alpha * norm if norm > 0 else alpha  # all features zero: any alpha gives P = 0


def definition(z: Tensor, alpha: float) -> Tensor:
    """``Z' (Z Z' + alpha I)^-1 Z`` as the paper writes it.

    >>> definition(torch.tensor([[1.0, 0.0]]), 1.0).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    gram = z @ z.T + alpha * torch.eye(len(z), dtype=z.dtype, device=z.device)
    inverse: Tensor = torch.linalg.inv(gram)
    return z.T @ inverse @ z


def iterate(z: Tensor, alpha: float) -> Tensor:
    """Eq. 5: ``P^``, one rank-one update for each row of ``z``."""
    p = torch.eye(z.shape[1], dtype=z.dtype, device=z.device) / alpha  # P^_0 = I / alpha
    for mean in z:
        pz = p @ mean
        p = p.addr(pz, pz, alpha=-1 / (1 + float(mean @ pz)))
    return p


def projection_matrix(
    z: Tensor, alpha: float, *, method: Literal["closed", "iterative"] = "closed", literal: bool = False
) -> Tensor:
    """``P`` of the subspace that the rows of ``z`` span.

    ``closed`` costs one Cholesky factorisation, of whichever of ``ZZ' + alpha I`` and ``Z'Z + alpha I`` is smaller.

    >>> z = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> projection_matrix(z, 1.0).diagonal()
    tensor([0.5000, 0.8000])
    >>> projection_matrix(z, 0.5, method="iterative", literal=True).diagonal()  # 1 - 1/1.5, 1 - 1/4.5
    tensor([0.3333, 0.7778])
    """
    n, d = z.shape
    eye = torch.eye(d, dtype=z.dtype, device=z.device)
    if method == "iterative":
        p_hat = iterate(z, alpha)
        return eye - p_hat if literal else eye - alpha * p_hat
    if n < d and not literal:
        lower = torch.linalg.cholesky(z @ z.T + alpha * torch.eye(n, dtype=z.dtype, device=z.device))
        half: Tensor = torch.linalg.solve_triangular(lower, z, upper=False)
        return half.T @ half
    p_hat = torch.cholesky_inverse(torch.linalg.cholesky(z.T @ z + alpha * eye))
    return eye - p_hat if literal else eye - alpha * p_hat


def compress(p: Tensor, rank: Literal["full"] | int | float) -> State:
    """The matrix as it is sent: whole, or by its eigenvectors of the largest eigenvalues (by absolute value).

    ``rank`` is ``"full"``, a number of eigenvectors, or as a float the share of the trace of ``|P|`` to be kept. Where these
    would take more room than the matrix, it is sent itself.

    >>> {name: tuple(t.shape) for name, t in compress(torch.diag(torch.tensor([0.9, 0.1, 0.0])), 0.9).items()}
    {'vectors': (3, 1), 'values': (1,)}
    >>> list(compress(torch.eye(3), 3))
    ['matrix']
    """
    if rank == "full":
        return {"matrix": p}
    values, vectors = torch.linalg.eigh(p)
    order = values.abs().argsort(descending=True)
    values, vectors = values[order], vectors[:, order]
    if isinstance(rank, float):
        kept_so_far = values.abs().cumsum(0)
        rank = int((kept_so_far < (rank - 1e-6) * kept_so_far[-1]).sum()) + 1
    kept = min(rank, len(values))
    if kept * (len(values) + 1) >= len(values) ** 2:
        return {"matrix": p}
    return {"vectors": vectors[:, :kept].contiguous(), "values": values[:kept].contiguous()}


def expand(sent: Mapping[str, Tensor]) -> Tensor:
    """The matrix that was sent, whole again.

    >>> p = torch.diag(torch.tensor([0.9, 0.1]))
    >>> torch.allclose(expand(compress(p, "full")), p)
    True
    """
    if "matrix" in sent:
        return sent["matrix"]
    return (sent["vectors"] * sent["values"]) @ sent["vectors"].T


def project(z: Tensor, sent: Mapping[str, Tensor]) -> Tensor:
    """``P z`` for every row of ``z``; a compressed matrix is never expanded."""
    if "matrix" in sent:
        return z @ sent["matrix"]  # P is symmetric
    return ((z @ sent["vectors"]) * sent["values"]) @ sent["vectors"].T


def fault(sent: Mapping[str, Tensor], width: int) -> str | None:
    """Why what was sent is not a projection for features of this width, or None.

    >>> fault({"matrix": torch.zeros(3, 3)}, 4)
    "wrong shape: 'projection/matrix' is (3, 3), expected (4, 4)"
    """
    wanted: dict[str, tuple[int, ...]]
    if sent.keys() == {"matrix"}:
        wanted = {"matrix": (width, width)}
    elif sent.keys() == {"vectors", "values"}:
        rank = sent["values"].numel()
        wanted = {"vectors": (width, rank), "values": (rank,)}
    else:
        return f"not a projection: {', '.join(sorted(sent))}"
    for name, shape in wanted.items():
        if tuple(sent[name].shape) != shape:
            return f"wrong shape: 'projection/{name}' is {tuple(sent[name].shape)}, expected {shape}"
    return None


def subspace(features: Tensor, options: Projection) -> State:
    """What is sent for features (n, d) in any order: batch means, Eq. 5 and compression, in float64, sent as float32."""
    z = features.double()
    alpha = scaled_alpha(z, options.alpha, options.relative)
    p = projection_matrix(batch_means(z, options.batch_size), alpha, method=options.method, literal=options.literal)
    return {name: tensor.float() for name, tensor in compress(p, options.rank).items()}


def private_subspace(seconds: Tensor, samples: int, deviation: float, options: Projection) -> State:
    """What is sent for a noised matrix of second moments ``S = sum z z' + E`` of ``samples`` features, where E is symmetric with
    entries of this deviation. It uses nothing else of the features, and S has each sample's own feature instead of batch means:
    one sample changes S by at most the square of its norm, but it is in a mean with others, and moves them to other batches.

    ``S / batch_size`` has the scale of the paper's ``Z'Z``, since as many means as ``samples / batch_size`` are summed there. The
    eigenvalues of E end near ``2 deviation sqrt(d)`` (Wigner): directions below this are noise and are left out.

    >>> private_subspace(torch.diag(torch.tensor([90.0, 1.0])), 9, 1.0, Projection(relative=False, alpha=3.0, batch_size=10))
    {'matrix': tensor([[0.7500, 0.0000],
            [0.0000, 0.0000]])}
    """
    values, vectors = torch.linalg.eigh(seconds.double())
    values = torch.where(values > 2 * deviation * len(values) ** 0.5, values, 0.0)
    power = float(values.sum()) / samples  # of what is left, the mean squared norm
    alpha = options.alpha * power if options.relative and power > 0 else options.alpha
    kept = values / options.batch_size
    sizes = 1 - 1 / (alpha + kept) if options.literal else kept / (kept + alpha)  # P^ = (alpha I + Z'Z)^-1, as above
    p = (vectors * sizes) @ vectors.T
    return {name: tensor.float() for name, tensor in compress(p, options.rank).items()}


@report("projection")
def projection_report(message: Message, client: Client, options: Mapping[str, Any]) -> State:
    """The subspace of the client's features under the backbone that it was sent (step 2, before local training)."""
    chosen = Projection.model_validate(dict(options))
    prototype = str(message.values.get("prototype", client.prototype))
    network = client.task.networks.load(prototype, message.group("model"))
    order = torch.randperm(len(client.data), generator=client.rng("projection"))  # batches are drawn, as in training
    features = apply(network.features, network, client.data.take(order[: chosen.sample]))
    if features.ndim != 2:
        raise FedstillError(f"model '{prototype}' has features of shape {tuple(features.shape[1:])}; a projection needs vectors")
    private = client.task.config.privacy.reports
    if private is None:
        return subspace(features, chosen)
    z = clipped(features.double().cpu(), private.clip)
    bound = private.clip**2  # of z z'
    seconds = symmetric(*noised(client, "projection", (z.T @ z, bound)))
    return private_subspace(seconds, len(z), bound * report_noise(private, client.task.config.rounds), chosen)
