"""The weights of the teachers, and a check of the ensemble's targets."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedstill.bundles.bundle import Bundle
from fedstill.bundles.fuse.options import FuseOptions
from fedstill.bundles.fuse.teachers import Team
from fedstill.bundles.pack import DESCRIPTIONS
from fedstill.bundles.reference import load_reference, reference_id
from fedstill.core.errors import FedstillError
from fedstill.core.options import validated
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.fusion.ensemble import Table
from fedstill.fusion.weightings import Weighting, WeightingContext, make_weighting, options_kind, report_of
from fedstill.models.network import Network
from fedstill.models.predict import predict_logits

__all__ = ["check_table", "chosen_weighting", "reference_of", "shares", "weighting_of"]


def chosen_weighting(asked: str, teachers: Sequence[object], statistics: bool) -> str:
    """``auto`` by what the teachers bring: their domains' projections if all have one under the same reference. Features that are
    drawn from ``statistics`` have their own sites' targets."""
    if asked != "auto":
        return asked
    told = [teacher.about.subspace if isinstance(teacher, Bundle) else None for teacher in teachers]
    alike = len({subspace.digest for subspace in told if subspace is not None}) == 1
    return "projection" if alike and all(told) and not statistics else "uniform"


def weighting_of(team: Team, options: FuseOptions, device: torch.device, trunk: Network | None = None) -> Weighting:
    """The requested weighting; it raises if the bundles lack what it needs. A common ``trunk`` is also the reference, and the
    samples are its outputs."""
    name = options.weighting
    kind = options_kind(name)
    if kind is not None:
        validated(kind, options.weighting_options, "weighting_options")
    backbone = (trunk or reference_of(team, options.reference, device)) if report_of(name) == "projection" else None
    if name == "examples" and any(member.reply is None or not member.reply.samples for member in team.members):
        raise FedstillError("weighting 'examples' needs every bundle's number of samples")
    rng = stream(options.seed, "fuse", "weighting")
    context = WeightingContext(team.teachers, rng, options=options.weighting_options, reference=backbone)
    return make_weighting(name, context, remedy=_packed_with)


def _packed_with(report: str) -> str:
    """How the bundles get a report, if `pack` can describe the domain by it."""
    return f"; pack them with --describe {report}" if report in DESCRIPTIONS else ""


def reference_of(team: Team, asked: str | None, device: torch.device) -> Network | None:
    """The backbone with which all members described their domains; None if a member has no description, which raises later."""
    described = [(m.name, m.bundle.about.subspace) for m in team.members if m.bundle is not None]
    known = [(name, subspace) for name, subspace in described if subspace is not None]
    if len(known) < len(team.members):
        return None
    spec = asked or known[0][1].reference
    backbone = load_reference(spec).to(device)
    wanted = reference_id(spec, backbone).digest
    for name, subspace in known:
        if subspace.digest != wanted:
            raise FedstillError(
                f"{name} described its domain with the reference '{subspace.reference}', which is not "
                f"'{spec}' with the same weights; give the reference that all sites used"
            )
    return backbone


def check_table(table: Table, team: Team, pool: Samples) -> None:
    """Refuse targets that are not finite, and name the teacher that caused them."""
    if bool(torch.isfinite(table.targets).all()) and bool(torch.isfinite(table.weights).all()):
        return
    for member in team.members:
        if not bool(torch.isfinite(predict_logits(member.load(), pool)).all()):
            raise FedstillError(f"{member.name} predicts values that are not finite on the pool: leave this teacher out")
    raise FedstillError("the teachers' targets are not finite: the weighting has broken down")


def shares(team: Team, table: Table) -> dict[str, float]:
    """Each teacher's mean weight over the samples."""
    means = table.weights.mean(0).tolist()
    return {member.name: float(f"{share:.5g}") for member, share in zip(team.members, means, strict=True)}
