"""Robust ensembles: a minority of false teachers cannot move the target far.

Weights in the history are each teacher's share of the target.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedstill.core.errors import FedstillError
from fedstill.core.options import validated
from fedstill.fusion.vote_norm import Voters
from fedstill.fusion.weightings.contract import Ballot, Voting, WeightingContext, weighting

__all__ = ["Median", "Spectral", "SpectralOptions", "Trimmed", "TrimmedOptions", "spectral_weights"]


@weighting("median", summary="the lower median of each class's logits (FedRAD; FedDF with medians)", options=Voters)
class Median(Voting):
    """For every class, the median of the teachers' logits, then softmax.

    With an even number of teachers it is the lower of the middle two. It is then always the value of one teacher, as FedRAD's
    scores require. A teacher's weight is the share of classes in which its value is the median.
    """

    def __init__(self, context: WeightingContext | None = None):
        if context is not None:
            self.voters(context, validated(Voters, context.options, "algorithm.weighting_options").vote_norm)

    def vote(self, logits: Tensor) -> Ballot:
        """The medians.

        >>> logits = torch.tensor([[[1.0, 5.0]], [[2.0, 4.0]], [[3.0, 0.0]], [[99.0, -99.0]]])
        >>> Median().vote(logits).weights.tolist()  # 2.0 is the second teacher's, 0.0 the third's
        [[0.0, 0.5, 0.5, 0.0]]
        """
        # a teacher that does not know a class is not asked about it
        middle, whose = logits.masked_fill(logits.isneginf(), torch.nan).nanmedian(0)
        weights = F.one_hot(whose, len(logits)).to(logits.dtype).mean(1)
        return Ballot(middle.softmax(1), weights)


class TrimmedOptions(Voters):
    """``weighting_options`` of ``trimmed-mean``."""

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """Fraction of the teachers to cut at either end, class by class."""


@weighting("trimmed-mean", summary="the mean of each class's logits without the extremes", options=TrimmedOptions)
class Trimmed(Voting):
    """For every class, the mean of the logits without the ``trim`` smallest and largest, then softmax (Yin et al., ICML 2018)."""

    def __init__(self, context: WeightingContext | None = None):
        given = context.options if context is not None else {}
        self.options: TrimmedOptions = validated(TrimmedOptions, given, "algorithm.weighting_options")
        if context is not None:
            self.voters(context, self.options.vote_norm)

    def vote(self, logits: Tensor) -> Ballot:
        """The trimmed means."""
        if bool(logits.isneginf().any()):
            raise FedstillError("weighting 'trimmed-mean' needs teachers that know the same classes")
        teachers = len(logits)
        cut = min(int(self.options.trim * teachers + 1e-9), (teachers - 1) // 2)
        ordered, whose = logits.sort(0)
        kept, whose = ordered[cut : teachers - cut], whose[cut : teachers - cut]
        weights = F.one_hot(whose, teachers).to(logits.dtype).mean((0, 2))
        return Ballot(kept.mean(0).softmax(1), weights)


class SpectralOptions(Voters):
    """``weighting_options`` of ``spectral``."""

    epsilon: Annotated[float, Field(gt=0, lt=0.5)] = 0.2
    """Fraction of the teachers that may be malicious. At most twice as many are left out."""

    scale: Annotated[float, Field(gt=0)] = 0.1
    """Standard deviation of honest soft labels along any direction. The published filter has 1, which never removes anything from
    probabilities."""

    bound: Annotated[float, Field(gt=0)] = 9.0
    """Teachers lose weight while the largest variance along any direction is above ``bound * scale^2``."""


def spectral_weights(votes: Tensor, options: SpectralOptions) -> Tensor:
    """Each voter's weight (b, voters) in the robust mean of ``votes`` (b, voters, d), by the spectral filter (Diakonikolas et
    al., ICML 2017), which Cronus applies to soft labels.

    While the largest variance over all directions is above ``bound * scale^2``, voters lose weight by their distance in that
    direction, and the farthest loses all of it; at most ``2 * epsilon`` of the voters are removed. The published filter assumes
    that the covariance of honest votes is the identity, ``scale = 1``. Probabilities never vary that much, so it never acts.

    >>> honest = torch.tensor([[0.9, 0.1], [0.85, 0.15], [0.95, 0.05], [0.9, 0.1]])
    >>> votes = torch.cat([honest, torch.tensor([[0.0, 1.0]])])[None]
    >>> spectral_weights(votes, SpectralOptions())[0, 4].item()
    0.0
    >>> spectral_weights(votes, SpectralOptions(scale=1.0))[0].tolist()
    [0.20000000298023224, 0.20000000298023224, 0.20000000298023224, 0.20000000298023224, 0.20000000298023224]
    """
    voters = votes.shape[1]
    credit = votes.new_ones(votes.shape[:2])
    for _ in range(min(int(2 * options.epsilon * voters + 1e-9), voters - 1)):
        share = credit / credit.sum(1, keepdim=True)
        gap = votes - (share[:, :, None] * votes).sum(1, keepdim=True)
        spread = share.sqrt()[:, :, None] * gap  # its Gram matrix is the covariance
        if votes.shape[2] <= voters:
            values, vectors = torch.linalg.eigh(spread.transpose(1, 2) @ spread)
            direction = vectors[:, :, -1:]
        else:  # fewer voters than dimensions: the smaller Gram matrix has the same largest eigenvalue
            values, vectors = torch.linalg.eigh(spread @ spread.transpose(1, 2))
            direction = F.normalize(spread.transpose(1, 2) @ vectors[:, :, -1:], dim=1)
        far = (gap @ direction)[:, :, 0].square() * (credit > 0)
        suspicious = values[:, -1:] > options.bound * options.scale**2
        largest = far.amax(1, keepdim=True).clamp_min(torch.finfo(far.dtype).tiny)
        credit = torch.where(suspicious, credit * (1 - far / largest), credit)
        if not bool(suspicious.any()):
            break
    return credit / credit.sum(1, keepdim=True)


@weighting("spectral", summary="a robust mean of probabilities by spectral filtering (Cronus)", options=SpectralOptions)
class Spectral(Voting):
    """The mean of the teachers' probabilities after the spectral filter has removed outliers."""

    def __init__(self, context: WeightingContext | None = None):
        given = context.options if context is not None else {}
        self.options: SpectralOptions = validated(SpectralOptions, given, "algorithm.weighting_options")
        if context is not None:
            self.voters(context, self.options.vote_norm)

    def vote(self, logits: Tensor) -> Ballot:
        """The robust mean of the softmaxes."""
        votes = logits.softmax(2).transpose(0, 1)
        weights = spectral_weights(votes, self.options)
        return Ballot((weights[:, :, None] * votes).sum(1), weights)
