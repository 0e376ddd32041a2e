"""An ensemble as a product: the teachers of a fusion and what weighs them, kept in a folder and used as one network.

The folder has a file a teacher (weights, and what its site reported for the weighting), the backbones that reports were made
with, and ``ensemble.json``, written last. Nothing in it is a program. The ensemble is what a student is distilled from: better
where teachers know different things, and as many times dearer to ask as it has teachers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedstill.algorithm import Reply, Round, Server
from fedstill.core.errors import FedstillError, first_line
from fedstill.core.files import atomic_write, to_json
from fedstill.core.message import Message, State
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Space, ensemble_table
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.vote_norm import Voters
from fedstill.fusion.weightings import WeightingContext, make_weighting, options_kind, report_of
from fedstill.models import build
from fedstill.models.files import read_state, state_bytes
from fedstill.models.network import Network
from fedstill.models.statistics import recalibrate
from fedstill.task import Task

__all__ = ["INDEX", "Ensemble", "Speakers", "read_ensemble", "settled", "speakers_of", "write_ensemble"]

INDEX = "ensemble.json"


@dataclass(frozen=True)
class Speakers:
    """The teachers of one fusion, and how what they say is put together."""

    teachers: Sequence[Teacher]
    weighting: str
    options: Mapping[str, Any] = field(default_factory=dict)
    space: Space = "logits"
    temperature: float = 1.0
    direction: str = "forward"
    round: int = 1
    rounds: int = 1
    classes: Sequence[str] = ()
    backbones: Mapping[str, Callable[[], Network]] = field(default_factory=dict)  # that reports were made with, by prototype


class Mixed(Protocol):
    """The options of a system that say how its teachers are put together."""

    weighting: str
    ensemble: Space
    distillation: Distillation


def speakers_of(
    task: Task, options: Mixed, settings: Mapping[str, Any], server: Server, teachers: Sequence[Teacher], round: Round
) -> Speakers:
    """A round's ensemble, as it can be kept."""
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
    """The same speakers, whose votes no longer depend on batches: voters that the pool's batches normalised get the pool's
    statistics for their own, since what is kept must say the same of a sample in whatever company it comes."""
    kind = options_kind(speakers.weighting)
    if kind is None or not issubclass(kind, Voters):
        return speakers
    teachers = speakers.teachers
    if pool is not None and speakers.options.get("vote_norm") != "own":
        teachers = [replace(teacher, load=partial(_recalibrated, teacher, pool)) for teacher in teachers]
    return replace(speakers, teachers=teachers, options={**speakers.options, "vote_norm": "own"})


def _recalibrated(teacher: Teacher, samples: Samples) -> Network:
    return recalibrate(teacher.load(), samples)


def write_ensemble(
    folder: Path, speakers: Speakers, about: Callable[[str], Mapping[str, Any]], whole: Callable[[Network], State]
) -> None:
    """Write the folder, a teacher at a time. ``about`` says of a prototype what :func:`fedstill.models.build` needs, and
    ``whole`` gives all of a network's tensors."""
    report = report_of(speakers.weighting)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)  # a folder without an index is no ensemble
    listed = []
    for k, teacher in enumerate(speakers.teachers):
        prototype = teacher.prototype or (teacher.reply.prototype if teacher.reply is not None else None)
        assert prototype is not None, "a teacher has an architecture"
        parts = {f"model/{name}": tensor for name, tensor in whole(teacher.load()).items()}
        if report is not None and teacher.reply is not None:
            parts |= {f"report/{name}": tensor for name, tensor in teacher.reply.part(report).items()}
        file = f"teacher-{k}.safetensors"
        atomic_write(folder / file, state_bytes(parts, about(prototype)))
        said = {"file": file, "name": teacher.name, "prototype": prototype, "places": teacher.places}
        listed.append(said | ({"samples": teacher.reply.samples} if teacher.reply is not None else {}))
    backbones = {}
    for k, (prototype, load) in enumerate(speakers.backbones.items()):
        backbones[prototype] = f"backbone-{k}.safetensors"
        atomic_write(folder / backbones[prototype], state_bytes(_named("model", whole(load())), about(prototype)))
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


def _named(group: str, state: Mapping[str, Tensor]) -> State:
    return {f"{group}/{name}": tensor for name, tensor in state.items()}


class Ensemble(Network):
    """Teachers that speak together as one network: raw inputs in, log-probabilities out."""

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
        self.alike = self.input_shape == first.input_shape  # one input for all, which a program outside of fedstill needs

    def normalise(self, x: Tensor) -> Tensor:
        """Inputs pass as they are: every member makes them its own."""
        return x

    def backbone(self, x: Tensor) -> Tensor:
        """What the teachers say together, as log-probabilities."""
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


def read_ensemble(folder: str | Path) -> tuple[Ensemble, dict[str, Any]]:
    """The ensemble that :func:`write_ensemble` wrote, and what its teachers' files say of inputs and classes."""
    folder = Path(folder)
    try:
        index = json.loads((folder / INDEX).read_text())
        teachers, members = [], []
        about: dict[str, Any] = {}
        for told in index["teachers"]:
            network, parts, about = _network(folder, told["file"])
            reply = Reply(told["name"], "", told["prototype"], int(told.get("samples", 0)), _message(parts, index["weighting"]))
            places = None if told["places"] is None else tuple(map(int, told["places"]))
            members.append(network)
            teachers.append(Teacher(told["name"], network.eval, reply if "samples" in told else None, places))
        backbones = {prototype: _network(folder, file)[0] for prototype, file in index["backbones"].items()}
        speakers = Speakers(
            teachers,
            index["weighting"],
            index["options"],
            index["space"],
            float(index["temperature"]),
            index["direction"],
            int(index["round"]),
            int(index["rounds"]),
            tuple(map(str, index["classes"])),
            {prototype: network.eval for prototype, network in backbones.items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedstillError(f"{folder} is not an ensemble that can be read: {first_line(error)}") from error
    if not members:
        raise FedstillError(f"{folder} is an ensemble without teachers")
    return Ensemble(members, speakers).eval(), {**about, "classes": list(speakers.classes)}


def _message(parts: Mapping[str, Tensor], weighting: str) -> Callable[[], Message]:
    report = report_of(weighting)
    message = Message.of(**({report: dict(parts)} if report is not None and parts else {}))
    return lambda: message


def _network(folder: Path, file: str) -> tuple[Network, State, dict[str, Any]]:
    """A file's network, what else it holds, and what it says."""
    if Path(file).name != file:
        raise FedstillError(f"{folder / INDEX} names a file outside of its folder")
    state, about = read_state(folder / file)
    network = build(about["model"], classes=len(about["classes"]), shape=about["shape"], norm=about["norm"], **about["options"])
    network.mean, network.std = about["mean"], about["std"]
    own = {name.removeprefix("model/"): tensor for name, tensor in state.items() if name.startswith("model/")}
    try:
        network.load_state_dict(own)
    except RuntimeError as error:
        raise FedstillError(f"{folder / file} does not fit '{about['model']}': {first_line(error)}") from error
    if len(about["shape"]) == 3:
        network.input_shape = tuple(about["shape"])
    parts = {name.removeprefix("report/"): tensor for name, tensor in state.items() if name.startswith("report/")}
    return network.eval(), parts, about
