"""FedD3A's weights: how close a sample's feature is to each client's subspace (Su, Li and Xue, Eq. 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedstill.algorithm import Reply
from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.weightings.contract import COMMON, Ready, WeightingContext, weighting
from fedstill.local.reports.projection import Projection, fault, project
from fedstill.models.network import Network
from fedstill.task.predictions import predict_later

__all__ = ["OneHot", "Soft", "one_hot_weights", "proximity", "soft_weights"]

STACK = 16  # matrices multiplied at once; more clients take several passes
ROWS = 4096  # samples at once: one vector per client for the whole pool would not fit in memory


def proximity(z: Tensor, matrices: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """``r`` of Eq. 6: ``cos(z, P_k z)`` for every sample and client, (n, clients); 0 if either vector is zero.

    >>> x_axis, y_axis = ({"matrix": torch.diag(torch.tensor(d))} for d in ([1.0, 0.0], [0.0, 1.0]))
    >>> proximity(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), [x_axis, y_axis])
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    columns = []
    for first in range(0, len(matrices), STACK):
        group = [{name: t.to(z.device, z.dtype) for name, t in sent.items()} for sent in matrices[first : first + STACK]]
        joined = torch.cat([sent["matrix"] for sent in group], 1) if all("matrix" in sent for sent in group) else None
        pieces = (z,) if torch.compiler.is_exporting() else z.split(ROWS)
        columns.append(torch.cat([_cosines(rows, group, joined) for rows in pieces]))
    return torch.cat(columns, 1)


def _cosines(z: Tensor, group: Sequence[Mapping[str, Tensor]], joined: Tensor | None) -> Tensor:
    if joined is not None:
        pz = (z @ joined).view(-1, len(group), z.shape[1])  # every client of the group in one product: (n, d) @ (d, k d)
    else:
        pz = torch.stack([project(z, sent) for sent in group], 1)
    across = torch.einsum("nd,nkd->nk", z, pz)
    lengths = z.norm(dim=1)[:, None] * pz.norm(dim=2)
    return torch.where(lengths > 0, across / lengths.where(lengths > 0, 1), 0)


def soft_weights(r: Tensor, *, unbiased: bool = False, temperature: float = 1.0) -> Tensor:
    """Eq. 6: softmax of the scores standardised over the clients; equal scores give equal weights.

    >>> [f"{w:.4f}" for w in soft_weights(torch.tensor([[0.99, 0.98, 0.97]]))[0]]
    ['0.7245', '0.2129', '0.0626']
    """
    if r.shape[1] == 1:
        return torch.ones_like(r)
    spread = r.var(dim=1, keepdim=True, unbiased=unbiased).sqrt()
    # rounding errors alone must not be scaled up to unit variance
    differ = spread > 10 * torch.finfo(r.dtype).eps * r.abs().amax(dim=1, keepdim=True)
    standard = torch.where(differ, (r - r.mean(dim=1, keepdim=True)) / spread.where(differ, 1), 0)
    return (standard / temperature).softmax(1)


def one_hot_weights(r: Tensor) -> Tensor:
    """All weight on the nearest client (FedD3A-onehot, Table 1), shared if several are equally near.

    >>> one_hot_weights(torch.tensor([[0.1, 0.9], [0.5, 0.5]])).tolist()
    [[0.0, 1.0], [0.5, 0.5]]
    """
    nearest = (r == r.amax(dim=1, keepdim=True)).to(r.dtype)
    return nearest / nearest.sum(1, keepdim=True)


class _Projected(Ready):
    """Scores under the backbones that the clients made their matrices with: the server's models before this round's merge."""

    def __init__(self, context: WeightingContext):
        self.task, self.server, self.replies, self.reference = context.task, context.server, context.replies, context.reference
        self.options = Projection.model_validate(dict(context.options))

    def scores(self, samples: Samples) -> Tensor:
        """``r`` (n, clients); clients with the same backbone share one pass through it."""
        if self.reference is None and (self.task is None or self.server is None):
            raise FedstillError("projection weights need the model that the clients extracted their features with")
        keys = [self._backbone(reply) for reply in self.replies]
        columns: list[Tensor] = []
        order: list[int] = []
        for key in dict.fromkeys(keys):
            network = self._network(key)
            z = predict_later(self.task, network, samples, what="features")()
            mine = [k for k, other in enumerate(keys) if other == key]
            sent = [self.replies[k].part("projection") for k in mine]
            for k, matrix in zip(mine, sent, strict=True):
                wrong = fault(matrix, z.shape[1])
                if wrong is not None:
                    raise FedstillError(f"{self.replies[k].client}: the projection does not fit the backbone's features: {wrong}")
            columns.append(proximity(z, sent))
            order += mine
        assert columns, "an ensemble needs a teacher"
        return torch.cat(columns, 1)[:, torch.tensor(order).argsort()]

    def _backbone(self, reply: Reply) -> str:
        """Which backbone made a client's features."""
        if isinstance(self.reference, Mapping):
            return reply.prototype if reply.prototype in self.reference else COMMON
        if self.reference is not None:
            return COMMON
        assert self.task is not None
        assert self.server is not None
        return reply.prototype if reply.prototype in self.server.models else self.task.networks.student

    def _network(self, key: str) -> Network:
        if isinstance(self.reference, Mapping):
            return self.reference[key]
        if self.reference is not None:
            return self.reference
        assert self.task is not None
        assert self.server is not None
        return self.task.networks.load(key, self.server.models[key], role="backbone")


@weighting("projection", report="projection", options=Projection, fault=fault, summary="the same as soft")
@weighting(
    "soft",
    report="projection",
    options=Projection,
    fault=fault,
    summary="by the sample's nearness to each client's subspace (FedD3A Eq. 6)",
)
class Soft(_Projected):
    """FedD3A-soft."""

    def weights(self, samples: Samples) -> Tensor:
        """Eq. 6."""
        return soft_weights(self.scores(samples), unbiased=self.options.unbiased, temperature=self.options.temperature)


@weighting(
    "onehot",
    report="projection",
    options=Projection,
    fault=fault,
    summary="only the client whose subspace is nearest (FedD3A-onehot)",
)
class OneHot(_Projected):
    """FedD3A-onehot."""

    def weights(self, samples: Samples) -> Tensor:
        """One teacher per sample."""
        return one_hot_weights(self.scores(samples))
