"""Keep the ensemble of a fusion: its teachers and their weighting, written beside the student."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedstill.bundles.bundle import About, Bundle, read_bundle
from fedstill.bundles.folder import read_fused
from fedstill.bundles.fuse.ensemble import reference_of
from fedstill.bundles.fuse.options import FuseOptions
from fedstill.bundles.fuse.teachers import Opened, Team
from fedstill.core.errors import FedstillError
from fedstill.data.samples import Samples
from fedstill.fusion.kept import Speakers, settled, write_ensemble
from fedstill.fusion.weightings import report_of
from fedstill.fusion.weightings.contract import COMMON
from fedstill.models.network import Network
from fedstill.models.trunk import Top

__all__ = ["check_kept", "keep"]


def check_kept(found: Sequence[Opened]) -> None:
    """Raise before the work begins if a teacher cannot be kept: programs and custom modules have no named architecture."""
    for name, teacher in found:
        if not isinstance(teacher, Bundle) or teacher.about.model is None or teacher.about.code is not None:
            whose = name or (teacher.name if isinstance(teacher, Bundle) else "a module")
            raise FedstillError(f"{whose} is not one of fedstill's own networks: the ensemble cannot be kept")


def keep(folder: Path, team: Team, options: FuseOptions, device: torch.device, trunk: Top | None, pool: Samples) -> None:
    """Write the ensemble of ``team``, which predicted ``pool``, to ``folder``."""
    abouts: dict[str, Mapping[str, Any]] = {
        member.name: _said(member.bundle.about) for member in team.members if member.bundle is not None
    }
    backbones = {}
    if report_of(options.weighting) == "projection":
        backbone = trunk or reference_of(team, options.reference, device)
        assert backbone is not None, "the weighting has found one"
        backbones[COMMON] = partial(_same, backbone)
        abouts[COMMON] = next(iter(abouts.values())) if trunk is not None else _of_reference(team, options.reference, backbone)
    speakers = Speakers(
        [replace(teacher, prototype=teacher.name) for teacher in team.teachers],
        options.weighting,
        options.weighting_options,
        options.ensemble,
        options.distillation.temperature,
        options.distillation.direction,
        classes=team.classes,
        backbones=backbones,
    )
    write_ensemble(folder, settled(speakers, pool), abouts.__getitem__)


def _same(network: Network) -> Network:
    return network


def _said(about: About) -> dict[str, Any]:
    assert about.model is not None, "checked before"
    architecture = {"model": about.model.name, "norm": about.model.norm, "options": dict(about.model.options)}
    return {**architecture, "classes": about.classes, "shape": about.shape, "mean": about.mean, "std": about.std}


def _of_reference(team: Team, asked: str | None, network: Network) -> Mapping[str, Any]:
    """The description from which the reference can be rebuilt."""
    subspaces = [m.bundle.about.subspace for m in team.members if m.bundle is not None]
    spec = asked or next(subspace.reference for subspace in subspaces if subspace is not None)
    place = Path(spec)
    if place.exists():
        return _said(read_fused(place).about if place.is_dir() else read_bundle(place).about)
    plain = {"model": spec.partition("=")[0], "norm": "batch", "options": {}, "classes": ["reference"]}
    return {**plain, "shape": list(network.input_shape or ()), "mean": network.mean, "std": network.std}
