"""Terms of a client's objective besides cross-entropy; each is made once per round and called once per batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstill.core.message import State
from fedstill.models.network import Network
from fedstill.training.fit import Batch, DataFree, PerSample, Term

__all__ = ["contrastive_loss", "distil_from", "model_contrastive", "proximal"]


def proximal(anchor: State, mu: float) -> Term:
    """FedProx: ``mu/2 * ||w - w_global||^2`` over the parameters (not the buffers).

    >>> from fedstill.models import build
    >>> net = build("mlp", classes=2, shape=(1, 2, 2), hidden=[3], seed=0)
    >>> term = proximal({k: v.detach() + 1 for k, v in net.named_parameters()}, mu=2.0)
    >>> n = sum(p.numel() for p in net.parameters())
    >>> round(float(term(Batch(net, *[torch.empty(0)] * 4, 0, torch.Generator()))), 3) == float(n)
    True
    """

    def term(batch: Batch) -> Tensor:
        named = list(batch.network.named_parameters())
        gaps = torch._foreach_sub([p for _, p in named], [anchor[name].to(p.device) for name, p in named])
        return mu / 2 * torch.stack([gap.square().sum() for gap in gaps]).sum()

    return DataFree(term)


def contrastive_loss(z: Tensor, z_global: Tensor, z_previous: Sequence[Tensor], temperature: float) -> Tensor:
    """MOON's model-contrastive loss, also KDCL's Eq. 5: near the global model's features, away from the previous local ones.

    ``-log( exp(sim(z, z_glob)/t) / (exp(sim(z, z_glob)/t) + sum_prev exp(sim(z, z_prev)/t)) )``, mean over the batch.

    >>> z = torch.eye(2)
    >>> round(float(contrastive_loss(z, z, [z], 0.5)), 4)  # equal similarities: log 2
    0.6931
    """
    similarities = [F.cosine_similarity(z, other, dim=1) for other in (z_global, *z_previous)]
    logits = torch.stack(similarities, dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long, device=z.device))


def model_contrastive(global_network: Network, previous: Sequence[Network], mu: float, temperature: float) -> Term:
    """MOON's term; the networks are frozen and in eval mode (the caller loads their weights)."""
    frozen = [net.eval() for net in (global_network, *previous)]

    def term(batch: Batch) -> Tensor:
        with torch.no_grad():
            z_global, *z_previous = [net.features(batch.x) for net in frozen]
        return mu * contrastive_loss(batch.features, z_global, z_previous, temperature)

    return PerSample(term)


def distil_from(teacher: Network, weight: float = 1.0, temperature: float = 1.0) -> Term:
    """Learn from the global model as well: ``weight * T^2 * KL(teacher || local)`` (FedD3A's heterogeneous clients)."""
    teacher.eval()

    def term(batch: Batch) -> Tensor:
        with torch.no_grad():
            target = F.log_softmax(teacher(batch.x) / temperature, dim=1)
        student = F.log_softmax(batch.logits / temperature, dim=1)
        return weight * temperature**2 * F.kl_div(student, target, reduction="batchmean", log_target=True)

    return PerSample(term)
