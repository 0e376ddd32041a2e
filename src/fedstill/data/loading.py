"""Load domains: find them, decode them once into tensors of a common shape, cache them, and limit their size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.data.cache import cache_folder, cached
from fedstill.data.columns import plan_of, settled
from fedstill.data.depth import domain_range
from fedstill.data.images import NAMED, Unreadable, cannot_decode, left_out, stack_images
from fedstill.data.looks import Seen, look
from fedstill.data.raw import Raw, RawSplit
from fedstill.data.reading import Reading
from fedstill.data.rows import Plan, encoded
from fedstill.data.samples import Domain, Samples, held_out, stratified
from fedstill.data.sources import Source, find_source
from fedstill.data.text import TextOptions, tokenize

__all__ = ["aligned", "common_classes", "load_domain", "load_domains"]

Classes = Literal["same", "union", "position"]
Progress = Callable[[str, int, int], None]  # told what is done, how many samples of it, and of how many


def load_domain(
    source: str,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    seed: int = 0,
    reading: Reading | None = None,
    cache: str | Path | None = None,
    name: str | None = None,
) -> Domain:
    """Load one domain as tensors.

    Args:
        source: ``embedded:NAME``, a folder or file (looked up under ``root`` first), or a name on the Hugging Face Hub.
            Folders hold Parquet, CSV, JSON or Arrow tables, NumPy arrays, or images in one folder per class.
        image_size: height and width; by default those of the first image.
        channels: 1 or 3; by default the most that any image has.
        limit, test_limit: at most this many samples, drawn at random with the class shares of the whole.
        seed: of these draws.
        reading: how the source is interpreted, and how values become inputs.
        cache: where decoded data is kept (default ``$FEDSTILL_CACHE`` or ``~/.cache/fedstill``).
        name: the domain's name (default: the source).

    If a source has no test set, a fixed, stratified fifth is held out as one. Repeated loading maps the cached file
    into memory, so processes share its pages.

    >>> import tempfile
    >>> domain = load_domain("embedded:optdigits", image_size=16, limit=100, cache=tempfile.mkdtemp())
    >>> domain.train.x.shape, domain.train.x.dtype, domain.train.counts(10).tolist()
    (torch.Size([100, 1, 16, 16]), torch.uint8, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    called, reading, folder = name or source, reading or Reading(), cache_folder(cache)
    found = {called: find_source(source, root, folder, reading)}
    looks = {called: look(found[called], folder, reading)}
    domains = _loaded(found, looks, folder, image_size, channels, reading)
    cut = {called: _limited(domains[called], limit, test_limit, seed)}
    return _ready(cut, looks, reading, [called])[called]


def load_domains(
    sources: Sequence[str] | Mapping[str, str],
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    seed: int = 0,
    reading: Reading | None = None,
    cache: str | Path | None = None,
    classes: Classes = "same",
    unlabelled: Collection[str] = (),
    measured: Collection[str] | None = None,
    progress: Progress = lambda what, done, of: None,
) -> dict[str, Domain]:
    """Load several domains in one common shape, with one common list of classes.

    ``sources`` is a list, or a mapping from domain names to sources. Images take the size of the first domain and three
    channels if any domain has colour, unless set otherwise. Labels are matched by the classes' names. Domains whose names
    differ are refused; with ``classes="union"`` all get the union. With ``"position"``, class i of every domain is class i of
    the first whatever its name, which makes an unrelated data set a useless source on purpose. The domains named in
    ``unlabelled`` are used for their inputs alone, so their classes need not agree, and no test set is held out of them if they
    have neither labels nor a test set. Every other domain needs a test set. Tables have one plan of columns; the shared means and
    variances of numbers are those of the domains ``measured`` (by default all but the ``unlabelled``). ``progress`` is told while
    images are decoded.

    >>> import tempfile
    >>> pair = load_domains(["embedded:mnist", "embedded:blended"], cache=tempfile.mkdtemp())
    >>> [tuple(domain.train.x.shape) for domain in pair.values()]
    [(1200, 3, 28, 28), (1200, 3, 28, 28)]
    """
    reading, folder = reading or Reading(), cache_folder(cache)
    named = dict(sources) if isinstance(sources, Mapping) else {source: source for source in sources}
    if not named:
        raise FedstillError("no domains to load")
    if not isinstance(sources, Mapping) and len(named) < len(sources):
        twice = next(source for source in named if list(sources).count(source) > 1)
        raise FedstillError(f"domain '{twice}' is named twice; give each its own name: {{ a = '{twice}', b = '{twice}' }}")
    found = {name: find_source(source, root, folder, reading) for name, source in named.items()}
    looks = {name: look(source, folder, reading) for name, source in found.items()}
    _check_alike(looks, reading, unlabelled)
    domains = _loaded(found, looks, folder, image_size, channels, reading, progress)
    for name, domain in domains.items():
        if name in unlabelled and domain.whole is not None:
            domains[name] = replace(domain, train=domain.whole, classes=())
        elif name not in unlabelled and len(domain.test) == 0:
            raise FedstillError(f"domain '{name}' has no test samples: {len(domain.train)} are too few to hold a fifth out")
    cut = {name: _limited(domain, limit, test_limit, seed) for name, domain in domains.items()}
    ready = _ready(cut, looks, reading, measured or [name for name in named if name not in unlabelled] or list(named))
    # a domain used without labels keeps its own, so that a pool can still be cut by class
    return {**ready, **_align({name: domain for name, domain in ready.items() if name not in unlabelled}, classes)}


def _check_alike(looks: Mapping[str, Seen], reading: Reading, unlabelled: Collection[str]) -> None:
    """Refuse domains that do not fit together, and those without labels."""
    kinds = {name: seen.kind for name, seen in looks.items()}
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        hint = " (data.kind says how a table is read)" if set(kinds.values()) == {"text", "table"} else ""
        raise FedstillError(f"domains of different kinds cannot be mixed: {listed}{hint}")
    first = next(iter(looks.values()))
    for name, seen in looks.items():
        if seen.width != first.width:
            raise FedstillError(f"domain '{name}' has vectors of width {seen.width}, others of {first.width}")
        if seen.kind == "table" and not seen.labelled and name not in unlabelled:
            listed = ", ".join(column.name for column in seen.columns)
            wanted = f"no column '{reading.label}' (data.label)" if reading.label else "no label column: set data.label"
            raise FedstillError(f"domain '{name}' has {wanted}; its columns are {listed}")


# -- decoding --------------------------------------------------------------------------------------------------------------------


def _loaded(
    found: Mapping[str, Source],
    looks: Mapping[str, Seen],
    folder: Path,
    size: int | None,
    channels: int | None,
    reading: Reading,
    progress: Progress = lambda what, done, of: None,
) -> dict[str, Domain]:
    """The domains in one shape, from the cache where they were decoded before; numbers as they are, NaN where one is missing."""
    if channels not in (None, 1, 3):
        raise FedstillError(f"channels must be 1 or 3, not {channels}")
    if size is not None and size < 1:
        raise FedstillError(f"image_size must be at least 1, not {size}")
    images = [seen.image for seen in looks.values() if seen.image is not None]
    shape = (0, 0, 0)
    if images:
        _, height, width = images[0].shape
        shape = (channels or max(image.shape[0] for image in images), size or height, size or width)
    plan = plan_of({name: seen.columns for name, seen in looks.items()}) if _kind(looks) == "table" else None
    domains = {}
    for name, source in found.items():
        key, read = _way(looks[name], source, shape, plan, reading, name, progress)
        make = partial(_decode, source, read)
        tensors, facts = cached({**source.key, **key}, folder, make, source.name)
        if facts["unreadable"] and facts["place"] != source.place:  # the same data elsewhere: its images are named by their place
            tensors, facts = cached({**source.key, **key, "place": source.place}, folder, make, source.name)
        domain = _domain(name, tensors, facts, reading, plan)
        domains[name] = replace(domain, notes=(*_of_empty(name, source.empty()), *domain.notes))
    return domains


def _kind(looks: Mapping[str, Seen]) -> str:
    return next(iter(looks.values())).kind


Read = Callable[[RawSplit], tuple[Tensor, np.ndarray | None, Unreadable]]  # also the rows that were kept, if not all


def _way(
    seen: Seen,
    source: Source,
    shape: tuple[int, int, int],
    plan: Plan | None,
    reading: Reading,
    name: str,
    progress: Progress,
) -> tuple[dict[str, Any], Read]:
    """How a source is decoded, and what the result depends on."""
    if seen.image is not None:
        image = seen.image
        limits = reading.range if image.deep else None
        if image.depth is not None:
            limits = domain_range(image.depth, reading.range, name)
        own, background = reading.range is None, image.background
        key = {"shape": shape, "background": background, "limits": limits, "own": own or not image.deep}

        def read(split: RawSplit) -> tuple[Tensor, np.ndarray | None, Unreadable]:
            if split.pixels is not None and split.pixels.shape[1:] == shape:
                return torch.from_numpy(np.ascontiguousarray(split.pixels)), None, []
            told = lambda done: progress(f"decoding {name}", done, split.count)
            return stack_images(split.rows(), split.count, shape, background=background, limits=limits, own=own, done=told)

        return key, read
    if plan is not None:
        return {"table": asdict(plan)}, lambda split: (encoded(_columns(split), plan), None, [])
    if seen.kind == "vector":
        return {"vector": 2}, lambda split: (torch.from_numpy(np.stack(list(split.rows()))), None, [])
    text = reading.text or TextOptions()
    return {"text": text.model_dump()}, lambda split: (tokenize(list(split.rows()), text), None, [])


def _columns(split: RawSplit) -> dict[str, np.ndarray]:
    assert split.columns is not None
    return split.columns()


def _decode(source: Source, read: Read) -> tuple[dict[str, Tensor], dict[str, Any]]:
    raw: Raw = source.raw
    parts: dict[str, tuple[Tensor, np.ndarray | None]] = {}
    lost: Unreadable = []
    for part, split in (("train", raw.train), ("test", raw.test)):
        if split is not None:
            x, kept, unreadable = read(split)
            labels = split.labels if kept is None or split.labels is None else split.labels[kept]
            parts[part], lost = (x, labels), lost + unreadable
    facts: dict[str, Any] = {"classes": list(raw.classes), "unreadable": lost, "place": source.place}
    x, labels = parts["train"]
    if raw.test is None:
        strata = np.zeros(len(x), dtype=np.int64) if labels is None else labels
        held = held_out(strata)
        rest = np.setdiff1d(np.arange(len(x)), held, assume_unique=True)
        if labels is None:  # one tensor, so that all of it can be had without a copy
            return {"whole.x": x[torch.from_numpy(np.concatenate([rest, held]))]}, {**facts, "classes": [], "kept": len(rest)}
        for part, index in (("train", rest), ("test", held)):
            parts[part] = (x[torch.from_numpy(index)], labels[index])
    tensors = {f"{part}.x": x for part, (x, _) in parts.items()}
    tensors |= {f"{part}.y": torch.from_numpy(y.astype(np.int64)) for part, (_, y) in parts.items() if y is not None}
    return tensors, facts


def _domain(name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], reading: Reading, plan: Plan | None) -> Domain:
    lost = facts["unreadable"]
    if lost and reading.unreadable == "error":
        raise cannot_decode(*lost[0])
    notes = (left_out(name, [image for image, _ in lost]),) if lost else ()
    if len(tensors.get("whole.x", tensors.get("train.x", ()))) == 0:
        raise FedstillError(f"none of the images of '{name}' can be decoded")
    columns = plan.names if plan is not None else ()
    if "whole.x" in tensors:
        whole, kept = Samples(tensors["whole.x"]), facts["kept"]
        return Domain(name, whole.take(slice(kept)), whole.take(slice(kept, None)), (), whole, columns, notes=notes)
    train = Samples(tensors["train.x"], tensors.get("train.y"))
    test = Samples(tensors["test.x"], tensors.get("test.y"))
    return Domain(name, train, test, tuple(facts["classes"]), columns=columns, notes=notes)


