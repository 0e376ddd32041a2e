"""Domains in, tensors out: found, decoded once into uint8 tensors of a common shape, cached, cut to size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.data.cache import cache_folder, cached
from fedstill.data.images import image_shape, stack_images
from fedstill.data.raw import Raw, RawSplit
from fedstill.data.samples import Domain, Samples, stratified
from fedstill.data.sources import Source, find_source
from fedstill.data.text import TextOptions, tokenize

__all__ = ["aligned", "common_classes", "load_domain", "load_domains"]

Classes = Literal["same", "union", "position"]
TEST_SHARE = 0.2  # held out, class by class, where a source has no test set


def load_domain(
    source: str,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    seed: int = 0,
    text: TextOptions | None = None,
    cache: str | Path | None = None,
    name: str | None = None,
) -> Domain:
    """Load one domain as tensors.

    Args:
        source: ``embedded:NAME``, a folder or file (looked up under ``root`` first), or a name on the Hugging Face Hub.
            Folders hold Parquet, CSV, JSON or Arrow tables, or images in one folder a class.
        image_size: height and width; the first image's own where not given.
        channels: 1 or 3; the first image's own where not given.
        limit, test_limit: at most so many samples, drawn at random with the class shares of the whole.
        seed: of these draws.
        text: how text becomes token ids.
        cache: where decoded data is kept (default ``$FEDSTILL_CACHE`` or ``~/.cache/fedstill``).
        name: what the domain is called (default: the source).

    A source without a test set has a fixed, stratified fifth held out as one. Repeated loading maps the cached file
    into memory, so processes share its pages.

    >>> import tempfile
    >>> domain = load_domain("embedded:optdigits", image_size=16, limit=100, cache=tempfile.mkdtemp())
    >>> domain.train.x.shape, domain.train.x.dtype, domain.train.counts(10).tolist()
    (torch.Size([100, 1, 16, 16]), torch.uint8, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    folder = cache_folder(cache)
    found = find_source(source, root, folder)
    domain = _load(found, folder, image_size, channels, text or TextOptions(), name or source)
    return _limited(domain, limit, test_limit, seed)


def load_domains(
    sources: Sequence[str] | Mapping[str, str],
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    seed: int = 0,
    text: TextOptions | None = None,
    cache: str | Path | None = None,
    classes: Classes = "same",
    unlabelled: Collection[str] = (),
) -> dict[str, Domain]:
    """Load several domains in one common shape, with one common list of classes.

    ``sources`` is a list, or a mapping from domain names to sources. Images take the size of the first domain and three
    channels if any domain has colour, unless told otherwise. Labels are aligned by the classes' names; domains whose
    names differ are refused, or with ``classes="union"`` all get the union; with ``"position"`` class i of every domain is
    class i of the first whatever its name, which makes an unrelated data set a useless source on purpose. The domains
    named in ``unlabelled`` are used for their inputs alone, so their classes need not agree, and where they have no labels and no
    test set of their own none is held out. Every other domain needs a test set.

    >>> import tempfile
    >>> pair = load_domains(["embedded:mnist", "embedded:blended"], cache=tempfile.mkdtemp())
    >>> [tuple(domain.train.x.shape) for domain in pair.values()]
    [(1200, 3, 28, 28), (1200, 3, 28, 28)]
    """
    folder = cache_folder(cache)
    named = dict(sources) if isinstance(sources, Mapping) else {source: source for source in sources}
    if not named:
        raise FedstillError("no domains to load")
    if not isinstance(sources, Mapping) and len(named) < len(sources):
        twice = next(source for source in named if list(sources).count(source) > 1)
        raise FedstillError(f"domain '{twice}' is named twice; give each its own name: {{ a = '{twice}', b = '{twice}' }}")
    found = {name: find_source(source, root, folder) for name, source in named.items()}
    looks = {name: _look(source, folder) for name, source in found.items()}
    kinds = {name: look["kind"] for name, look in looks.items()}
    if len(set(kinds.values())) > 1:
        raise FedstillError(f"domains of different kinds cannot be mixed: {', '.join(f'{n} is {k}' for n, k in kinds.items())}")
    first = next(iter(looks.values()))
    for name, look in looks.items():
        if look["kind"] == "vector" and look["shape"] != first["shape"]:
            raise FedstillError(f"domain '{name}' has vectors of width {look['shape'][0]}, others of {first['shape'][0]}")
    size: int | tuple[int, int] | None = image_size
    if first["kind"] == "image":
        size = image_size or (first["shape"][1], first["shape"][2])
        channels = channels or max(look["shape"][0] for look in looks.values())
    options = text or TextOptions()
    domains = {name: _load(source, folder, size, channels, options, name) for name, source in found.items()}
    for name, domain in domains.items():
        if name in unlabelled and domain.whole is not None:
            domains[name] = Domain(name, domain.whole, domain.test, ())
        elif name not in unlabelled and len(domain.test) == 0:
            raise FedstillError(f"domain '{name}' has no test samples: {len(domain.train)} are too few to hold a fifth out")
    cut = {name: _limited(domain, limit, test_limit, seed) for name, domain in domains.items()}
    # a domain used without labels keeps its own, so that a pool can still be cut by class
    return {**cut, **_align({name: domain for name, domain in cut.items() if name not in unlabelled}, classes)}


def _look(source: Source, folder: Path) -> dict[str, Any]:
    """What the data is like by itself: images (of which shape) or text."""

    def look() -> tuple[dict[str, Tensor], dict[str, Any]]:
        facts: dict[str, Any] = {"kind": source.raw.kind}
        if source.raw.kind == "image":
            facts["shape"] = list(image_shape(_first_image(source)))
        elif source.raw.kind == "vector":
            facts["shape"] = list(np.shape(next(source.raw.train.rows())))
        return {}, facts

    return cached({**source.key, "what": "look"}, folder, look, source.name)[1]


def _first_image(source: Source) -> Image.Image:
    try:
        first: Image.Image = next(source.raw.train.rows())
    except StopIteration:
        raise FedstillError(f"'{source.name}' holds no training samples") from None
    except OSError as error:
        raise FedstillError(f"image 0 of '{source.name}' cannot be decoded: {error}") from error
    return first


def _load(
    source: Source,
    folder: Path,
    size: int | tuple[int, int] | None,
    channels: int | None,
    text: TextOptions,
    name: str,
) -> Domain:
    look = _look(source, folder)
    if channels not in (None, 1, 3):
        raise FedstillError(f"channels must be 1 or 3, not {channels}")
    if size is not None and min(size if isinstance(size, tuple) else (size,)) < 1:
        raise FedstillError(f"image_size must be at least 1, not {size}")
    if look["kind"] == "image":
        depth, height, width = look["shape"]
        height, width = (height, width) if size is None else size if isinstance(size, tuple) else (size, size)
        shape = (channels or depth, height, width)
        tensors, facts = cached(
            {**source.key, "shape": shape},
            folder,
            lambda: _decode(source, lambda split: stack_images(split.rows(), split.count, shape, source.name)),
            source.name,
        )
    elif look["kind"] == "vector":
        tensors, facts = cached(
            {**source.key, "vector": 1},
            folder,
            lambda: _decode(source, lambda split: torch.from_numpy(np.stack(list(split.rows())))),
            source.name,
        )
    else:
        tensors, facts = cached(
            {**source.key, "text": text.model_dump()},
            folder,
            lambda: _decode(source, lambda split: tokenize(list(split.rows()), text)),
            source.name,
        )
    if "whole.x" in tensors:
        whole, kept = Samples(tensors["whole.x"]), facts["kept"]
        return Domain(name, whole.take(slice(kept)), whole.take(slice(kept, None)), (), whole)
    train = Samples(tensors["train.x"], tensors.get("train.y"))
    test = Samples(tensors["test.x"], tensors.get("test.y"))
    return Domain(name, train, test, tuple(facts["classes"]))


def _decode(source: Source, read: Callable[[RawSplit], Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    raw: Raw = source.raw
    if raw.train.count == 0:
        raise FedstillError(f"'{source.name}' holds no training samples")
    parts = {"train": (read(raw.train), raw.train.labels)}
    if raw.test is not None:
        parts["test"] = (read(raw.test), raw.test.labels)
    else:
        x, labels = parts["train"]
        strata = np.zeros(len(x), dtype=np.int64) if labels is None else labels
        held = stratified(strata, round(TEST_SHARE * len(x)), np.random.default_rng(0))
        kept = np.setdiff1d(np.arange(len(x)), held, assume_unique=True)
        if labels is None:  # one tensor, so that all of it can be had without a copy
            return {"whole.x": x[torch.from_numpy(np.concatenate([kept, held]))]}, {"classes": [], "kept": len(kept)}
        for part, index in (("train", kept), ("test", held)):
            parts[part] = (x[torch.from_numpy(index)], None if labels is None else labels[index])
    tensors = {f"{part}.x": x for part, (x, _) in parts.items()}
    tensors |= {f"{part}.y": torch.from_numpy(y.astype(np.int64)) for part, (_, y) in parts.items() if y is not None}
    return tensors, {"classes": list(raw.classes)}


def _limited(domain: Domain, limit: int | None, test_limit: int | None, seed: int) -> Domain:
    parts = []
    for stream, (samples, most) in enumerate(((domain.train, limit), (domain.test, test_limit))):
        if most is not None and most < 1:
            raise FedstillError(f"a limit must be at least 1, not {most}")
        if most is not None and most < len(samples):
            strata = np.zeros(len(samples), dtype=np.int64) if samples.y is None else samples.y.numpy()
            samples = samples.take(stratified(strata, most, np.random.default_rng([seed, stream])))
        parts.append(samples)
    return Domain(domain.name, parts[0], parts[1], domain.classes)


def _align(domains: dict[str, Domain], classes: Classes) -> dict[str, Domain]:
    """One list of classes for all labelled domains, and labels that count along it."""
    labelled = {name: domain for name, domain in domains.items() if domain.classes}
    if not labelled:
        return domains
    target = common_classes({name: domain.classes for name, domain in labelled.items()}, classes)
    if len(target) == 1:
        raise FedstillError(f"there is one class only, '{target[0]}', in {', '.join(labelled)}: nothing to tell apart")
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
    """``domain`` with its labels counted along ``target``, which has all of its classes."""
    own = target[: len(domain.classes)] if classes == "position" else domain.classes
    if own == target:
        return Domain(domain.name, domain.train, domain.test, target)
    places = torch.tensor([target.index(c) for c in own])

    def moved(samples: Samples) -> Samples:
        return samples if samples.y is None else Samples(samples.x, places[samples.y])

    return Domain(domain.name, moved(domain.train), moved(domain.test), target)
