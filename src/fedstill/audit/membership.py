"""Membership inference: can an attacker tell the samples that a model was trained on from others?

* The loss attack (Yeom et al., CSF 2018): a sample with a small loss is called a member.
* A likelihood-ratio attack as LiRA (Carlini et al., S&P 2022): a few shadow models are trained on random halves of the samples,
  and the model's confidence in a sample is compared with those of shadows that saw it and of shadows that did not.

Members and others are matched class by class, so that a model that is better at the site's classes does not look like one that
remembers the site's samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedstill.core.errors import FedstillError
from fedstill.core.streams import numpy_stream, stream
from fedstill.data.samples import Samples
from fedstill.models.network import Network
from fedstill.models.predict import predict_logits
from fedstill.training.fit import fit
from fedstill.training.options import Local

__all__ = ["Attack", "lira_attack", "lira_scores", "loss_attack", "loss_scores", "matched", "scaled_confidence"]

LEAST = 10  # members and others, below which a figure says nothing


@dataclass(frozen=True)
class Attack:
    """The outcome of an attack: its scores of members and of others, higher for supposed members."""

    name: str
    members: Tensor
    others: Tensor

    @property
    def auc(self) -> float:
        """The probability that a member has a higher score than another sample; ties count one half.

        >>> Attack("loss", torch.tensor([2.0, 1.0]), torch.tensor([0.0, 1.0])).auc
        0.875
        """
        from sklearn.metrics import roc_auc_score  # slow

        return float(roc_auc_score(self._truth, self._scores))

    @property
    def error(self) -> float:
        """The standard error of the AUC (Hanley and McNeil, 1982).

        >>> round(Attack("loss", torch.arange(50.0), torch.arange(50.0)).error, 4)
        0.058
        """
        a, m, n = self.auc, len(self.members), len(self.others)
        q1, q2 = a / (2 - a), 2 * a * a / (1 + a)
        return math.sqrt(max(0.0, a * (1 - a) + (m - 1) * (q1 - a * a) + (n - 1) * (q2 - a * a)) / (m * n))

    @property
    def recognises(self) -> bool:
        """Whether members are recognised better than by chance, beyond two standard errors."""
        return self.auc - 2 * self.error > 0.5

    def found_at(self, false_rate: float) -> float:
        """The share of members found while at most ``false_rate`` of the others are called members.

        >>> Attack("loss", torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0])).found_at(0.1)
        0.5
        """
        rates, found = self.curve()
        return float(found[rates <= false_rate].max())

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """The rates of false and of true members at every threshold."""
        from sklearn.metrics import roc_curve  # slow

        false, true, _ = roc_curve(self._truth, self._scores)
        return np.asarray(false), np.asarray(true)

    @property
    def _truth(self) -> np.ndarray:
        return np.concatenate([np.ones(len(self.members)), np.zeros(len(self.others))])

    @property
    def _scores(self) -> np.ndarray:
        return np.asarray(torch.cat([self.members, self.others]).double().numpy())


def matched(members: Samples, others: Samples, most: int, seed: int, name: str = "") -> tuple[Samples, Samples]:
    """At most ``most`` samples of each side, as many members as others of every class.

    >>> one = Samples(torch.zeros(30, 1), torch.tensor([0] * 20 + [1] * 10))
    >>> two = Samples(torch.zeros(30, 1), torch.tensor([0] * 10 + [1] * 20))
    >>> [side.counts(2).tolist() for side in matched(one, two, 100, 0)]
    [[10, 10], [10, 10]]
    """
    if members.y is None or others.y is None:
        raise FedstillError("membership is tested with labelled samples: put images in one folder per class")
    rng = numpy_stream(seed, "audit", "matched", name)
    mine, theirs = members.y.numpy(), others.y.numpy()
    chosen: list[tuple[int, int]] = []
    for label in np.union1d(mine, theirs):
        a, b = (rng.permutation(np.flatnonzero(side == label)) for side in (mine, theirs))
        chosen += list(zip(a.tolist(), b.tolist(), strict=False))
    if len(chosen) < LEAST:
        raise FedstillError(
            f"{name or 'the data'}: {len(chosen)} members and others share their classes; at least {LEAST} are needed"
        )
    pairs = np.array(chosen)[rng.permutation(len(chosen))[:most]]
    return members.take(pairs[:, 0]), others.take(pairs[:, 1])


def loss_scores(network: Network, samples: Samples) -> Tensor:
    """The negative cross-entropy of every sample."""
    assert samples.y is not None
    return -F.cross_entropy(predict_logits(network, samples).cpu().double(), samples.y.cpu(), reduction="none")


def loss_attack(network: Network, members: Samples, others: Samples) -> Attack:
    """The loss attack on ``network``."""
    return Attack("loss", loss_scores(network, members), loss_scores(network, others))


def scaled_confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """LiRA's statistic ``log(p / (1 - p))`` of the true class's probability, computed from logits without overflow.

    >>> scaled_confidence(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])).tolist()
    [0.0, -2.0]
    """
    logits = logits.double()
    true = logits.gather(1, labels[:, None])[:, 0]
    rest = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return true - rest


def lira_scores(target: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """The log-likelihood ratio ``log N(c; mu_in, s_in^2) - log N(c; mu_out, s_out^2)`` of every sample (Carlini et al., Algorithm
    1). ``target`` (n,) and ``shadows`` (shadows, n) are scaled confidences; ``inside`` says which shadows saw which sample. With
    few shadows, the variances are pooled over the samples, as section VI C of the paper advises.

    >>> inside = torch.tensor([[True, False], [False, True]])
    >>> shadows = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> [score > 0 for score in lira_scores(torch.tensor([4.0, 0.0]), shadows, inside).tolist()]
    [True, False]
    """
    seen, unseen = inside.double(), (~inside).double()
    log = []
    for part in (seen, unseen):
        count = part.sum(0)
        mean = (shadows * part).sum(0) / count
        # each sample's own mean takes one degree of freedom; if there is one shadow a side, the spread of all samples stands in
        free = float((count - 1).clamp(min=0).sum())
        spread = float((((shadows - mean) ** 2) * part).sum()) / free if free else float(mean.var(correction=0))
        variance = max(spread, 1e-4)
        log.append(-((target - mean) ** 2) / (2 * variance) - 0.5 * math.log(variance))
    return log[0] - log[1]


def lira_attack(
    network: Network,
    members: Samples,
    others: Samples,
    build: Callable[[int], Network],
    local: Local,
    *,
    shadows: int = 4,
    seed: int = 0,
    name: str = "",
    head_only: bool = False,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> Attack:
    """The likelihood-ratio attack with ``shadows`` shadow models, an even number: each pair divides the samples in half, so that
    every sample is in half of the shadows. ``build(seed)`` makes an untrained network."""
    if shadows < 2 or shadows % 2:
        raise FedstillError(f"shadow models come in pairs: 2, 4, 6, ... not {shadows}")
    assert members.y is not None
    assert others.y is not None
    both = Samples(torch.cat([members.x, others.x]), torch.cat([members.y, others.y]))
    assert both.y is not None
    rows, inside = [], torch.zeros(shadows, len(both), dtype=torch.bool)
    for number in range(shadows):
        if number % 2 == 0:
            half = torch.from_numpy(numpy_stream(seed, "audit", "halves", name, number).permutation(len(both)))
            inside[number, half[: len(half) // 2]] = True
            inside[number + 1] = ~inside[number]
        shadow = build(number)
        trained = list(shadow.head.parameters()) if head_only else None
        own = both.take(torch.nonzero(inside[number]).flatten())
        fit(shadow, own, local, rng=stream(seed, "audit", "shadow", name, number), parameters=trained)
        rows.append(scaled_confidence(predict_logits(shadow.eval(), both).cpu(), both.y))
        progress("shadow models", number + 1, shadows)
    scores = lira_scores(scaled_confidence(predict_logits(network, both).cpu(), both.y), torch.stack(rows), inside)
    return Attack("likelihood ratio", scores[: len(members)], scores[len(members) :])