def _of_empty(name: str, folders: Sequence[str]) -> list[str]:
    """The note on class folders without images.

    >>> _of_empty("photos", ["horse"])
    ["'photos': the class folder 'horse' holds no images and is left out"]
    """
    if not folders:
        return []
    named = ", ".join(f"'{folder}'" for folder in folders[:NAMED]) + (", ..." if len(folders) > NAMED else "")
    one = len(folders) == 1
    folder, holds = ("folder", "holds no images and is") if one else ("folders", "hold no images and are")
    return [f"'{name}': the class {folder} {named} {holds} left out"]


def _ready(
    domains: Mapping[str, Domain], looks: Mapping[str, Seen], reading: Reading, measured: Collection[str]
) -> dict[str, Domain]:
    """Domains whose vectors a network can take; images and texts stay as they are."""
    kind = _kind(looks)
    if kind not in ("table", "vector"):
        return dict(domains)
    prepared = all(seen.prepared for seen in looks.values())
    standardise = reading.standardise or ("none" if prepared else "shared")
    if kind == "vector":
        missing = sorted({place for seen in looks.values() for place in seen.missing})
        return settled(domains, next(iter(looks.values())).width, missing, standardise, measured)
    plan = plan_of({name: seen.columns for name, seen in looks.items()})
    return settled(domains, len(plan.numbers), plan.missing, standardise, measured, plan)


