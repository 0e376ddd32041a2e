"""An ensemble as a product: the teachers of a fusion and their weighting, kept in a folder and used as one network.

The folder has one file per teacher (its weights, and its site's report for the weighting), the backbones that reports were made
with, and ``ensemble.json``, written last. It contains no code. Students are distilled from this ensemble. It is better than they
are if its teachers know different things, but each prediction costs as many forward passes as it has teachers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedstill.algorithm import Round, Server
from fedstill.core.files import atomic_write, to_json
from fedstill.core.message import Message
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Space, ensemble_table
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.vote_norm import Voters
from fedstill.fusion.weightings import WeightingContext, make_weighting, options_kind, report_of
from fedstill.models.files import state_bytes
from fedstill.models.network import Network
from fedstill.models.statistics import recalibrate
from fedstill.models.trunk import whole_state
from fedstill.task import Task

__all__ = ["INDEX", "Ensemble", "Speakers", "settled", "speakers_of", "write_ensemble"]

INDEX = "ensemble.json"


@dataclass(frozen=True)
class Speakers:
    """The teachers of one fusion, and how their predictions are combined."""

    teachers: Sequence[Teacher]
    weighting: str
    options: Mapping[str, Any] = field(default_factory=dict)
    space: Space = "logits"
    temperature: float = 1.0
    direction: str = "forward"
    round: int = 1
    rounds: int = 1
    classes: Sequence[str] = ()
    backbones: Mapping[str, Callable[[], Network]] = field(default_factory=dict)  # by prototype; the reports were made with these


class Mixed(Protocol):
    """The options of a system that control how its teachers are combined."""

    weighting: str
    ensemble: Space
    distillation: Distillation


def speakers_of(
    task: Task, options: Mixed, settings: Mapping[str, Any], server: Server, teachers: Sequence[Teacher], round: Round
) -> Speakers:
    """A round's ensemble, ready to be kept."""
    networks, replies = task.networks, [teacher.reply for teacher in teachers if teacher.reply is not None]
    wanted = dict.fromkeys(r.prototype if r.prototype in server.models else networks.student for r in replies)
    backbones = {name: partial(networks.load, name, server.models[name], "backbone") for name in wanted}
    said = Speakers(
        teachers,
        options.weighting,
        settings,
        options.ensemble,
        options.distillation.temperature,
        options.distillation.direction,
        round.number,
        round.total,
        task.classes,
        backbones if report_of(options.weighting) == "projection" else {},
    )
    return settled(said, task.pool.samples if task.pool is not None else None)


def settled(speakers: Speakers, pool: Samples | None) -> Speakers:
    """The same speakers, with votes that do not depend on batches: voters that were normalised by the pool's batches get the
    pool's statistics as their own, since a kept ensemble must predict the same for a sample in any batch."""
    kind = options_kind(speakers.weighting)
    if kind is None or not issubclass(kind, Voters):
        return speakers
    teachers = speakers.teachers
    if pool is not None and speakers.options.get("vote_norm") != "own":
        teachers = [replace(teacher, load=partial(_recalibrated, teacher, pool)) for teacher in teachers]
    return replace(speakers, teachers=teachers, options={**speakers.options, "vote_norm": "own"})


def _recalibrated(teacher: Teacher, samples: Samples) -> Network:
    return recalibrate(teacher.load(), samples)


def write_ensemble(folder: Path, speakers: Speakers, about: Callable[[str], Mapping[str, Any]]) -> None:
    """Write the folder, one teacher at a time. ``about`` gives what :func:`fedstill.models.build` needs for a prototype."""
    report = report_of(speakers.weighting)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)  # a folder without an index is not an ensemble
    listed = []
    for k, teacher in enumerate(speakers.teachers):
        prototype = teacher.prototype or (teacher.reply.prototype if teacher.reply is not None else None)
        assert prototype is not None, "a teacher has an architecture"
        told = teacher.reply.part(report) if report is not None and teacher.reply is not None else {}
        parts = Message.of(model=whole_state(teacher.load()), report=told).tensors
        file = f"teacher-{k}.safetensors"
        atomic_write(folder / file, state_bytes(parts, about(prototype)))
        said = {"file": file, "name": teacher.name, "prototype": prototype, "places": teacher.places}
        listed.append(said | ({"samples": teacher.reply.samples} if teacher.reply is not None else {}))
    backbones = {}
    for k, (prototype, load) in enumerate(speakers.backbones.items()):
        backbones[prototype] = f"backbone-{k}.safetensors"
        atomic_write(folder / backbones[prototype], state_bytes(Message.of(model=whole_state(load())).tensors, about(prototype)))
    index = {
        "teachers": listed,
        "backbones": backbones,
        "weighting": speakers.weighting,
        "options": dict(speakers.options),
        "space": speakers.space,
        "temperature": speakers.temperature,
        "direction": speakers.direction,
        "classes": list(speakers.classes),
        "round": speakers.round,
        "rounds": speakers.rounds,
    }
    atomic_write(folder / INDEX, to_json(index) + "\n")


class Ensemble(Network):
    """Teachers combined into one network: raw inputs in, log-probabilities out."""

    def __init__(self, members: Sequence[Network], speakers: Speakers):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.references = nn.ModuleList([load() for load in speakers.backbones.values()])
        self.speakers = speakers
        self.classes = self.feature_dim = len(speakers.classes)
        self.head = nn.Identity()
        first = members[0]
        if all((one.mean, one.std, one.input_shape) == (first.mean, first.std, first.input_shape) for one in members):
            self.mean, self.std, self.input_shape = first.mean, first.std, first.input_shape
        self.alike = self.input_shape == first.input_shape  # all take the same input, as an exported program requires

    def normalise(self, x: Tensor) -> Tensor:
        """Inputs pass unchanged: every member normalises them itself."""
        return x

    def backbone(self, x: Tensor) -> Tensor:
        """The teachers' combined prediction, as log-probabilities."""
        said = self.speakers
        references = dict(zip(said.backbones, self.references, strict=True))
        context = WeightingContext(
            said.teachers,
            stream(0, "ensemble"),
            options=said.options,
            round=said.round,
            rounds=said.rounds,
            reference=references or None,  # type: ignore[arg-type]  # a ModuleList holds modules, and these are networks
        )
        table = ensemble_table(
            said.teachers,
            Samples(x),
            make_weighting(said.weighting, context),
            space=said.space,
            temperature=said.temperature,
            direction="reverse" if said.direction == "reverse" else "forward",
        )
        return table.targets.clamp_min(torch.finfo(table.targets.dtype).tiny).log()
