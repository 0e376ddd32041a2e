"""The centre's turn: several trained models become one, by distillation on unlabelled inputs."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedstill.algorithm import Reply
from fedstill.bundles.bundle import About, Architecture, Bundle, read_bundle, scale_fault
from fedstill.bundles.images import Images, load_images, relabelled
from fedstill.bundles.reference import load_reference, reference_id
from fedstill.core.errors import FedstillError, first_line
from fedstill.core.message import State, clone
from fedstill.core.streams import stream
from fedstill.data.images import resized
from fedstill.data.samples import Samples
from fedstill.fusion.distillation.distil import Distilled, distil
from fedstill.fusion.distillation.options import Distillation
from fedstill.fusion.ensemble import Space, Table, ensemble_table
from fedstill.fusion.merges import weighted_sum
from fedstill.fusion.teacher import Teacher
from fedstill.fusion.weightings import Weighting, WeightingContext, make_weighting, report_of
from fedstill.models import build
from fedstill.models.network import Network
from fedstill.models.predict import accuracy, predict_logits
from fedstill.models.wrapped import Whole

__all__ = ["DISTILLATION", "Figure", "Fused", "fuse"]

# A student from scratch needs its statistics; one that starts from a trained model keeps them (chosen in `fuse`).
DISTILLATION: Mapping[str, Any] = {"steps": 2000, "patience": 500, "check_every": 50}
log = logging.getLogger("fedstill")

PROBE = 1024  # pool samples on which possible starts are compared

Inputs = Tensor | Samples | Dataset | DataLoader | str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Figure:
    """One row of the table before and after: who, and the accuracy (0..1) on each labelled set."""

    who: str
    kind: str  # teacher, average, ensemble, start or student
    accuracy: dict[str, float]

    @property
    def mean(self) -> float:
        """The mean over the sets."""
        return fmean(self.accuracy.values())


@dataclass(frozen=True)
class Fused:
    """One model out of several, and what is known of how it came about."""

    student: nn.Module  # the module that was given, or a fedstill network
    network: Network = field(repr=False)
    classes: tuple[str, ...]
    teachers: dict[str, float]  # mean weight over the pool
    start: str  # where the student started
    distilled: Distilled
    figures: tuple[Figure, ...] = ()
    weights_by_set: dict[str, dict[str, float]] = field(default_factory=dict)  # each teacher's mean weight on each labelled set
    about: About | None = field(default=None, repr=False)  # None where the student is a module of the caller's own
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    sources: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def save(self, folder: str | Path, *, onnx: bool = False) -> Path:
        """Write the folder: model.safetensors, fused.json, MODEL_CARD.md, and model.onnx on request."""
        from fedstill.bundles.card import save

        return save(self, Path(folder), onnx=onnx)


@dataclass(frozen=True)
class _Member:
    """A teacher before the classes of all are known."""

    name: str
    load: Callable[[], Network]
    classes: tuple[str, ...] | None
    key: str  # equal for networks whose weights can be averaged
    state: Callable[[], State] | None
    bundle: Bundle | None = None

    @property
    def reply(self) -> Reply | None:
        return self.bundle.reply() if self.bundle is not None else None


def fuse(
    teachers: Sequence[Any] | Mapping[str, Any],
    unlabelled: Inputs,
    student: nn.Module | str | None = None,
    *,
    weighting: str = "uniform",
    weighting_options: Mapping[str, Any] | None = None,
    validation: Samples | str | Path | Sequence[str | Path] | Mapping[str, Samples | str | Path] | None = None,
    ensemble: Space = "probabilities",
    distillation: Mapping[str, Any] | None = None,
    start: str = "auto",
    classes: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    student_options: Mapping[str, Any] | None = None,
    norm: str = "batch",
    image_size: int | None = None,
    limit: int | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    reference: str | None = None,
    trust_code: bool = False,
    device: str | torch.device = "cpu",
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> Fused:
    """Fuse trained classifiers into ``student`` by distilling their ensemble on ``unlabelled`` inputs.

    Args:
        teachers: modules from inputs to logits, bundles or their paths, or functions that bring a module when its turn comes;
            a list, or a mapping from names. They are used one at a time and left as they are.
        unlabelled: a tensor, :class:`Samples`, a ``Dataset`` or ``DataLoader`` (labels in it are ignored), or the names of
            folders, tables or embedded domains. Float inputs go to every model as they are; uint8 images are resized and
            normalised for each (``mean``, ``std`` for plain modules: 0.5 and 0.5 unless told).
        student: a module, trained in place, or the name of a built-in model; the first teacher's architecture by default.
        weighting: how much each teacher counts for each sample (``fedstill.fusion.weightings``); those that look
            at domains need bundles that describe theirs.
        validation: labelled samples, one set or several by name: for early stopping and the figures.
        ensemble: what is averaged, "probabilities", "logits" or "losses".
        distillation: options of :class:`fedstill.fusion.distillation.options.Distillation` that differ from fuse's own.
        start: where the student starts: "auto" takes whichever agrees most often with the ensemble on the pool: the average of
            the teachers with its architecture, each of them, or its own weights; or "average", "own", or a teacher's name.
        classes: class names of module teachers, the same for all or by teacher's name. Classes are aligned by name, and a
            teacher is silent on those that it does not know.
        reference: the backbone that the bundles' projections were made with, where it is not a built-in one.
        trust_code: open bundles that hold programs or name networks of one's own.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> sites = [nn.Linear(4, 3) for _ in range(2)]
    >>> fused = fuse(teachers=sites, unlabelled=torch.randn(64, 4), student=nn.Linear(4, 3), distillation={"steps": 50})
    >>> fused.teachers, fused.distilled.last_loss < 0.1
    ({'teacher 1': 0.5, 'teacher 2': 0.5}, True)
    """
    torch_device = _usable(device)
    wrong = scale_fault(0.5 if mean is None else mean, 0.5 if std is None else std)
    if wrong is not None:
        raise FedstillError(wrong)
    options = _options(distillation)
    opened = _opened(teachers, trust_code)
    if not opened:
        raise FedstillError("there is nothing to fuse: give at least one teacher")
    shape = _pool_shape(opened, image_size)
    pool = _pool(unlabelled, shape, limit, seed)
    shape = tuple(pool.x.shape[1:])
    members = _members(opened, shape, classes, mean, std, trust_code, torch_device)
    union = _union(members)
    _warn_of_strangers(members)
    _check_scales(pool, members)
    network, about = _student(student, members, union, shape, norm, dict(student_options or {}), mean, std, seed)
    network.to(torch_device)
    tests = _tests(validation, union, shape, seed)
    board = _teachers(members, union)
    scheme = _weighting(weighting, dict(weighting_options or {}), board, members, reference, torch_device, seed)
    speak = {"space": ensemble, "temperature": options.temperature, "direction": options.direction}
    table = ensemble_table(board, pool, scheme, progress=lambda k, of: progress("teachers", k, of), **speak)  # type: ignore[arg-type]
    _check_table(table, members, pool)
    averages = _averages(members)
    figures, weights_by_set = _figures_before(board, averages, members, union, tests, scheme, speak, torch_device)
    begun, trained = _start(start, network, about, members, averages, union, pool, table)
    if options.student_norm == "frozen" and not trained and "student_norm" not in (distillation or {}):
        options = options.model_copy(update={"student_norm": "train"})  # its own statistics are those of no data yet
    figures += _figure(f"student before ({begun})", "start", network, tests)
    done = distil(
        network,
        pool,
        table,
        options,
        rng=stream(seed, "fuse", "distil"),
        validation=_together(tests),
        progress=lambda step, of: progress("student", step, of),
    )
    _check_student(network, done, pool)
    figures += _figure("student", "student", network, tests)
    network.eval()
    return Fused(
        student=network.body if isinstance(network, Whole) else network,
        network=network,
        classes=union,
        teachers=_shares(members, table),
        start=begun,
        distilled=done,
        figures=tuple(figures),
        weights_by_set=weights_by_set,
        about=about,
        settings={
            "weighting": weighting,
            "ensemble": ensemble,
            "seed": seed,
            "pool": len(pool),
            "shape": list(shape),
            "distillation": options.model_dump(mode="json", exclude_none=True),
        },
        sources=tuple(_source(member) for member in members),
    )


# -- what is fused --------------------------------------------------------------------------------------------------------


def _options(given: Mapping[str, Any] | None) -> Distillation:
    from fedstill.core.options import validated

    options = validated(Distillation, {**DISTILLATION, **(given or {})}, "distillation")
    if options.fresh:
        raise FedstillError("distillation.fresh is for runs; fuse computes the teachers' table once")
    return options


def _usable(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # an unknown name; torch without CUDA asserts
        raise FedstillError(f"device '{device}' cannot be used: {first_line(error)}") from error


def _opened(teachers: Sequence[Any] | Mapping[str, Any], trust_code: bool) -> list[tuple[str | None, Any]]:
    """Bundles opened and checked, everything else as it is, so that a bad file fails before any work."""
    named = list(teachers.items()) if isinstance(teachers, Mapping) else [(None, teacher) for teacher in teachers]
    found = []
    for name, teacher in named:
        if isinstance(teacher, str | Path):
            teacher = read_bundle(teacher)
        if isinstance(teacher, Bundle) and teacher.about.code is not None and not trust_code:
            teacher.network(trust_code)  # raises, and says why
        found.append((name, teacher))
    return found


def _pool_shape(opened: Sequence[tuple[str | None, Any]], image_size: int | None) -> tuple[int, ...] | None:
    """The shape the pool is loaded in: the largest that a bundle was trained on, or as asked."""
    shapes = [bundle.about.shape for _, bundle in opened if isinstance(bundle, Bundle)]
    shapes = [shape for shape in shapes if len(shape) == 3]
    if not shapes:
        return None if image_size is None else (3, image_size, image_size)
    height, width = (image_size or max(shape[side] for shape in shapes) for side in (1, 2))
    return (max(shape[0] for shape in shapes), height, width)


def _pool(unlabelled: Inputs, shape: tuple[int, ...] | None, limit: int | None, seed: int) -> Samples:
    sources = [unlabelled] if isinstance(unlabelled, str | Path) else unlabelled
    if isinstance(sources, list | tuple) and all(isinstance(source, str | Path) for source in sources):
        pool = _pool_from(sources, shape, limit, seed)
    else:
        pool = _inputs(unlabelled)  # type: ignore[arg-type]
    if len(pool) == 0:
        raise FedstillError("there are no unlabelled samples to distil on")
    if shape is not None and pool.x.dtype == torch.uint8:
        pool = Samples(resized(pool.x, shape))
    return pool


def _pool_from(sources: Sequence[str | Path], shape: tuple[int, ...] | None, limit: int | None, seed: int) -> Samples:
    """The images of all sources in one shape: that of the first where none is asked for."""
    parts: list[Tensor] = []
    for source in sources:
        size, channels = (shape[1], shape[0]) if shape is not None else (None, None)
        x = load_images(source, image_size=size, channels=channels, seed=seed).samples.x
        shape = tuple(x.shape[1:])
        parts.append(x)
    x = torch.cat(parts) if parts else torch.empty(0)
    if limit is not None and limit < len(x):
        x = x[torch.randperm(len(x), generator=stream(seed, "fuse", "pool"))[:limit]]
    return Samples(x)


def _inputs(given: Tensor | Samples | Dataset | DataLoader) -> Samples:
    """The inputs of anything that torch iterates over; what comes with them is left behind."""
    if isinstance(given, Samples):
        return given.unlabelled()
    if isinstance(given, Tensor):
        return Samples(given)
    loader = given if isinstance(given, DataLoader) else DataLoader(given, batch_size=256)
    parts: list[Tensor] = []
    for batch in loader:
        x = batch
        if isinstance(batch, Mapping):
            x = next((value for value in batch.values() if isinstance(value, Tensor) and value.ndim > 1), None)
        elif isinstance(batch, list | tuple):
            x = batch[0]
        if not isinstance(x, Tensor):
            raise FedstillError(f"the unlabelled data gives {type(x).__name__}, not tensors: add a transform to tensors")
        parts.append(x)
    return Samples(torch.cat(parts)) if parts else Samples(torch.empty(0))


def _members(
    opened: Sequence[tuple[str | None, Any]],
    shape: tuple[int, ...],
    classes: Sequence[str] | Mapping[str, Sequence[str]] | None,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    trust_code: bool,
    device: torch.device,
) -> list[_Member]:
    members: list[_Member] = []
    for number, (given, teacher) in enumerate(opened, 1):
        if isinstance(teacher, Bundle):
            name = given or teacher.name
            member = _of_bundle(name, teacher, trust_code, device)
        elif isinstance(teacher, nn.Module) or callable(teacher):
            name = given or f"teacher {number}"
            known = classes.get(name) if isinstance(classes, Mapping) else classes
            member = _of_module(name, teacher, shape, known, mean, std, device)
        else:
            raise FedstillError(f"teacher {number} is a {type(teacher).__name__}, not a module, a bundle or a path")
        if any(other.name == name for other in members):
            raise FedstillError(f"two teachers are called '{name}': name them by a mapping, or pack them under other names")
        members.append(member)
    return members


def _of_bundle(name: str, bundle: Bundle, trust_code: bool, device: torch.device) -> _Member:
    about = bundle.about
    key = json.dumps([about.model.model_dump() if about.model else bundle.digest, about.classes, about.shape], sort_keys=True)
    state = (lambda: bundle.state) if about.model is not None else None
    return _Member(name, lambda: bundle.network(trust_code).to(device), tuple(about.classes), key, state, bundle)


def _of_module(
    name: str,
    teacher: nn.Module | Callable[[], nn.Module],
    shape: tuple[int, ...],
    known: Sequence[str] | None,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    device: torch.device,
) -> _Member:
    lazily = not isinstance(teacher, nn.Module)

    def load() -> Network:
        module = teacher() if lazily else teacher
        if not isinstance(module, nn.Module):
            raise FedstillError(f"{name} brought a {type(module).__name__}, not a module")
        network = _as_network(module.to(device), shape, name)
        if known is not None and network.classes != len(known):
            raise FedstillError(f"{name} has {network.classes} outputs, and {len(known)} classes are named")
        if mean is not None:
            network.mean = mean
        if std is not None:
            network.std = std
        return network

    network = load()
    state = network.state_dict()
    kind = type(network.body if isinstance(network, Whole) else network).__qualname__
    key = json.dumps([kind, {k: list(v.shape) for k, v in state.items()}, list(known or [])])
    names = tuple(known) if known is not None else tuple(str(i) for i in range(network.classes))
    return _Member(name, load, names, key, lambda: load().state_dict())


def _as_network(module: nn.Module, shape: tuple[int, ...], whose: str) -> Network:
    return module if isinstance(module, Network) else Whole(module, whose, shape)


def _union(members: Sequence[_Member]) -> tuple[str, ...]:
    """Every class that some teacher knows, in order of first appearance."""
    return tuple(dict.fromkeys(name for member in members for name in member.classes or ()))


def _warn_of_strangers(members: Sequence[_Member]) -> None:
    """Say which teachers share no class with any other: more often names that are spelled differently than different classes."""
    known = Counter(name for member in members for name in member.classes or ())
    alone = [member for member in members if all(known[name] == 1 for name in member.classes or ())]
    if alone and len(members) > 1:
        named = "; ".join(f"{m.name} ({', '.join((m.classes or ())[:5])}{', ...' * (len(m.classes or ()) > 5)})" for m in alone)
        log.warning("warning: teachers that share no class with any other: %s; are the classes named alike?", named)


def _check_table(table: Table, members: Sequence[_Member], pool: Samples) -> None:
    if bool(torch.isfinite(table.targets).all()) and bool(torch.isfinite(table.weights).all()):
        return
    for member in members:
        if not bool(torch.isfinite(predict_logits(member.load(), pool)).all()):
            raise FedstillError(f"{member.name} says things of the pool that are not finite numbers: leave this teacher out")
    raise FedstillError("the teachers' targets are not finite numbers: the weighting has broken down")


def _check_student(network: Network, done: Distilled, pool: Samples) -> None:
    """A student that diverged is never handed over, nor written over a good one."""
    lost = done.steps > 0 and not math.isfinite(done.last_loss)
    # a buffer may hold infinities of its own, such as a mask's
    broken = any(not bool(torch.isfinite(p).all()) for p in network.parameters()) or any(
        bool(torch.isnan(b).any()) for b in network.buffers()
    )
    # the loss is that before the last step, which may have been one too many
    if lost or broken or not bool(torch.isfinite(predict_logits(network, pool.take(slice(PROBE)))).all()):
        raise FedstillError(
            f"distillation diverged (loss {done.last_loss}) after {done.steps} steps; lower its rate, optimizer.lr"
        )


def _check_scales(pool: Samples, members: Sequence[_Member]) -> None:
    scales = {
        json.dumps([m.bundle.about.mean, m.bundle.about.std, m.bundle.about.shape]) for m in members if m.bundle is not None
    }
    if pool.x.dtype != torch.uint8 and len(scales) > 1:
        raise FedstillError(
            "the bundles take images of different sizes or normalisation: give the pool as uint8 images, not floats"
        )


def _teachers(members: Sequence[_Member], union: tuple[str, ...]) -> list[Teacher]:
    alike = all(member.classes == union for member in members)
    places = {name: i for i, name in enumerate(union)}
    return [Teacher(m.name, m.load, m.reply, None if alike else tuple(places[name] for name in m.classes or ())) for m in members]


def _weighting(
    name: str,
    options: dict[str, Any],
    board: Sequence[Teacher],
    members: Sequence[_Member],
    reference: str | None,
    device: torch.device,
    seed: int,
) -> Weighting:
    backbone = None
    if report_of(name) == "projection":
        subspaces = [m.bundle.about.subspace if m.bundle is not None else None for m in members]
        known = [subspace for subspace in subspaces if subspace is not None]
        if len(known) == len(members):
            spec = reference or known[0].reference
            backbone = load_reference(spec).to(device)
            wanted = reference_id(spec, backbone).digest
            for member, subspace in zip(members, known, strict=True):
                if subspace.digest != wanted:
                    raise FedstillError(
                        f"{member.name} described its domain with the reference '{subspace.reference}', which is not "
                        f"'{spec}' with the same weights; give the reference that all sites used"
                    )
    if name == "examples" and any(m.reply is None or not m.reply.samples for m in members):
        raise FedstillError("weighting 'examples' needs every bundle's number of samples")
    context = WeightingContext(board, stream(seed, "fuse", "weighting"), options=options, reference=backbone)
    return make_weighting(name, context)


# -- the student ----------------------------------------------------------------------------------------------------------


def _student(
    student: nn.Module | str | None,
    members: Sequence[_Member],
    union: tuple[str, ...],
    shape: tuple[int, ...],
    norm: str,
    options: dict[str, Any],
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    seed: int,
) -> tuple[Network, About | None]:
    """The student, and what it would say of itself in a bundle where it has a name."""
    first = next((m.bundle.about for m in members if m.bundle is not None and m.bundle.about.model is not None), None)
    if isinstance(student, nn.Module):
        network = _as_network(student, shape, "the student")
        if network.classes != len(union):
            raise FedstillError(f"the student has {network.classes} outputs, and the teachers know {len(union)} classes")
        network.mean = mean if mean is not None else network.mean
        network.std = std if std is not None else network.std
        return network, None
    if student is None:
        if first is None or first.model is None:
            raise FedstillError("say which model the student is: student = a module or the name of one")
        architecture = first.model
    else:
        same = next((m.bundle.about.model for m in members if m.bundle is not None and _name(m.bundle) == student), None)
        asked = Architecture(name=student, norm=norm, options=options)
        # the same name as a teacher's means the same network, unless told otherwise
        architecture = same if same is not None and norm == "batch" and not options else asked
    network = build(architecture.name, classes=len(union), shape=shape, norm=architecture.norm, seed=seed, **architecture.options)
    scale: dict[str, Any] = {
        "mean": mean if mean is not None else first.mean if first is not None else 0.5,
        "std": std if std is not None else first.std if first is not None else 0.5,
    }
    about = About(name="fused", model=architecture, classes=list(union), shape=list(shape), **scale)
    network.mean, network.std = about.mean, about.std
    network.input_shape = shape
    return network, about


def _name(bundle: Bundle) -> str | None:
    return bundle.about.model.name if bundle.about.model is not None else None


def _averages(members: Sequence[_Member]) -> list[list[_Member]]:
    """Groups of at least two teachers whose weights can be averaged: one architecture, one list of classes."""
    groups: dict[str, list[_Member]] = {}
    for member in members:
        if member.state is not None:
            groups.setdefault(member.key, []).append(member)
    return [group for group in groups.values() if len(group) > 1]


def _average(group: Sequence[_Member]) -> State:
    counts = [m.reply.samples if m.reply is not None else 0 for m in group]
    total = sum(counts)
    weights = [count / total for count in counts] if all(counts) else [1 / len(group)] * len(group)
    return weighted_sum((m.state() for m in group if m.state is not None), weights)


def _start(
    start: str,
    network: Network,
    about: About | None,
    members: Sequence[_Member],
    averages: Sequence[Sequence[_Member]],
    union: tuple[str, ...],
    pool: Samples,
    table: Table,
) -> tuple[str, bool]:
    """Load the student's start and say which it is, and whether it has been trained."""
    own = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in network.state_dict().items()}

    def fits(member: _Member) -> bool:
        if member.state is None or member.classes != union:
            return False
        if about is not None and member.bundle is not None and member.bundle.about.model != about.model:
            return False
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in member.state().items()} == own

    like = [member for member in members if fits(member)]
    candidates: dict[str, Callable[[], State]] = {member.name: member.state for member in like if member.state is not None}
    group = next((g for g in averages if g[0] in like), None)
    if group is not None:
        candidates["average"] = lambda: _average(group)
    if start not in ("auto", "own") and start not in candidates:
        raise FedstillError(f"the student cannot start from '{start}': {_why(start, members, like)}")
    if start == "own" or not candidates:
        return "own weights", False
    if start == "auto":
        few = Samples(pool.x[:PROBE])
        first = clone(network.state_dict())
        candidates["own weights"] = lambda: first
        wanted = table.targets[:PROBE].argmax(1)
        agreement = {}
        for name, state in candidates.items():
            network.load_state_dict(state())
            said = predict_logits(network, few).argmax(1).to(wanted.device)
            agreement[name] = float((said == wanted).double().mean())
        start = max(agreement, key=lambda name: agreement[name])
    network.load_state_dict(candidates[start]())
    return start, start != "own weights"


