"""A site's turn: a trained model becomes a bundle, with a description of the site's domain and never its data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstill.bundles.bundle import About, Architecture, Bundle, Subspace, as_described, scale_fault, write_bundle
from fedstill.bundles.folder import FusedFolder, read_fused
from fedstill.bundles.images import Images, load_images, relabelled
from fedstill.bundles.programs import Program, open_program, program_kind
from fedstill.bundles.reference import DEFAULT, load_reference, reference_id
from fedstill.core.errors import FedstillError, unknown
from fedstill.core.message import State
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.local.reports.discriminator import DISTORTIONS, discriminator_for, distorted
from fedstill.local.reports.projection import Projection, subspace
from fedstill.models import build, load_weights
from fedstill.models.network import Network
from fedstill.models.predict import accuracy, apply
from fedstill.training.fit import fit
from fedstill.training.options import Local, Optimizer

__all__ = ["DESCRIPTIONS", "Packed", "pack"]

DESCRIPTIONS = ("projection", "discriminator")
LR = 0.01


@dataclass(frozen=True)
class Packed:
    """A written bundle; with labelled data also how many of the site's images the model gets right (0..1)."""

    bundle: Bundle
    accuracy: float | None = None

    @property
    def doubtful(self) -> bool:
        """Whether the model does little better than guessing: classes in another order, or another normalisation."""
        return self.accuracy is not None and self.accuracy < 1.5 / len(self.bundle.about.classes)


def pack(
    out: str | Path,
    *,
    model: str | None = None,
    weights: str | Path | None = None,
    program: str | Path | None = None,
    base: str | Path | None = None,
    data: str | Path | None = None,
    classes: Sequence[str] = (),
    image_size: int | None = None,
    channels: int | None = None,
    norm: str = "batch",
    options: Mapping[str, Any] | None = None,
    mean: float | Sequence[float] = 0.5,
    std: float | Sequence[float] = 0.5,
    name: str | None = None,
    counts: bool = True,
    describe: Sequence[str] = ("projection",),
    reference: str | None = None,
    against: str | Path | None = None,
    epochs: int = 0,
    lr: float = LR,
    batch_size: int = 64,
    seed: int = 0,
) -> Packed:
    """Write the bundle ``out``.

    The network is ``model`` (a name for :func:`fedstill.models.build`) with ``weights``, or a ``program`` (TorchScript or
    ``torch.export``), or goes on from the fused folder ``base``. ``epochs`` of training on the labelled ``data`` come first where
    they are asked for; a model without weights needs some. Without ``data``, ``classes`` and ``image_size`` say what the network
    knows and takes. ``counts=False`` leaves out how many samples there are. ``describe`` is what the bundle tells of the domain:
    a "projection" (FedD3A) under the ``reference`` backbone, a "discriminator" (DaFKD) that learns to tell the site's images from
    those of ``against``, or nothing.

    >>> import tempfile
    >>> packed = pack(Path(tempfile.mkdtemp()) / "a.fed", model="mlp", data="embedded:optdigits", epochs=1, lr=0.1)
    >>> packed.bundle.about.samples, packed.bundle.parts
    (1797, ('model', 'projection'))
    """
    out = Path(out)
    if out.is_dir():
        raise FedstillError(f"{out} is a folder; give a file to write to, such as {out / 'site.fed'}")
    for wanted in describe:
        if wanted not in DESCRIPTIONS:
            raise unknown("description of a domain", wanted, DESCRIPTIONS)
    given = [text for text, value in (("a model", model), ("a program", program), ("a fused folder", base)) if value is not None]
    if len(given) != 1:
        both = f", not {' and '.join(given)}" if given else ""
        raise FedstillError(f"give one of a model, a program and the folder of a fused model to go on from{both}")
    if not (math.isfinite(lr) and lr > 0):
        raise FedstillError(f"the rate of training (lr) is a number above zero, not {lr}")
    fused = read_fused(base) if base is not None else None
    if fused is not None:
        image_size, channels = fused.about.shape[1], fused.about.shape[0]
    images = load_images(data, image_size=image_size, channels=channels, seed=seed) if data is not None else None
    about = _about(images, fused, classes, image_size, channels, mean, std, name or out.stem)
    samples = _labelled(images, about, epochs)
    if program is not None:
        about, parts, network = _program(Path(program), about, epochs)
    else:
        about, network = _network(about, fused, model, weights, norm, dict(options or {}), seed, epochs)
        if epochs and samples is not None:
            local = Local(epochs=epochs, batch_size=batch_size, optimizer=Optimizer(name="sgd", lr=lr, momentum=0.9))
            fit(network, samples, local, rng=stream(seed, "pack", "fit"))
        parts = {"model": network.state_dict()}
    if images is not None:
        spec = reference or (str(base) if base is not None else DEFAULT)
        about, more = _described(about, network, images, describe, spec, against, seed)
        parts = {**parts, **more}
        if counts:
            labels = samples.counts(len(about.classes)).tolist() if samples is not None else None
            about = about.model_copy(update={"samples": len(images.samples), "label_counts": labels})
    found = accuracy(network, samples) if samples is not None else None
    return Packed(write_bundle(out, about, **parts), found)


