"""The models to fuse, and the union of their classes."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedstill.algorithm import Reply
from fedstill.bundles.bundle import Bundle, read_bundle, top_of
from fedstill.bundles.fuse.options import FuseOptions
from fedstill.core.errors import FedstillError
from fedstill.core.message import State
from fedstill.fusion.merges import weighted_sum
from fedstill.fusion.teacher import Teacher
from fedstill.models.network import Network
from fedstill.models.wrapped import Whole

__all__ = ["Member", "Team", "as_network", "averaged", "opened", "team_of"]

log = logging.getLogger("fedstill")
Opened = tuple[str | None, Any]  # the given name, and a bundle, a module or a function


@dataclass(frozen=True)
class Member:
    """One of the models to fuse."""

    name: str
    load: Callable[[], Network]
    classes: tuple[str, ...]
    key: str  # equal for networks whose weights can be averaged
    state: Callable[[], State] | None  # None for a program
    bundle: Bundle | None = None

    @property
    def reply(self) -> Reply | None:
        """Its description of its domain, which weightings use."""
        return self.bundle.reply() if self.bundle is not None else None

    @property
    def source(self) -> dict[str, Any]:
        """What the card says about it."""
        said: dict[str, Any] = {"name": self.name, "classes": list(self.classes)}
        if self.bundle is not None:
            about = self.bundle.about
            said.update(
                file=self.bundle.path.name,
                digest=self.bundle.digest,
                model=about.model.name if about.model is not None else about.program,
                shape=about.shape,
                samples=about.samples,
                bytes=self.bundle.path.stat().st_size,
                trunk=about.trunk.digest if about.trunk is not None else None,
            )
        return {key: value for key, value in said.items() if value is not None}


@dataclass(frozen=True)
class Team:
    """All models to fuse."""

    members: tuple[Member, ...]
    classes: tuple[str, ...]  # every class that a member knows, in order of first appearance

    def places(self, member: Member) -> tuple[int, ...]:
        """The index of each of a member's classes among the team's."""
        places = {name: i for i, name in enumerate(self.classes)}
        return tuple(places[name] for name in member.classes)

    @property
    def teachers(self) -> list[Teacher]:
        """The members as an ensemble."""
        alike = all(member.classes == self.classes for member in self.members)
        return [Teacher(m.name, m.load, m.reply, None if alike else self.places(m)) for m in self.members]

    @property
    def groups(self) -> list[list[Member]]:
        """Groups of two or more members whose weights can be averaged: the same architecture, the same list of classes."""
        groups: dict[str, list[Member]] = {}
        for member in self.members:
            if member.state is not None:
                groups.setdefault(member.key, []).append(member)
        return [group for group in groups.values() if len(group) > 1]


def averaged(group: Sequence[Member]) -> State:
    """The mean of their weights, weighted by number of samples if all are known."""
    counts = [member.reply.samples if member.reply is not None else 0 for member in group]
    total = sum(counts)
    shares = [count / total for count in counts] if all(counts) else [1 / len(group)] * len(group)
    return weighted_sum((member.state() for member in group if member.state is not None), shares)


def opened(teachers: Sequence[Any] | Mapping[str, Any], trust_code: bool) -> list[Opened]:
    """Open and check bundles, and keep everything else, so that a bad file fails before any work."""
    named: list[Opened] = list(teachers.items()) if isinstance(teachers, Mapping) else [(None, teacher) for teacher in teachers]
    if not named:
        raise FedstillError("nothing to fuse: give at least one teacher")
    found = []
    for name, teacher in named:
        bundle = read_bundle(teacher) if isinstance(teacher, str | Path) else teacher
        if isinstance(bundle, Bundle) and bundle.about.code is not None and not trust_code:
            bundle.network(trust_code)  # raises with the reason
        found.append((name, bundle))
    return found


def team_of(
    found: Sequence[Opened], shape: tuple[int, ...], options: FuseOptions, device: torch.device, on_trunk: bool = False
) -> Team:
    """The members by name; each module is tested on inputs of ``shape``. Members ``on_trunk`` take a frozen trunk's outputs."""
    members: dict[str, Member] = {}
    for number, (given, teacher) in enumerate(found, 1):
        if isinstance(teacher, Bundle):
            member = _of_bundle(given or teacher.name, teacher, options.trust_code, device, on_trunk)
        elif isinstance(teacher, nn.Module) or callable(teacher):
            member = _of_module(given or f"teacher {number}", teacher, shape, options, device)
        else:
            raise FedstillError(f"teacher {number} is a {type(teacher).__name__}, not a module, a bundle or a path")
        twin = members.get(member.name)
        if twin is not None and member.bundle is not None and twin.bundle is not None:
            if member.bundle.digest == twin.bundle.digest:
                raise FedstillError(f"the bundle of '{member.name}' is given twice: list each bundle once")
            both = f"{twin.bundle.path.name} and {member.bundle.path.name}"
            raise FedstillError(f"{both} are both called '{member.name}': pack one under another name")
        if twin is not None:
            raise FedstillError(f"two teachers are called '{member.name}': name them in a mapping")
        members[member.name] = member
    team = Team(tuple(members.values()), tuple(dict.fromkeys(name for member in members.values() for name in member.classes)))
    _warn_of_strangers(team)
    return team


