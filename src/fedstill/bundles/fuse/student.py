"""The student: its network, its initial weights, and whether its training converged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import torch
from torch import nn

from fedstill.bundles.bundle import About, Architecture, as_described
from fedstill.bundles.fuse.options import FuseOptions
from fedstill.bundles.fuse.teachers import Member, Team, as_network, averaged
from fedstill.core.errors import FedstillError
from fedstill.core.message import State, clone
from fedstill.core.options import validated
from fedstill.data.reading import Reading
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.distil import Distilled
from fedstill.fusion.ensemble import Table
from fedstill.models import build
from fedstill.models.network import Network
from fedstill.models.predict import predict_logits

__all__ = ["AVERAGE", "Student", "begin", "check_student", "student_of"]

AVERAGE = "average"  # of the teachers with the student's architecture, as a start
PROBE = 1024  # pool samples on which the candidate initial weights are compared
Student = tuple[Network, About | None]  # its description as in a bundle, if it has a named architecture


def student_of(given: nn.Module | str | None, team: Team, shape: tuple[int, ...], options: FuseOptions) -> Student:
    """The caller's module, or the named network; by default the first bundle's architecture."""
    if isinstance(given, nn.Module):
        network = as_network(given, shape, "the student", options)
        if network.classes != len(team.classes):
            raise FedstillError(f"the student has {network.classes} outputs, and the teachers know {len(team.classes)} classes")
        return network, None
    bundled = [member.bundle.about for member in team.members if member.bundle is not None]
    first = next((about for about in bundled if about.model is not None), None)
    architecture = _architecture(given, [about.model for about in bundled if about.model is not None], options)
    network = build(
        architecture.name,
        classes=len(team.classes),
        shape=shape,
        norm=architecture.norm,
        seed=options.seed,
        **architecture.options,
    )
    mean, std = (first.mean, first.std) if first is not None else (0.5, 0.5)
    about = About(
        name="fused",
        model=architecture,
        classes=list(team.classes),
        shape=list(shape),
        mean=mean if options.mean is None else options.mean,
        std=std if options.std is None else options.std,
        range=validated(Reading, dict(options.reading), "data").range,
    )
    return as_described(network, about), about


def _architecture(name: str | None, bundled: Sequence[Architecture], options: FuseOptions) -> Architecture:
    if name is None:
        if not bundled:
            raise FedstillError("name the student's model: student = a module or the name of one")
        return bundled[0]
    same = next((architecture for architecture in bundled if architecture.name == name), None)
    # the name of a teacher's model means the same network, unless options differ
    if same is not None and options.norm == "batch" and not options.student_options:
        return same
    return Architecture(name=name, norm=options.norm, options=options.student_options)


def begin(student: Student, team: Team, start: str, pool: Samples, table: Table) -> tuple[str, bool]:
    """Load the student's initial weights; return their name and whether they are trained."""
    network, _ = student
    like = [member for member in team.members if _fits(member, student, team)]
    candidates: dict[str, Callable[[], State]] = {member.name: member.state for member in like if member.state is not None}
    group = next((group for group in team.groups if group[0] in like), None)
    if group is not None:
        candidates[AVERAGE] = lambda: averaged(group)
    if start not in ("auto", "own") and start not in candidates:
        raise FedstillError(f"the student cannot start from '{start}': {_why(start, team, like)}")
    if start == "own" or not candidates:
        return "own weights", False
    if start == "auto":
        first = clone(network.state_dict())
        candidates["own weights"] = lambda: first
        members = [member.name for member in group] if group is not None else []
        start = _chosen(network, candidates, members, pool, table)
    network.load_state_dict(candidates[start]())
    return start, start != "own weights"


def _fits(member: Member, student: Student, team: Team) -> bool:
    """Whether the student can start from a member's weights: one architecture, the same classes in the same order."""
    network, about = student
    if member.state is None or member.classes != team.classes:
        return False
    if about is not None and member.bundle is not None and member.bundle.about.model != about.model:
        return False
    return _kinds(member.state()) == _kinds(network.state_dict())


def _kinds(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


def _chosen(
    network: Network, candidates: Mapping[str, Callable[[], State]], averaged: Sequence[str], pool: Samples, table: Table
) -> str:
    """The average of the teachers ``averaged``, unless these agree with the ensemble more often than it does, in the mean over
    them: then the candidate that agrees most often.

    The teacher of the domain that the pool resembles agrees with the ensemble best, and may know no other domain. So a single
    teacher is a start only where the average is of no use, as with teachers that share no initial weights.
    """
    few = pool.take(slice(PROBE))
    wanted = table.targets[:PROBE].argmax(1)
    agreement = {}
    for name, state in candidates.items():
        network.load_state_dict(state())
        said = predict_logits(network, few).argmax(1).to(wanted.device)
        agreement[name] = float((said == wanted).double().mean())
    if averaged and agreement[AVERAGE] >= fmean(agreement[name] for name in averaged):
        return AVERAGE
    return max(agreement, key=lambda name: agreement[name])


def _why(start: str, team: Team, like: Sequence[Member]) -> str:
    names = [member.name for member in team.members]
    if start != AVERAGE and start not in names:
        return f"no teacher has this name; teachers: {', '.join(names)}"
    return "it needs teachers of its own architecture and classes" if not like else "it needs two teachers of its architecture"


def check_student(network: Network, done: Distilled, pool: Samples) -> None:
    """Raise if the student diverged, so that it is never returned, nor written over a good one."""
    lost = done.steps > 0 and not math.isfinite(done.last_loss)
    # a buffer may hold infinities on purpose, such as a mask
    broken = any(not bool(torch.isfinite(p).all()) for p in network.parameters()) or any(
        bool(torch.isnan(b).any()) for b in network.buffers()
    )
    # the loss is measured before the last step, which may itself have diverged
    if lost or broken or not bool(torch.isfinite(predict_logits(network, pool.take(slice(PROBE)))).all()):
        raise FedstillError(
            f"distillation diverged (loss {done.last_loss}) after {done.steps} steps; lower the learning rate, optimizer.lr"
        )
