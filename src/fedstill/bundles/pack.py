"""What a site does: pack a trained model into a bundle, with a description of the site's domain and never its data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstill.bundles.bundle import (
    About,
    Architecture,
    Bundle,
    Subspace,
    Trunk,
    as_described,
    scale_fault,
    write_bundle,
)
from fedstill.bundles.folder import FusedFolder, read_fused
from fedstill.bundles.images import Images, load_images, relabelled
from fedstill.bundles.programs import Program, open_program, program_kind
from fedstill.bundles.reference import default_reference, load_reference, reference_features, reference_id
from fedstill.core.errors import FedstillError, unknown
from fedstill.core.message import State
from fedstill.core.options import validated
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.local.reports.discriminator import DISTORTIONS, discriminator_for, distorted
from fedstill.local.reports.projection import Projection, subspace
from fedstill.local.reports.statistics import Statistics, site_statistics
from fedstill.models import MODELS, build, load_weights
from fedstill.models.network import Network
from fedstill.models.predict import accuracy
from fedstill.models.pretrained import find_weights
from fedstill.models.trunk import Top, cut_of, is_cut
from fedstill.task.trunks import Progress, trunk_outputs
from fedstill.training.fit import fit
from fedstill.training.options import Local, Optimizer

__all__ = ["DESCRIPTIONS", "HEAD_EPOCHS", "Packed", "pack"]

DESCRIPTIONS = ("projection", "discriminator")
LR = 0.01
HEAD_EPOCHS = 20  # default for the layers above a frozen trunk


@dataclass(frozen=True)
class Packed:
    """A written bundle; with labelled data, also the model's accuracy on the site's images (0..1)."""

    bundle: Bundle
    accuracy: float | None = None
    trained: bool = False  # here, before it was packed

    @property
    def doubtful(self) -> bool:
        """Whether the accuracy is near chance: a wrong class order or normalisation, or too little training."""
        return self.accuracy is not None and self.accuracy < 1.5 / len(self.bundle.about.classes)


def pack(
    out: str | Path,
    *,
    model: str | None = None,
    weights: str | Path | None = None,
    program: str | Path | None = None,
    base: str | Path | None = None,
    data: str | Path | None = None,
    reading: Mapping[str, Any] | None = None,
    classes: Sequence[str] = (),
    image_size: int | None = None,
    channels: int | None = None,
    norm: str = "batch",
    options: Mapping[str, Any] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    train: str | None = None,
    statistics: bool | Mapping[str, Any] = False,
    name: str | None = None,
    counts: bool = True,
    describe: Sequence[str] | None = None,
    reference: str | None = None,
    against: str | Path | None = None,
    epochs: int | None = None,
    lr: float = LR,
    backbone_rate: float = 1.0,
    batch_size: int = 64,
    seed: int = 0,
    progress: Progress = lambda what, done, of: None,
) -> Packed:
    """Write the bundle ``out``.

    The network is ``model`` (a name for :func:`fedstill.models.build`) with ``weights``, or a ``program`` (TorchScript or
    ``torch.export``), or continues from the fused folder ``base``. It first trains for ``epochs`` on the labelled ``data``, by
    default 20 above a frozen trunk and 1 from a fused model; a model without weights needs ``epochs``. ``backbone_rate`` is a
    factor of the learning rate ``lr`` below the head. Without ``data``, give ``classes`` and ``image_size``. ``counts=False``
    omits the number of samples. ``describe`` is the description of the domain: a "projection" (FedD3A) under the ``reference``
    backbone, a "discriminator" (DaFKD) that learns to distinguish the site's images from those of ``against``, or nothing; by
    default the projection, unless there are statistics. ``reading`` says how images become pixels if their files do not, such as
    the ``range`` of 12 bits in 16, and what happens to damaged images (:class:`~fedstill.data.reading.Reading`).

    ``train`` is the part that is trained: "all", or above a frozen trunk "head" or "last:N"; the trunk's outputs are computed
    once and cached. ``weights`` may name packaged weights, such as "imagenet". These come with their ``mean`` and ``std`` (0.5
    otherwise), and if they are the frozen trunk they are not in the bundle. ``statistics`` (true, or options of
    :class:`~fedstill.local.reports.statistics.Statistics`) adds statistics of the site's features under the trunk, by class: with
    these, bundles can be fused without images.

    >>> import tempfile
    >>> packed = pack(Path(tempfile.mkdtemp()) / "a.fed", model="mlp", data="embedded:optdigits", epochs=1, lr=0.1)
    >>> packed.bundle.about.samples, packed.bundle.parts
    (1797, ('model', 'projection'))
    """
    out = Path(out)
    if out.is_dir():
        raise FedstillError(f"{out} is a folder; give a file to write to, such as {out / 'site.fed'}")
    if describe is None:
        describe = () if statistics else ("projection",)
    for wanted in describe:
        if wanted not in DESCRIPTIONS:
            raise unknown("description of a domain", wanted, DESCRIPTIONS)
    given = [text for text, value in (("a model", model), ("a program", program), ("a fused folder", base)) if value is not None]
    if len(given) != 1:
        both = f", not {' and '.join(given)}" if given else ""
        raise FedstillError(f"give one of a model, a program and the folder of a fused model to continue from{both}")
    if model is not None and ":" not in model:
        MODELS.get(model)  # an unknown model is a mistake of its own, whatever weights are named with it
    for what, rate in (("the learning rate (lr)", lr), ("backbone_rate", backbone_rate)):
        if not (math.isfinite(rate) and rate > 0):
            raise FedstillError(f"{what} must be a number above zero, not {rate}")
    wanted_statistics = _wanted(statistics, counts)
    fused = read_fused(base) if base is not None else None
    if fused is not None:
        image_size, channels = fused.about.shape[1], fused.about.shape[0]
        if fused.about.range is not None:  # its images of more than 8 bits are read as before
            reading = {"range": fused.about.range, **(reading or {})}
    images = load_images(data, image_size=image_size, channels=channels, seed=seed, reading=reading) if data is not None else None
    about = _about(images, fused, classes, image_size, channels, mean, std, name or out.stem)
    if images is not None and images.range is not None:
        about = about.model_copy(update={"range": images.range})
    train = train or (fused.about.trunk.train if fused is not None and fused.about.trunk is not None else "all")
    frozen = is_cut(train)
    packaged = str(weights) if weights is not None and model is not None and find_weights(model, str(weights)) else None
    if epochs is None:
        epochs = HEAD_EPOCHS if frozen and (packaged or fused is not None) else int(fused is not None and data is not None)
    samples = _labelled(images, about, epochs)
    own = samples if samples is not None or images is None else images.samples
    speaker: Network
    if program is not None:
        if frozen:
            raise FedstillError("a program cannot be cut into a frozen trunk and a head: omit train")
        about, parts, network = _program(Path(program), about, epochs)
        speaker = network
    else:
        new_head = frozen and bool(epochs)
        about, network = _network(about, fused, model, weights, packaged, norm, dict(options or {}), seed, epochs, new_head)
        about = about.model_copy(update=_scales(network, mean, std, fused))
        speaker = as_described(network, about)
        if frozen:
            about, speaker = _on_trunk(about, network, train, packaged)
            own = trunk_outputs(speaker, progress)(about.name, own) if own is not None else None
        elif about.trunk is not None:
            about = about.model_copy(update={"trunk": None})
            network.requires_grad_(True)
        if epochs and own is not None:
            sgd = Optimizer(name="sgd", lr=lr, momentum=0.9)
            local = Local(epochs=epochs, batch_size=batch_size, optimizer=sgd, backbone_rate=backbone_rate)
            fit(speaker, own, local, rng=stream(seed, "pack", "fit"))
        slim = about.trunk is not None and about.trunk.weights is not None
        parts = {"model": (speaker if slim else network).state_dict()}
    if wanted_statistics is not None:
        if own is None or not isinstance(speaker, Top):
            raise FedstillError("statistics describe the data's features under a frozen trunk: give data, and train = 'head'")
        parts["statistics"] = site_statistics(speaker, own, wanted_statistics)
        if not len(parts["statistics"]["counts"]):
            raise FedstillError(f"nothing to describe: no class has {wanted_statistics.min_samples} images (min_samples)")
        about = about.model_copy(update={"statistics": wanted_statistics})
    if images is not None and own is not None:
        spec = reference or (str(base) if base is not None else default_reference(about.shape))
        about, more = _described(about, speaker, images, own, describe, spec, against, seed, progress)
        parts = {**parts, **more}
        if counts:
            labels = samples.counts(len(about.classes)).tolist() if samples is not None else None
            about = about.model_copy(update={"samples": len(images.samples), "label_counts": labels})
    found = accuracy(speaker, own) if samples is not None and own is not None else None
    return Packed(write_bundle(out, about, **parts), found, trained=bool(epochs))


def _wanted(statistics: bool | Mapping[str, Any], counts: bool) -> Statistics | None:
    """The options of the requested statistics; None if there are none."""
    if statistics is False:
        return None
    if not counts:
        raise FedstillError("statistics reveal the number of images of each class: omit either the statistics or 'no counts'")
    return validated(Statistics, {} if statistics is True else statistics, "statistics")


def _scales(
    network: Network,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    fused: FusedFolder | None,
) -> dict[str, Any]:
    """The default normalisation: the one that the weights were trained with, or the fused model's."""
    if fused is not None:
        return {}
    missing = (("mean", mean, network.mean), ("std", std, network.std))
    return {name: _scale(brought) for name, asked, brought in missing if asked is None}