def _of_bundle(name: str, bundle: Bundle, trust_code: bool, device: torch.device, on_trunk: bool) -> Member:
    about = bundle.about
    key = json.dumps([about.model.model_dump() if about.model else bundle.digest, about.classes, about.shape], sort_keys=True)

    def load() -> Network:
        network = bundle.network(trust_code).to(device)
        return top_of(network, about.trunk) if on_trunk and about.trunk is not None else network

    state = None if about.model is None else (lambda: load().state_dict()) if on_trunk else (lambda: bundle.state)
    return Member(name, load, tuple(about.classes), key, state, bundle)


def _of_module(
    name: str,
    teacher: nn.Module | Callable[[], nn.Module],
    shape: tuple[int, ...],
    options: FuseOptions,
    device: torch.device,
) -> Member:
    known = options.classes.get(name) if isinstance(options.classes, Mapping) else options.classes

    def load() -> Network:
        module = teacher if isinstance(teacher, nn.Module) else teacher()
        if not isinstance(module, nn.Module):
            raise FedstillError(f"{name} returned a {type(module).__name__}, not a module")
        network = as_network(module.to(device), shape, name, options)
        if known is not None and network.classes != len(known):
            raise FedstillError(f"{name} has {network.classes} outputs, but {len(known)} classes are named")
        return network

    network = load()
    kind = type(network.body if isinstance(network, Whole) else network).__qualname__
    key = json.dumps([kind, {place: list(tensor.shape) for place, tensor in network.state_dict().items()}, known or []])
    classes = tuple(known) if known is not None else tuple(str(i) for i in range(network.classes))
    return Member(name, load, classes, key, lambda: load().state_dict())


def as_network(module: nn.Module, shape: tuple[int, ...], whose: str, options: FuseOptions) -> Network:
    """The caller's module as a network, with the requested normalisation."""
    network = module if isinstance(module, Network) else Whole(module, whose, shape)
    if options.mean is not None:
        network.mean = options.mean
    if options.std is not None:
        network.std = options.std
    return network


def _warn_of_strangers(team: Team) -> None:
    """Warn of teachers that share no class with any other: usually class names are spelled differently."""
    known = Counter(name for member in team.members for name in member.classes)
    alone = [member for member in team.members if all(known[name] == 1 for name in member.classes)]
    if alone and len(team.members) > 1:
        named = "; ".join(f"{m.name} ({', '.join(m.classes[:5])}{', ...' * (len(m.classes) > 5)})" for m in alone)
        log.warning("warning: teachers that share no class with any other: %s; are the class names spelled the same?", named)