def _why(start: str, members: Sequence[_Member], like: Sequence[_Member]) -> str:
    if start != "average" and all(member.name != start for member in members):
        return f"no teacher has this name; teachers: {', '.join(member.name for member in members)}"
    return "it needs teachers of its own architecture and classes" if not like else "it needs two teachers of its architecture"


# -- the figures ----------------------------------------------------------------------------------------------------------


def _tests(
    validation: Samples | str | Path | Sequence[str | Path] | Mapping[str, Samples | str | Path] | None,
    union: tuple[str, ...],
    shape: tuple[int, ...],
    seed: int,
) -> dict[str, Samples]:
    if validation is None:
        return {}
    given: Iterable[tuple[str | None, Samples | str | Path]]
    if isinstance(validation, Mapping):
        given = validation.items()
    elif isinstance(validation, Samples | str | Path):
        given = [(None, validation)]
    else:
        given = [(None, source) for source in validation]
    tests: dict[str, Samples] = {}
    for name, source in given:
        if isinstance(source, Samples):
            if source.y is None or len(source) == 0:
                raise FedstillError("validation samples need labels")
            tests[name or "validation"] = source
            continue
        size = (shape[1], shape[0]) if len(shape) == 3 else (None, None)
        images: Images = load_images(source, image_size=size[0], channels=size[1], seed=seed)
        tests[name or images.name] = relabelled(images, union, "no teacher knows")
    return tests


