"""Private votes in ``fuse``: what they refuse, which samples are answered, and what their epsilon covers."""

from __future__ import annotations

from typing import Any

import torch

from fedstill.bundles.fuse.options import FuseOptions
from fedstill.config.votes import Votes
from fedstill.core.errors import FedstillError
from fedstill.core.options import validated
from fedstill.data.samples import Samples
from fedstill.fusion.ensemble import Table
from fedstill.fusion.weightings import Weighting
from fedstill.fusion.weightings.private_votes import NAME, PrivateVotes

__all__ = ["answered", "check_private", "told_votes"]

COVERS = "epsilon covers the student, against everyone but those who hold the bundles; it counts one teacher as one unit"


def check_private(options: FuseOptions, with_pool: bool) -> None:
    """Refuse what would use more of the teachers than their votes."""
    if options.weighting != NAME:
        return
    validated(Votes, options.weighting_options, "privacy.votes")
    if not with_pool:
        raise FedstillError("private votes are about unlabelled samples: give an unlabelled pool")
    if options.keep_ensemble:
        raise FedstillError("keeping the ensemble would publish the teachers that private votes hide: remove one of them")
    if options.start not in ("auto", "own"):
        raise FedstillError(f"start = {options.start!r} puts a teacher's weights into the student of private votes: use 'own'")


def told_votes(weighting: Weighting) -> dict[str, Any] | None:
    """What private votes spent; None if the teachers did not vote privately."""
    if not isinstance(weighting, PrivateVotes):
        return None
    return {**weighting.spent.to_json(weighting.votes, weighting.left_out), "covers": COVERS + weighting.votes.limits}


def answered(pool: Samples, table: Table) -> tuple[Samples, Table]:
    """The samples that were answered, and their answers."""
    assert table.sample_weight is not None
    heard = torch.nonzero(table.sample_weight.cpu() > 0).flatten()
    if not len(heard):
        raise FedstillError("no sample was answered: lower the threshold, or take more teachers or a larger epsilon")
    return pool.take(heard), table.take(heard)
