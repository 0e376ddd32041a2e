"""Models on one frozen trunk: samples pass it once for all of them. If the bundles carry statistics, no samples are needed at
all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from fedstill.bundles.bundle import About, Bundle, Trunk, as_described, top_of
from fedstill.bundles.fuse.options import FuseOptions
from fedstill.bundles.fuse.teachers import Opened, Team
from fedstill.bundles.reference import load_reference, reference_id
from fedstill.core.errors import FedstillError
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.fusion.ensemble import Table
from fedstill.fusion.sources.statistics import draw_virtual
from fedstill.fusion.virtual import own_table
from fedstill.fusion.weightings import report_of
from fedstill.models.network import Network
from fedstill.models.trunk import Top
from fedstill.task.trunks import Kept, Progress, trunk_outputs

__all__ = ["Ground", "check_statistics", "common_trunk", "drawn"]


@dataclass(frozen=True)
class Ground:
    """The frozen trunk that all models share."""

    about: Trunk
    top: Top  # the first bundle's
    kept: Kept

    def standing(self, network: Network, about: About) -> Top:
        """A student on this trunk; the layers above it are the student's own."""
        as_described(network, about)
        own = network.state_dict()
        if not self.top.trunk_state.keys() <= own.keys():
            raise FedstillError(f"the student does not fit the bundles' trunk, a part of {about.model and about.model.name}")
        network.load_state_dict({**own, **self.top.trunk_state})
        return top_of(network.to(next(self.top.parameters()).device), self.about)


def common_trunk(
    found: Sequence[Opened],
    student: nn.Module | str | None,
    shape: tuple[int, ...],
    options: FuseOptions,
    device: torch.device,
    progress: Progress,
) -> Ground | None:
    """The trunk that all bundles and the student share, with images of one ``shape``; None if there is none, or if the
    weighting needs raw samples."""
    bundles = [teacher for _, teacher in found if isinstance(teacher, Bundle)]
    trunks = [bundle.about.trunk for bundle in bundles]
    first = trunks[0] if len(bundles) == len(found) else None
    if first is None or any(trunk is None or trunk.digest != first.digest for trunk in trunks):
        return None
    if any(tuple(bundle.about.shape) != shape for bundle in bundles):
        return None
    model = bundles[0].about.model
    if isinstance(student, nn.Module) or (student is not None and model is not None and student != model.name):
        return None
    if options.mean is not None or options.std is not None:
        return None
    network = bundles[0].network(options.trust_code).to(device)
    if report_of(options.weighting) == "projection":
        # features under the reference are available only if it is this trunk and takes images of the same size
        own, told = reference_id("", network).digest, [bundle.about.subspace for bundle in bundles]
        if first.train != "head" or any(subspace is None or subspace.digest != own for subspace in told):
            return None
        spec = options.reference or (told[0].reference if told[0] is not None else "")
        if load_reference(spec).input_shape != shape:
            return None
    top = top_of(network, first)
    return Ground(first, top, trunk_outputs(top, progress))


def check_statistics(found: Sequence[Opened]) -> None:
    """Raise if the bundles cannot be fused without unlabelled inputs, with the reason."""
    first: Bundle | None = None
    for name, teacher in found:
        if not isinstance(teacher, Bundle) or teacher.about.statistics is None or teacher.about.trunk is None:
            whose = name or (teacher.path.name if isinstance(teacher, Bundle) else "a module")
            ways = "give unlabelled inputs (--unlabelled DIR), or pack it with statistics (pack --statistics)"
            raise FedstillError(f"{whose} carries no statistics: {ways}")
        first = first or teacher
        assert first.about.trunk is not None
        if teacher.about.trunk.digest != first.about.trunk.digest:
            raise FedstillError(f"{teacher.path.name} has another trunk than {first.path.name}: give unlabelled inputs")
        if teacher.about.shape != first.about.shape:
            sizes = f"{tuple(teacher.about.shape)} and {first.path.name} of {tuple(first.about.shape)}"
            raise FedstillError(f"{teacher.path.name} takes images of shape {sizes}: pack them with images of one size")


def drawn(ground: Ground | None, team: Team, options: FuseOptions) -> tuple[Samples, Callable[..., Table] | None]:
    """Features drawn from the sites' statistics, and a function that makes their targets; None if the whole ensemble does."""
    if ground is None:
        raise FedstillError(
            "features can be drawn only for a student on the bundles' trunk, with a normalisation and a weighting that it allows"
        )
    replies = [reply for member in team.members if (reply := member.reply) is not None]
    virtual = draw_virtual(replies, options.draws, ground.about.shape, stream(options.seed, "fuse", "draw"))
    if options.targets == "ensemble":
        return virtual.samples, None
    by_label = options.targets == "label"
    return virtual.samples, partial(
        own_table, lambda network: network, team.teachers, virtual, len(team.classes), by_label=by_label
    )