def _on_trunk(about: About, network: Network, train: str, packaged: str | None) -> tuple[About, Top]:
    """The part of the network that is trained, and the description of the trunk below it."""
    top = Top(network, cut_of(network, train))
    before = about.trunk  # of the fused model that training continues from
    kept = before.weights if before is not None and before.digest == top.digest else None
    trunk = Trunk(train=train, digest=top.digest, shape=list(top.output_shape(tuple(about.shape))), weights=packaged or kept)
    return about.model_copy(update={"trunk": trunk}), top


def _about(
    images: Images | None,
    fused: FusedFolder | None,
    classes: Sequence[str],
    image_size: int | None,
    channels: int | None,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    name: str,
) -> About:
    """What is known before the network: classes, size, normalisation. The architecture is filled in later."""
    mean, std = 0.5 if mean is None else mean, 0.5 if std is None else std
    if fused is not None:
        if classes:
            raise FedstillError("a model that continues from a fused one has its classes: name none")
        told = {"name": name, "based_on": fused.digest, "samples": None, "label_counts": None, "statistics": None}
        return fused.about.model_copy(update=told)
    known = list(classes) or list(images.classes if images is not None else ())
    if not known:
        raise FedstillError("the classes are not known: name them (classes), or give data with one folder per class")
    if len(known) == 1:
        raise FedstillError(f"there is only one class, '{known[0]}': nothing to classify; name all classes (classes)")
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
            raise FedstillError(f"{text} has {len(value)} numbers, but the images have {shape[0]} channels")
    return About(name=name, model=Architecture(name="?"), classes=known, shape=shape, mean=_scale(mean), std=_scale(std))