def _limited(domain: Domain, limit: int | None, test_limit: int | None, seed: int) -> Domain:
    parts = []
    for stream, (samples, most) in enumerate(((domain.train, limit), (domain.test, test_limit))):
        if most is not None and most < 1:
            raise FedstillError(f"a limit must be at least 1, not {most}")
        if most is not None and most < len(samples):
            strata = np.zeros(len(samples), dtype=np.int64) if samples.y is None else samples.y.numpy()
            samples = samples.take(stratified(strata, most, np.random.default_rng([seed, stream])))
        parts.append(samples)
    return replace(domain, train=parts[0], test=parts[1], whole=None)


# -- classes ---------------------------------------------------------------------------------------------------------------------


def _align(domains: dict[str, Domain], classes: Classes) -> dict[str, Domain]:
    """One list of classes for all labelled domains, and labels that are indices into it."""
    labelled = {name: domain for name, domain in domains.items() if domain.classes}
    if not labelled:
        return domains
    target = common_classes({name: domain.classes for name, domain in labelled.items()}, classes)
    if len(target) == 1:
        raise FedstillError(f"there is only one class, '{target[0]}', in {', '.join(labelled)}: nothing to distinguish")
    return {name: aligned(domain, target, classes) if domain.classes else domain for name, domain in domains.items()}


