"""Judges compare a few candidate models; their verdicts are combined into one score per candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.core.message import Message, State
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.divergence import divergence
from fedstill.models.network import Network
from fedstill.models.predict import predict_logits

__all__ = [
    "AVERAGE",
    "OTHER",
    "PAST",
    "RIGHT",
    "STUDENT",
    "Verdict",
    "agreements",
    "fault",
    "judged",
    "right_answers",
    "verdict_of",
]

AVERAGE, STUDENT = "average", "student"  # the groups of a message to a judge: the ends of the line
PAST = "past"  # the group with the mean of the models of earlier rounds
OTHER = "other-"  # and with a number, models that are not on the line: early states of the student, another average
RIGHT = "right"  # the group of its reply that holds the counts


@dataclass(frozen=True)
class Verdict:
    """How many of ``samples`` each candidate classified correctly, and the domain of the samples."""

    domain: str
    right: Tensor  # (candidates,), whole numbers
    samples: int

    @property
    def accuracy(self) -> Tensor:
        """Each candidate's accuracy."""
        return self.right.double() / self.samples


def right_answers(network: Network, states: Iterable[State], samples: Samples) -> Tensor:
    """How many of the labelled samples each candidate classifies correctly."""
    assert samples.y is not None, "a judge's data has labels"
    found = []
    for state in states:
        network.load_state_dict(state)
        said = predict_logits(network, samples).argmax(1).cpu()
        found.append(int((said == samples.y.cpu()).sum()))
    return torch.tensor(found)


def agreements(
    network: Network,
    states: Iterable[State],
    samples: Samples,
    targets: Tensor,
    view: Callable[[Network], Network] | None = None,
) -> list[float]:
    """How well each candidate agrees with the ensemble on samples that the student did not learn from: ``exp(-KL)``, which is 1
    for equal predictions. It cannot measure what the pool does not show. ``view`` is the part of the network that takes the
    samples, if they are features."""
    found, seen = [], view(network) if view is not None else network
    for state in states:
        network.load_state_dict(state)
        found.append(math.exp(-float(divergence(predict_logits(seen, samples), targets))))
    return found


def fault(message: Message, candidates: int, held: int) -> str | None:
    """Why a client's verdict cannot be used, or None. ``held`` is the largest number of samples that it can have held out.

    >>> fault(Message.of(right={"counts": torch.tensor([3, 9])}, samples=8), 2, 10)
    'it has more right answers than samples'
    """
    counts, samples = message.group(RIGHT).get("counts"), message.values.get("samples")
    if not isinstance(samples, int) or isinstance(samples, bool) or samples <= 0:
        return "it held out no samples"
    if samples > held:
        return f"it claims {samples} held-out samples, but can have at most {held}"
    if counts is None or counts.shape != (candidates,) or counts.is_floating_point() or bool((counts < 0).any()):
        return f"its verdict is not {candidates} counts"
    if bool((counts > samples).any()):
        return "it has more right answers than samples"
    return None


def verdict_of(message: Message, domain: str) -> Verdict:
    """A client's verdict, once :func:`fault` has found nothing."""
    return Verdict(domain, message.group(RIGHT)["counts"].long(), int(message.values["samples"]))


def judged(verdicts: Sequence[Verdict], trim: float) -> list[float]:
    """One score per candidate: the mean accuracy over the domains, weighted within each domain by the number of samples.

    False verdicts do harm through the *difference* between candidates. So, for every candidate, the clients are sorted by its
    gain over the first candidate and the share ``trim`` is cut at either end. The score is the first candidate's plus the mean
    of the gains left.

    >>> honest = [Verdict("a", torch.tensor([50, 60]), 100) for _ in range(4)]
    >>> [round(s, 3) for s in judged([*honest, Verdict("a", torch.tensor([100, 0]), 100)], 0.2)]
    [0.5, 0.6]
    """
    sizes = {verdict.domain: sum(v.samples for v in verdicts if v.domain == verdict.domain) for verdict in verdicts}
    weight = torch.tensor([verdict.samples / sizes[verdict.domain] for verdict in verdicts], dtype=torch.float64)
    accuracy = torch.stack([verdict.accuracy for verdict in verdicts])  # (clients, candidates)
    gain = accuracy - accuracy[:, :1]
    first = _trimmed(accuracy[:, 0], weight, trim)
    return [first + _trimmed(gain[:, c], weight, trim) for c in range(accuracy.shape[1])]


def _trimmed(values: Tensor, weight: Tensor, trim: float) -> float:
    cut = int(trim * len(values) + 1e-9)
    kept = values.argsort(stable=True)[cut : len(values) - cut]
    return float((values[kept] * weight[kept]).sum() / weight[kept].sum())