def _together(tests: Mapping[str, Samples]) -> Samples | None:
    if not tests:
        return None
    parts = list(tests.values())
    return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts if part.y is not None]))


def _figure(who: str, kind: str, network: Network, tests: Mapping[str, Samples]) -> list[Figure]:
    if not tests:
        return []
    return [Figure(who, kind, {name: accuracy(network, samples) for name, samples in tests.items()})]


def _figures_before(
    board: Sequence[Teacher],
    averages: Sequence[Sequence[_Member]],
    members: Sequence[_Member],
    union: tuple[str, ...],
    tests: Mapping[str, Samples],
    scheme: Weighting,
    speak: Mapping[str, Any],
    device: torch.device,
) -> tuple[list[Figure], dict[str, dict[str, float]]]:
    """Each teacher, the averages that can be formed, and the ensemble; and the teachers' mean weights on each set."""
    if not tests:
        return [], {}
    places = {name: i for i, name in enumerate(union)}

    def scores(network: Network, known: Sequence[str]) -> dict[str, float]:
        where = torch.tensor([places[name] for name in known], device=device)
        found = {}
        for name, samples in tests.items():
            assert samples.y is not None
            right = where[predict_logits(network, samples).argmax(1)] == samples.y.to(device)
            found[name] = float(right.double().mean())
        return found

    figures = [Figure(m.name, "teacher", scores(m.load(), m.classes or ())) for m in members]
    for group in averages:
        network = group[0].load()
        before = clone(network.state_dict())
        network.load_state_dict(_average(group))
        figures.append(
            Figure(f"average of {', '.join(m.name for m in group)}", "average", scores(network, group[0].classes or ()))
        )
        network.load_state_dict(before)  # a module of the caller's stays as it was
    found, weights = {}, {}
    for name, samples in tests.items():
        assert samples.y is not None
        table = ensemble_table(board, samples.unlabelled(), scheme, **speak)
        found[name] = table.accuracy(samples.y)
        weights[name] = _shares(members, table)
    return [*figures, Figure("ensemble", "ensemble", found)], weights


def _shares(members: Sequence[_Member], table: Table) -> dict[str, float]:
    """Each teacher's mean weight over the samples."""
    means = table.weights.mean(0).tolist()
    return {member.name: float(f"{share:.5g}") for member, share in zip(members, means, strict=True)}


def _source(member: _Member) -> dict[str, Any]:
    """What the card says of a teacher."""
    said: dict[str, Any] = {"name": member.name, "classes": list(member.classes or ())}
    if member.bundle is not None:
        about = member.bundle.about
        said.update(
            file=member.bundle.path.name,
            digest=member.bundle.digest,
            model=about.model.name if about.model is not None else about.program,
            shape=about.shape,
            samples=about.samples,
            bytes=member.bundle.path.stat().st_size,
        )
    return {key: value for key, value in said.items() if value is not None}