def common_classes(held: Mapping[str, Sequence[str]], classes: Classes) -> tuple[str, ...]:
    """One list of classes for all: the first domain's, or with ``classes="union"`` every class that any domain has.

    >>> common_classes({"a": ["cat", "dog"], "b": ["dog", "emu"]}, "union")
    ('cat', 'dog', 'emu')
    """
    first = next(iter(held))
    common = list(held[first])
    for name, own in held.items():
        if classes == "position":
            if len(own) > len(common):
                raise FedstillError(f"domain '{name}' has {len(own)} classes, '{first}' only {len(common)}")
        elif classes == "union":
            common += [c for c in own if c not in common]
        elif set(own) != set(common):
            odd = sorted(set(own) ^ set(common))
            more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
            raise FedstillError(
                f"domains '{first}' and '{name}' do not have the same classes: only one has {', '.join(odd[:5])}{more} "
                "(classes = 'union' takes them all)"
            )
    return tuple(common)


def aligned(domain: Domain, target: tuple[str, ...], classes: Classes) -> Domain:
    """``domain`` with its labels as indices into ``target``, which holds all of its classes."""
    own = target[: len(domain.classes)] if classes == "position" else domain.classes
    if own == target:
        return replace(domain, classes=target)
    places = torch.tensor([target.index(c) for c in own])

    def moved(samples: Samples) -> Samples:
        return samples if samples.y is None else Samples(samples.x, places[samples.y])

    return replace(domain, train=moved(domain.train), test=moved(domain.test), classes=target)
