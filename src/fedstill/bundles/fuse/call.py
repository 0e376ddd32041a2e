"""``fedstill.fuse``: the call and its steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import nn

from fedstill.bundles.bundle import Bundle
from fedstill.bundles.fuse.between import settled
from fedstill.bundles.fuse.ensemble import check_table, chosen_weighting, shares, weighting_of
from fedstill.bundles.fuse.figures import Labelled, figure, figures_before, labelled_sets, together
from fedstill.bundles.fuse.kept import check_kept, keep
from fedstill.bundles.fuse.options import FuseKeywords, FuseOptions, described
from fedstill.bundles.fuse.pool import Inputs, pool_of, pool_shape, read_alike
from fedstill.bundles.fuse.result import Fused
from fedstill.bundles.fuse.student import AVERAGE, begin, check_student, student_of
from fedstill.bundles.fuse.teachers import Team, opened, team_of
from fedstill.bundles.fuse.trunk import check_statistics, common_trunk, drawn
from fedstill.bundles.fuse.votes import answered, check_private, told_votes
from fedstill.core.errors import FedstillError, first_line
from fedstill.core.message import clone
from fedstill.core.options import validated
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.distil import distil
from fedstill.fusion.ensemble import Table, ensemble_table
from fedstill.models.trunk import Top
from fedstill.models.wrapped import Whole

__all__ = ["fuse"]


@described
def fuse(
    teachers: Sequence[Any] | Mapping[str, Any],
    unlabelled: Inputs | None = None,
    student: nn.Module | str | None = None,
    *,
    validation: Labelled | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
    **options: Unpack[FuseKeywords],
) -> Fused:
    """Fuse trained classifiers into ``student`` by distilling their ensemble on ``unlabelled`` inputs.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> sites = [nn.Linear(4, 3) for _ in range(2)]
    >>> fused = fuse(teachers=sites, unlabelled=torch.randn(64, 4), student=nn.Linear(4, 3), distillation={"steps": 50})
    >>> fused.teachers, fused.distilled.last_loss < 0.1
    ({'teacher 1': 0.5, 'teacher 2': 0.5}, True)

    Args:
        teachers: modules that map inputs to logits, bundles or their paths, or functions that return a module when it is needed;
            a list, or a mapping from names. They are used one at a time and not changed.
        unlabelled: a tensor, :class:`Samples`, a ``Dataset`` or ``DataLoader`` (its labels are ignored), or the names of
            folders, tables or embedded domains. Float inputs go to every model unchanged; uint8 images are resized and
            normalised for each model. None draws features from the bundles' statistics, if all teachers are bundles with
            statistics under the same frozen trunk.
        student: a module, trained in place, or the name of a built-in model; by default the first teacher's architecture.
        validation: labelled samples, one set or several by name, for early stopping and the figures.
        device: the device to compute on.
        progress: called with the current step ("teachers", "student"), how much of it is done, and the total.
        options: the fields of :class:`fedstill.bundles.fuse.FuseOptions`.
    """
    chosen = validated(FuseOptions, {name: value for name, value in options.items() if value is not None})
    place = _usable(device)
    found = opened(teachers, chosen.trust_code)
    weighted = chosen_weighting(chosen.weighting, [teacher for _, teacher in found], statistics=unlabelled is None)
    chosen = chosen.model_copy(update={"weighting": weighted})
    check_private(chosen, with_pool=unlabelled is not None)
    if chosen.keep_ensemble:
        check_kept(found)
    if unlabelled is None:
        check_statistics(found)
    bundles = [teacher for _, teacher in found if isinstance(teacher, Bundle)]
    chosen = chosen.model_copy(update={"reading": read_alike(bundles, chosen.reading)})
    wanted = pool_shape(bundles, chosen.image_size)
    pool = pool_of(unlabelled, wanted, chosen.limit, chosen.seed, chosen.reading) if unlabelled is not None else None
    shape = tuple(pool.x.shape[1:]) if pool is not None else wanted or ()
    ground = common_trunk(found, student, shape, chosen, place, progress) if pool is None or pool.x.dtype == torch.uint8 else None
    team = team_of(found, shape, chosen, place, on_trunk=ground is not None)
    own_word: Callable[..., Table] | None = None
    if pool is None:
        pool, own_word = drawn(ground, team, chosen)
    elif ground is not None:
        pool = ground.kept("pool", pool)
    else:
        _check_scales(pool, team)
    network, about = student_of(student, team, shape, chosen)
    sets = labelled_sets(validation, team.classes, shape, chosen.seed, chosen.reading)
    if ground is not None and about is not None:
        about = about.model_copy(update={"trunk": ground.about})
        network = ground.standing(network, about)
        sets = {name: ground.kept(name, samples) for name, samples in sets.items()}
    network.to(place)
    weighting = weighting_of(team, chosen, place, ground.top if ground is not None else None)
    say = partial(
        ensemble_table,
        team.teachers,
        weighting=weighting,
        space=chosen.ensemble,
        temperature=chosen.distillation.temperature,
        direction=chosen.distillation.direction,
    )
    table = own_word() if own_word is not None else say(pool, progress=partial(progress, "teachers"))
    check_table(table, team, pool)
    votes = told_votes(weighting)
    if votes is not None:
        pool, table = answered(pool, table)
    figures, weights_by_set = figures_before(team, sets, say) if votes is None else ([], {})  # nothing else is asked of teachers
    start, trained = begin((network, about), team, chosen.start if votes is None else "own", pool, table)
    learning = chosen.learning(trained)
    figures += figure(f"student before ({start})", "start", network, sets)
    # the ends of a line that the model may lie on: drawn features cover all sites' domains, so there is nothing to go back for
    begun = clone(network.state_dict()) if start == AVERAGE and own_word is None else None
    done = distil(
        network,
        pool,
        table,
        learning,
        rng=stream(chosen.seed, "fuse", "distil"),
        validation=together(sets),
        progress=partial(progress, "student"),
    )
    check_student(network, done, pool)
    taken = 1.0
    if begun is not None:
        distilled = figure("student as distilled", "distilled", network, sets)
        taken = settled(network, begun, chosen.line, sets)
        figures += distilled if taken != 1 else []
    figures += figure("student", "student", network, sets)
    network = network.whole if isinstance(network, Top) else network
    network.eval()
    return Fused(
        student=network.body if isinstance(network, Whole) else network,
        network=network,
        classes=team.classes,
        teachers=shares(team, table),
        start=start,
        distilled=done,
        figures=tuple(figures),
        weights_by_set=weights_by_set,
        about=about,
        settings={
            "weighting": chosen.weighting,
            **({"weighting_options": chosen.weighting_options} if chosen.weighting_options and votes is None else {}),
            **({"votes": votes} if votes is not None else {}),
            "ensemble": chosen.ensemble,
            "seed": chosen.seed,
            "pool": len(pool),
            **({"targets": chosen.targets} if unlabelled is None else {}),
            "shape": list(shape),
            "distillation": learning.model_dump(mode="json", exclude_none=True),
            "line": taken,
        },
        sources=tuple(member.source for member in team.members),
        ensemble=partial(
            keep, team=team, options=chosen, device=place, trunk=ground.top if ground is not None else None, pool=pool
        )
        if chosen.keep_ensemble
        else None,
    )


def _usable(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # an unknown name; torch without CUDA asserts
        raise FedstillError(f"device '{device}' cannot be used: {first_line(error)}") from error


def _check_scales(pool: Samples, team: Team) -> None:
    """Floats go to every model unchanged, so all must have been trained on the same kind of input."""
    bundled = [member.bundle.about for member in team.members if member.bundle is not None]
    scales = {json.dumps([about.mean, about.std, about.shape]) for about in bundled}
    if pool.x.dtype != torch.uint8 and len(scales) > 1:
        raise FedstillError(
            "the bundles take images of different sizes or normalisations: give the pool as uint8 images, not floats"
        )
