"""Ensembles: teachers are streamed, one at a time, over the samples into one table of targets. This takes the memory of one
teacher, no matter how many there are. The table is computed once per round, and the student trains on it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.vote_norm import Predict
from fedstill.fusion.weightings import Ready, Scored, Voting, Weighting
from fedstill.models.network import Network
from fedstill.models.predict import BATCH, apply
from fedstill.task import Task
from fedstill.task.predictions import streamed

__all__ = ["Space", "SpooledLogits", "Table", "ensemble_table", "scored_table", "spooled_logits", "spread", "summed_space"]

Space = Literal["logits", "probabilities", "losses"]


@dataclass(frozen=True)
class Table:
    """The teachers' targets: probabilities (n, classes), the weight of each sample, and each teacher's weight."""

    targets: Tensor
    weights: Tensor  # (n, teachers)
    sample_weight: Tensor | None = None

    def take(self, index: Tensor) -> Table:
        """The rows at ``index``."""
        index = index.to(self.targets.device)
        counted = None if self.sample_weight is None else self.sample_weight[index]
        return Table(self.targets[index], self.weights[index], counted)

    def accuracy(self, labels: Tensor) -> float:
        """The ensemble's own accuracy, the student's ceiling."""
        return float((self.targets.argmax(1) == labels.to(self.targets.device)).double().mean())

    def confident(self, labels: Tensor) -> dict[str, float | None]:
        """The share of samples that teach anything, and the ensemble's accuracy on these.

        >>> table = Table(torch.eye(2)[[0, 1, 1]], torch.ones(3, 1), torch.tensor([1.0, 1.0, 0.0]))
        >>> table.confident(torch.tensor([0, 0, 1]))
        {'share': 0.6666666666666666, 'accuracy': 0.5}
        """
        right = (self.targets.argmax(1) == labels.to(self.targets.device)).double()
        counted = torch.ones_like(right) if self.sample_weight is None else (self.sample_weight > 0).double()
        return {
            "share": float(counted.mean()),
            "accuracy": float((right * counted).sum() / counted.sum()) if counted.any() else None,
        }


def ensemble_table(
    teachers: Sequence[Teacher],
    samples: Samples,
    weighting: Weighting,
    *,
    space: Space = "logits",
    temperature: float = 1.0,
    direction: Literal["forward", "reverse"] = "forward",
    batch_size: int = BATCH,
    progress: Callable[[int, int], None] = lambda done, of: None,
    task: Task | None = None,
    logits: Iterable[Tensor] | None = None,
) -> Table:
    """The teachers' table over ``samples``.

    * ``logits``: softmax of the weighted mean of logits (FedDF's AVGLOGITS);
    * ``probabilities``: the weighted mean of softmaxes (FedD3A Eq. 7, DaFKD Eq. 8);
    * ``losses``: the target whose divergence has the same gradient as the weighted mean of the divergences to each teacher.
      For KL(teacher || student) that is the mean of probabilities, for KL(student || teacher) their normalised geometric
      mean, which is the mean of logits: no separate pass is needed.

    If teachers know different classes (``Teacher.places``), each abstains on those it does not know: class ``c`` gets
    ``K / K_c`` times the weighted sum of probabilities, where ``K_c`` is the number of teachers that know it, and rows are
    normalised again. With equal weights that is the mean over the teachers that know the class.

    The workers of ``task``, if it has some, compute the predictions. ``logits``, one tensor per teacher, are used instead if
    they are known already and the weighting does not ask the networks.
    """
    space = summed_space(space, direction)
    known_by = _known_by(teachers)
    silent = known_by is not None and bool((known_by < len(teachers)).any())
    if silent and space == "logits" and not isinstance(weighting, Voting):
        raise FedstillError("teachers that know different classes can be combined by their probabilities, not by their logits")
    if isinstance(weighting, Voting):
        return _voted(teachers, samples, weighting, temperature, batch_size, progress, known_by, task)
    ready = weighting.weights(samples) if isinstance(weighting, Ready) else None
    total: Tensor | None = None
    columns: list[Tensor] = []
    if logits is None:
        logits = streamed(task, [teacher.load for teacher in teachers], samples, batch_size)
    predictions = iter(logits)
    for k, teacher in enumerate(teachers):
        if isinstance(weighting, Scored):
            outputs, score = _with_scores(teacher.load(), weighting, k, samples, batch_size)
        else:
            assert ready is not None
            outputs, score = next(predictions), ready[:, k]
        if space == "probabilities":
            outputs = (outputs / temperature).softmax(1)
        if teacher.places is not None and known_by is not None:
            outputs = spread(outputs, teacher.places, len(known_by), 0.0)
        score = score.to(outputs.device, outputs.dtype)
        total = outputs * score[:, None] if total is None else total.addcmul_(outputs, score[:, None])
        if ready is None:
            columns.append(score)
        progress(k + 1, len(teachers))
    assert total is not None, "an ensemble needs a teacher"
    # equal weights are a single number, whatever the number of samples and teachers
    weights = torch.stack(columns, 1) if ready is None else ready.to(total.device, total.dtype)
    if isinstance(weighting, Scored):
        table = scored_table(total, weights.sum(1, keepdim=True), weights, space=space, temperature=temperature)
    else:
        table = Table(total if space == "probabilities" else (total / temperature).softmax(1), weights)
    if silent and known_by is not None:
        targets = table.targets * (len(teachers) / known_by.to(total.device, total.dtype))
        return replace(table, targets=targets / targets.sum(1, keepdim=True))
    return table


def summed_space(space: Space, direction: str) -> Space:
    """The outputs to sum over the teachers: for ``losses``, probabilities or logits, depending on the divergence's direction."""
    if space != "losses":
        return space
    return "probabilities" if direction == "forward" else "logits"


def scored_table(total: Tensor, mass: Tensor, weights: Tensor, *, space: Space, temperature: float = 1.0) -> Table:
    """The table of sums over the teachers, normalised after the pass: ``sum_k s_k f_k / sum_k s_k``. ``total`` is (n, classes),
    ``mass`` the sum of scores (n, 1), ``weights`` the scores (n, teachers). A sample whose scores are all 0 teaches nothing.

    >>> table = scored_table(torch.tensor([[0.5, 1.0]]), torch.tensor([[1.5]]), torch.tensor([[0.5, 1.0]]), space="probabilities")
    >>> [round(p, 4) for p in table.targets[0].tolist()]
    [0.3333, 0.6667]
    """
    known = mass > 0
    if not bool(known.any()):
        raise FedstillError("every teacher's score is zero for every sample: try another weighting")
    sample_weight = None if bool(known.all()) else known[:, 0].to(total.dtype)
    total, weights = total / mass.where(known, 1), weights / mass.where(known, 1)
    if space == "probabilities":
        return Table(torch.where(known, total, 1 / total.shape[1]), weights, sample_weight)
    return Table((total / temperature).softmax(1), weights, sample_weight)


def spread(outputs: Tensor, places: Sequence[int], classes: int, silence: float) -> Tensor:
    """A teacher's outputs for its own classes, in the ensemble's order of classes; ``silence`` for all others.

    >>> spread(torch.tensor([[0.7, 0.3]]), (2, 0), 3, 0.0)
    tensor([[0.3000, 0.0000, 0.7000]])
    """
    if outputs.shape[1] != len(places):
        raise FedstillError(f"a teacher with {len(places)} classes has {outputs.shape[1]} outputs")
    return outputs.new_full((len(outputs), classes), silence).index_copy_(1, torch.tensor(places, device=outputs.device), outputs)


def _known_by(teachers: Sequence[Teacher]) -> Tensor | None:
    """How many teachers know each class; None if all know all, in the same order."""
    places = [teacher.places for teacher in teachers]
    if all(known is None for known in places):
        return None
    assert all(known is not None for known in places), "either all teachers say which classes they know, or none does"
    return torch.bincount(torch.tensor([place for known in places if known is not None for place in known]))


def _with_scores(network: Network, weighting: Scored, k: int, samples: Samples, batch_size: int) -> tuple[Tensor, Tensor]:
    def both(x: Tensor) -> Tensor:
        features = network.features(x)
        return torch.cat([network.head(features), weighting.score(k, network, x, features)[:, None]], 1)

    answers = apply(both, network, samples, batch_size)
    return answers[:, :-1], answers[:, -1]


@dataclass(frozen=True)
class SpooledLogits:
    """All teachers' logits on all samples, spooled to a file: (teachers, n, classes)."""

    spool: np.memmap
    device: torch.device

    def slices(self, size: int = BATCH) -> Iterator[Tensor]:
        """The logits (teachers, b, classes) of ``size`` samples at a time."""
        for i in range(0, self.spool.shape[1], size):
            yield torch.from_numpy(np.array(self.spool[:, i : i + size])).to(self.device)


@contextlib.contextmanager
def spooled_logits(
    teachers: Sequence[Teacher],
    samples: Samples,
    *,
    predict: Predict | None = None,
    batch_size: int = BATCH,
    progress: Callable[[int, int], None] = lambda done, of: None,
    known_by: Tensor | None = None,
    task: Task | None = None,
) -> Iterator[SpooledLogits]:
    """All teachers' logits on all samples, for votes that need them at once, with one teacher in memory at a time.

    ``predict(k, network, samples)`` gives teacher ``k``'s logits if they are not simply its predictions; ``known_by``
    has one entry per class if teachers know only some of them.
    """
    with tempfile.TemporaryFile() as file:
        spool: np.memmap | None = None
        device = torch.device("cpu")
        predictions = streamed(task, [teacher.load for teacher in teachers], samples, batch_size)
        for k, teacher in enumerate(teachers):
            logits = predict(k, teacher.load(), samples) if predict is not None else next(predictions)
            device = logits.device
            if teacher.places is not None and known_by is not None:
                # only the log-probabilities of teachers with different classes are comparable
                logits = spread(logits.log_softmax(1), teacher.places, len(known_by), -torch.inf)
            if spool is None:
                spool = np.memmap(file, np.float32, "w+", shape=(len(teachers), *logits.shape))
            spool[k] = logits.float().cpu().numpy()
            progress(k + 1, len(teachers))
        assert spool is not None, "an ensemble needs a teacher"
        yield SpooledLogits(spool, device)


def _voted(
    teachers: Sequence[Teacher],
    samples: Samples,
    weighting: Voting,
    temperature: float,
    batch_size: int,
    progress: Callable[[int, int], None],
    known_by: Tensor | None,
    task: Task | None,
) -> Table:
    """The table of a vote, which needs every teacher's prediction on a sample at once."""
    if torch.compiler.is_exporting() and known_by is None:  # an exported program has all teachers in memory
        networks = [teacher.load() for teacher in teachers]
        ballot = weighting.vote(torch.stack([apply(network, network, samples) for network in networks]) / temperature)
        return Table(ballot.targets, ballot.weights, ballot.sample_weight)
    spooling = spooled_logits(
        teachers,
        samples,
        predict=weighting.predict,
        batch_size=batch_size,
        progress=progress,
        known_by=known_by,
        task=task,
    )
    with spooling as spooled:
        slices = [weighting.vote(logits / temperature) for logits in spooled.slices(batch_size)]
    counted = [part.sample_weight for part in slices]
    return Table(
        torch.cat([part.targets for part in slices]),
        torch.cat([part.weights for part in slices]),
        torch.cat([c for c in counted if c is not None]) if counted[0] is not None else None,
    )