def _scale(value: float | Sequence[float]) -> float | list[float]:
    return value if isinstance(value, float | int) else list(value)


def _labelled(images: Images | None, about: About, epochs: int) -> Samples | None:
    """The site's samples with labels that index the bundle's classes, or None without labels."""
    if images is None or not images.classes:
        if epochs:
            raise FedstillError("training needs labelled images: data with one folder per class")
        return None
    return relabelled(images, about.classes, "the model does not know")


def _network(
    about: About,
    fused: FusedFolder | None,
    model: str | None,
    weights: str | Path | None,
    packaged: str | None,
    norm: str,
    options: dict[str, Any],
    seed: int,
    epochs: int,
    new_head: bool,
) -> tuple[About, Network]:
    if fused is not None:
        return about, fused.network()
    assert model is not None
    if packaged is not None and not epochs:
        ways = "train a head on data (--train head), or the whole network (--epochs)"
        raise FedstillError(f"the weights '{packaged}' of {model} have other classes: {ways}")
    if weights is None and not epochs:
        raise FedstillError("a model needs trained weights, or epochs to train for")
    if weights is not None and program_kind(weights) is not None:
        raise FedstillError(f"'{weights}' is a program, not weights: give it as the program, instead of a model and its weights")
    network = build(model, classes=len(about.classes), shape=about.shape, norm=norm, seed=seed, weights=packaged, **options)
    if weights is not None and packaged is None:
        load_weights(network, weights, whole=not new_head)
    return about.model_copy(update={"model": Architecture(name=model, norm=norm, options=options)}), network


def _program(path: Path, about: About, epochs: int) -> tuple[About, dict[str, State], Network]:
    if epochs:
        raise FedstillError("a program cannot be trained: omit epochs")
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
    own: Samples,
    describe: Sequence[str],
    reference: str,
    against: str | Path | None,
    seed: int,
    progress: Progress,
) -> tuple[About, dict[str, State]]:
    """The description of the domain; ``own`` are the inputs of the network: the images, or the outputs of a trunk."""
    parts: dict[str, State] = {}
    update: dict[str, Subspace | str | None] = {"subspace": None, "discriminator": None}
    if "projection" in describe:
        backbone = load_reference(reference)
        order = torch.randperm(len(images.samples), generator=stream(seed, "pack", "projection"))
        features = reference_features(reference, backbone, images.samples, about.name, progress)
        parts["projection"] = subspace(features(order), Projection())
        update["subspace"] = reference_id(reference, backbone)
    if "discriminator" in describe:
        if against is not None:
            channels, height, _ = about.shape
            read_as = images.reading
            others, told = load_images(against, image_size=height, channels=channels, seed=seed, reading=read_as), "images of "
            parts["discriminator"] = discriminator_for(network, own, others.samples)
            update["discriminator"] = told + others.name
        else:
            distortions = distorted(images.samples, stream(seed, "pack", "discriminator"))
            parts["discriminator"] = discriminator_for(network, own, distortions)
            update["discriminator"] = DISTORTIONS
    return about.model_copy(update=update), parts