def _about(
    images: Images | None,
    fused: FusedFolder | None,
    classes: Sequence[str],
    image_size: int | None,
    channels: int | None,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    name: str,
) -> About:
    """What is known before the network is: classes, size, normalisation. The architecture is filled in later."""
    if fused is not None:
        if classes:
            raise FedstillError("the classes of a model that goes on from a fused one are the fused one's: name none")
        return fused.about.model_copy(update={"name": name, "based_on": fused.digest, "samples": None, "label_counts": None})
    known = list(classes) or list(images.classes if images is not None else ())
    if not known:
        raise FedstillError("the classes are not known: name them (classes), or give data with one folder a class")
    if len(known) == 1:
        raise FedstillError(f"there is one class only, '{known[0]}': nothing to tell apart; name all classes (classes)")
    if images is not None:
        shape = list(images.samples.x.shape[1:])
    elif image_size is not None:
        shape = [channels or 3, image_size, image_size]
    else:
        raise FedstillError("the size of the images is not known: give data, or the size (image_size, channels)")
    twice = next((c for c in known if known.count(c) > 1), None)
    if twice is not None:
        raise FedstillError(f"the class '{twice}' is named twice")
    wrong = scale_fault(mean, std)
    if wrong is not None:
        raise FedstillError(wrong)
    for text, value in (("mean", mean), ("std", std)):
        if not isinstance(value, float | int) and len(value) not in (1, shape[0]):
            raise FedstillError(f"{text} has {len(value)} numbers, and the images have {shape[0]} channels")
    return About(name=name, model=Architecture(name="?"), classes=known, shape=shape, mean=_scale(mean), std=_scale(std))


def _scale(value: float | Sequence[float]) -> float | list[float]:
    return value if isinstance(value, float | int) else list(value)


def _labelled(images: Images | None, about: About, epochs: int) -> Samples | None:
    """The site's samples with labels that count along the bundle's classes, or None where there are no labels."""
    if images is None or not images.classes:
        if epochs:
            raise FedstillError("training needs labelled images: data with one folder a class")
        return None
    return relabelled(images, about.classes, "the model does not know")


def _network(
    about: About,
    fused: FusedFolder | None,
    model: str | None,
    weights: str | Path | None,
    norm: str,
    options: dict[str, Any],
    seed: int,
    epochs: int,
) -> tuple[About, Network]:
    if fused is not None:
        return about, fused.network()
    assert model is not None
    if weights is None and not epochs:
        raise FedstillError("a model needs its trained weights, or epochs to be trained here")
    if weights is not None and program_kind(weights) is not None:
        raise FedstillError(
            f"'{weights}' is a program, not weights: hand it over as the program, instead of a model and its weights"
        )
    network = build(model, classes=len(about.classes), shape=about.shape, norm=norm, seed=seed, **options)
    if weights is not None:
        load_weights(network, weights, whole=True)
    described = about.model_copy(update={"model": Architecture(name=model, norm=norm, options=options)})
    return described, as_described(network, described)


def _program(path: Path, about: About, epochs: int) -> tuple[About, dict[str, State], Network]:
    if epochs:
        raise FedstillError("a program cannot be trained here: leave the epochs out")
    kind = program_kind(path)
    if kind is None:
        missing = "no such file" if not path.is_file() else "neither a TorchScript nor a torch.export file"
        raise FedstillError(f"program '{path}': {missing}")
    data = path.read_bytes()
    network = Program(open_program(data, kind, str(path)), str(path), tuple(about.shape), len(about.classes))
    stored: Tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    described = about.model_copy(update={"model": None, "program": kind})
    return described, {"program": {"bytes": stored}}, as_described(network, described)


def _described(
    about: About,
    network: Network,
    images: Images,
    describe: Sequence[str],
    reference: str,
    against: str | Path | None,
    seed: int,
) -> tuple[About, dict[str, State]]:
    parts: dict[str, State] = {}
    update: dict[str, Subspace | str | None] = {"subspace": None, "discriminator": None}
    if "projection" in describe:
        backbone = load_reference(reference)
        order = torch.randperm(len(images.samples), generator=stream(seed, "pack", "projection"))
        parts["projection"] = subspace(apply(backbone.features, backbone, images.samples.take(order)), Projection())
        update["subspace"] = reference_id(reference, backbone)
    if "discriminator" in describe:
        if against is not None:
            channels, height, _ = about.shape
            others, told = load_images(against, image_size=height, channels=channels, seed=seed), "images of "
            parts["discriminator"] = discriminator_for(network, images.samples, others.samples)
            update["discriminator"] = told + others.name
        else:
            distortions = distorted(images.samples, stream(seed, "pack", "discriminator"))
            parts["discriminator"] = discriminator_for(network, images.samples, distortions)
            update["discriminator"] = DISTORTIONS
    return about.model_copy(update=update), parts
