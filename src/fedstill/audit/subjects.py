"""The models that an audit attacks, each with samples that it was trained on and samples that it was not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedstill.audit.inversion import Private
from fedstill.bundles.bundle import About, read_bundle
from fedstill.bundles.images import load_images, relabelled
from fedstill.bundles.loading import load, read_ensemble
from fedstill.core.errors import FedstillError, first_line
from fedstill.data.samples import Samples
from fedstill.local.private import noise_of
from fedstill.models import build
from fedstill.models.network import Network
from fedstill.models.trunk import is_cut
from fedstill.run.configuration import from_toml
from fedstill.task import Task
from fedstill.training.fit import steps_of
from fedstill.training.options import Local, Optimizer
from fedstill.training.private import sampling_rate

__all__ = ["Subject", "bundle_subjects", "run_subjects"]

MOST_EPOCHS = 30  # of a shadow model, unless the user says otherwise


@dataclass(frozen=True)
class Subject:
    """A model to attack. ``fresh(seed)`` is an untrained network like it, ``local`` how a shadow is trained."""

    name: str
    network: Network
    members: Samples
    others: Samples
    fresh: Callable[[int], Network]
    local: Local
    private: Private | None = None  # the DP-SGD that its gradients passed
    head_only: bool = False  # whether a shadow trains the head alone, above the model's own frozen backbone

    def shadow(self, seed: int) -> Network:
        """An untrained network for a shadow model; its backbone is the model's own if that is frozen."""
        made = self.fresh(seed)
        if not self.head_only:
            return made
        kept = copy.deepcopy(self.network)
        kept.head.load_state_dict(made.head.state_dict())
        return kept


def run_subjects(folder: Path, epochs: int | None = None, trust_code: bool = False) -> list[Subject]:
    """The models of a finished run: the clients' own models of the last round if it kept them (``--keep-ensemble``), and the
    final model. The members of a client's model are its training samples; others are test samples of its domain."""
    config = folder / "config.toml"
    if not config.is_file():
        raise FedstillError(f"{folder} has no config.toml, so its clients' data is not known")
    try:
        task = Task(from_toml(config.read_text()))
    except FedstillError as error:
        raise FedstillError(f"{config}: {first_line(error)}") from error
    local = task.config.local.model_copy(update={"epochs": _epochs(task, epochs), "steps": None})
    clients = {info.id: _own(task, info.id) for info in task.clients.values()}
    tests = {name: task.raw_domains[name].test for name in task.client_domains}
    found = []
    cut, private = is_cut(task.config.model.train), _private(task)
    if (folder / "ensemble" / "ensemble.json").is_file():
        ensemble, _ = read_ensemble(folder / "ensemble", trust_code)
        for teacher, member in zip(ensemble.speakers.teachers, ensemble.members, strict=True):
            if teacher.name in clients and isinstance(member, Network):
                info = task.clients[teacher.name]
                fresh = _fresh(task, info.prototype)
                found.append(Subject(info.id, member, clients[info.id], tests[info.domain], fresh, local, private, cut))
    several = sorted(file.stem for file in (folder / "models").glob("*.safetensors"))
    for name in several or [""]:
        final = load(folder, model=name or None, trust_code=trust_code)
        about: About = final.about["about"]
        fresh = _described(about) if about.model is not None else _fresh(task, task.networks.student)
        mine = [name] if name in clients else list(clients)  # of a client's own model, or of one that all clients trained
        domains = dict.fromkeys(task.clients[client].domain for client in mine)
        every, held = _joined(clients[client] for client in mine), _joined(tests[domain] for domain in domains)
        called = f"the final model {name}" if name else "the final model"
        found.append(Subject(called, final.network, every, held, fresh, local, private, cut))
    return found


def bundle_subjects(
    path: Path,
    data: str,
    held_out: str | None,
    *,
    epochs: int | None = None,
    reading: Mapping[str, Any] | None = None,
    trust_code: bool = False,
) -> list[Subject]:
    """The model of a bundle with the site's samples ``data`` and others from ``held_out``: by default its ``#test`` part, if
    ``data`` is a ``#train`` part."""
    if held_out is None:
        if not data.endswith("#train"):
            raise FedstillError("name samples that the model was not trained on: --held-out, or --data SOURCE#train")
        held_out = data.removesuffix("train") + "test"
    bundle = read_bundle(path)
    about, size = bundle.about, bundle.about.shape
    if len(size) != 3:
        raise FedstillError(f"{path.name} takes no images: membership is tested with images")
    sides = []
    for source in (data, held_out):
        images = load_images(source, image_size=size[1], channels=size[0], reading=reading)
        sides.append(relabelled(images, about.classes, f"the model of {path.name} does not know"))
    local = Local(epochs=epochs or 20, optimizer=Optimizer(lr=0.01, momentum=0.9))
    if about.model is None:
        raise FedstillError(
            f"{path.name} is a program: its architecture is not known, so it cannot be attacked; use --attacks none"
        )
    return [
        Subject(
            bundle.name,
            bundle.network(trust_code),
            sides[0],
            sides[1],
            _described(about),
            local,
            head_only=about.trunk is not None,
        )
    ]


def _epochs(task: Task, epochs: int | None) -> int:
    return epochs or min(MOST_EPOCHS, task.config.rounds * task.config.local.epochs)


def _private(task: Task) -> Private | None:
    """DP-SGD with the least noise of any client, which is that of the largest: the attacker's best case."""
    sample, config = task.config.privacy.sample, task.config
    if sample is None:
        return None
    most, network = max(info.samples for info in task.clients.values()), task.networks.get(task.networks.prototypes[0])
    steps = config.rounds * steps_of(most, config.local, network)
    return Private(noise_of(config, sampling_rate(most, config.local.batch_size), steps), sample.max_grad_norm)


def _own(task: Task, client: str) -> Samples:
    info = task.clients[client]
    return task.raw_domains[info.domain].train.take(torch.from_numpy(info.indices))


def _joined(parts: Iterable[Samples]) -> Samples:
    kept = list(parts)
    return Samples(torch.cat([part.x for part in kept]), torch.cat([part.y for part in kept if part.y is not None]))


def _described(about: About) -> Callable[[int], Network]:
    def fresh(seed: int) -> Network:
        assert about.model is not None
        options = dict(about.model.options)
        made = build(about.model.name, classes=len(about.classes), shape=about.shape, norm=about.model.norm, seed=seed, **options)
        made.mean, made.std = about.mean, about.std
        return made

    return fresh


def _fresh(task: Task, prototype: str) -> Callable[[int], Network]:
    own = task.networks.architecture(prototype)

    def fresh(seed: int) -> Network:
        options = dict(own["options"])
        return build(own["name"], classes=len(task.classes), shape=task.raw_shape, norm=own["norm"], seed=seed, **options)

    return fresh
