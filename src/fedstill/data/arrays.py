"""Arrays as a data set: what a program holds in memory, and files of NumPy (``.npz``, ``.npy``).

Arrays in memory are written once to the cache, under the digest of what is in them, and referred to as ``arrays:DIGEST/NAME``; so
every process of a run finds them.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fedstill.core.errors import FedstillError, first_line, unknown
from fedstill.core.files import naming
from fedstill.data.cache import cache_folder
from fedstill.data.folders import TEST_NAMES, TRAIN_NAMES
from fedstill.data.raw import Deep, Encoded, Kind, Raw, RawSplit
from fedstill.data.tables import number_classes

__all__ = ["ARRAYS", "Arrays", "federation", "open_arrays", "store", "stored"]

ARRAYS = frozenset({".npz", ".npy"})
PREFIX = "arrays:"
TARGET = "target"
# what the parts are called in files, ours first, then those of Keras and MedMNIST
_NAMES = {
    "x": ("x", "x_train", "train_images", "images", "data", "features", "inputs"),
    "y": ("y", "y_train", "train_labels", "labels", "target", "targets"),
    "x_test": ("x_test", "test_images"),
    "y_test": ("y_test", "test_labels"),
    "classes": ("classes", "class_names", "target_names"),
}


@dataclass(frozen=True)
class Arrays:
    """Samples as arrays or tensors: images ``(n, channels, height, width)``, vectors ``(n, width)`` of numbers, or texts.

    Images may also be grey ``(n, height, width)`` or end in their channels; those that are not uint8 need ``data.range``.
    ``y`` are labels 0, 1, ... along ``classes``; ``test`` is a pair like ``(x, y)``, held out of ``x`` where it is left out.

    >>> Arrays(np.zeros((4, 2)), [0, 1, 0, 1], classes=("no", "yes")).raw.kind
    'vector'
    """

    x: Any
    y: Any = None
    classes: Sequence[str] = ()
    test: tuple[Any, Any] | None = None

    @cached_property
    def raw(self) -> Raw:
        """The data in the form that every source has."""
        kind = _kind(self.x)
        named = tuple(map(str, self.classes))
        if self.y is not None and not named:
            named = tuple(str(i) for i in range(int(as_array(self.y).max()) + 1))
        train = _split(self.x, self.y, kind, len(named))
        test = _split(*self.test, kind, len(named)) if self.test is not None else None
        return Raw(kind, named, train, test, prepared=True)

    @property
    def digest(self) -> str:
        """A digest of the samples, the key of decoded data in the cache."""
        return _digest({"x": self.x, "y": self.y, **dict(zip(("x_test", "y_test"), self.test or (), strict=False))}, self.classes)


def _digest(parts: Mapping[str, Any], classes: Sequence[str]) -> str:
    mark = hashlib.sha256(repr(tuple(classes)).encode())
    for part in parts.values():
        if part is not None:
            array = as_array(part)
            mark.update(f"{array.dtype}{array.shape}".encode())
            mark.update("\0".join(array.tolist()).encode() if array.dtype.kind == "U" else np.ascontiguousarray(array).data)
    return mark.hexdigest()


def as_array(values: Any) -> np.ndarray:
    """Anything array-like, as a NumPy array."""
    if isinstance(values, torch.Tensor):
        plain = values.detach().cpu()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return np.asarray(values)


# -- what arrays hold ------------------------------------------------------------------------------------------------------------


def _kind(x: Any) -> Kind:
    array = as_array(x)
    if array.dtype.kind == "U" and array.ndim == 1:
        return "text"
    if array.dtype.kind in "fiub" and array.ndim == 2:
        return "vector"
    colours = array.ndim == 4 and (array.shape[1] in (1, 3) or array.shape[3] in (1, 3))
    if array.dtype.kind in "fiu" and (colours or (array.ndim == 3 and array.dtype == np.uint8)):
        return "image"
    wanted = "images (n, 1 or 3, height, width), vectors (n, width) of numbers, or texts"
    raise FedstillError(f"samples are {wanted}, not {array.dtype} of shape {array.shape}")


def _split(x: Any, y: Any, kind: Kind, classes: int) -> RawSplit:
    array = as_array(x)
    if _kind(array) != kind:
        raise FedstillError(f"the training samples are of the kind {kind}, the test samples {_kind(array)}")
    labels = None if y is None else as_array(y).astype(np.int64)
    if labels is not None and (labels.shape != (len(array),) or labels.min(initial=0) < 0 or labels.max(initial=0) >= classes):
        raise FedstillError(f"labels are {len(array)} whole numbers from 0 to {classes - 1}")
    if kind == "image":
        pixels = _planes(array) if array.dtype == np.uint8 else None
        return RawSplit(len(array), lambda: _pictures(array), labels, pixels=pixels)
    if kind == "vector":
        exact = np.float64 if array.dtype.itemsize > 4 or array.dtype.kind != "f" else np.float32
        return RawSplit(len(array), lambda: iter(array.astype(exact)), labels)
    return RawSplit(len(array), lambda: (str(text) for text in array), labels)


def _planes(array: np.ndarray) -> np.ndarray:
    """Images as (n, channels, height, width)."""
    if array.ndim == 3:
        return array[:, None]
    return array if array.shape[1] in (1, 3) else array.transpose(0, 3, 1, 2)


def _pictures(array: np.ndarray) -> Iterator[Encoded]:
    if array.ndim == 4 and array.shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    if array.ndim == 4 and array.shape[3] == 1:
        array = array[..., 0]
    room = (0.0, 65535.0) if array.dtype == np.uint16 else None

    def read(values: np.ndarray) -> Image.Image | Deep:
        return Image.fromarray(values) if values.dtype == np.uint8 else Deep(values, room=room)

    return (Encoded(f"image {i}", lambda values=values: read(values)) for i, values in enumerate(array))  # type: ignore[misc]


# -- files -----------------------------------------------------------------------------------------------------------------------


def open_arrays(source: str, place: Path) -> Raw:
    """The content of an ``.npz`` (x, y and optionally x_test, y_test, classes), of an ``.npy``, or of a folder of them."""
    try:
        parts = _read(place) if place.is_file() else _read_folder(place)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise FedstillError(f"cannot read '{source}': {first_line(error, 200)}") from error
    return _raw(source, parts)


def _read(path: Path) -> dict[str, np.ndarray]:
    found = np.load(path, allow_pickle=False)  # arrays of objects would be pickles, which are not opened
    if isinstance(found, np.ndarray):
        return {"x": found}
    with found:
        return {name: found[name] for name in found.files}


def _read_folder(place: Path) -> dict[str, np.ndarray]:
    files = sorted(path for path in place.iterdir() if path.suffix.lower() in ARRAYS)
    packs = {path.stem.lower(): path for path in files if path.suffix.lower() == ".npz"}
    if not packs:
        return {path.stem: _read(path)["x"] for path in files}
    train = next((packs[name] for name in TRAIN_NAMES if name in packs), None)
    test = next((packs[name] for name in TEST_NAMES if name in packs), None)
    if train is None:
        parts = [_named(_read(path)) for path in packs.values()]
        if any(part.keys() != parts[0].keys() for part in parts):
            raise ValueError(f"its files do not all hold the same arrays: {', '.join(sorted(packs))}")
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "classes"}
        return joined | {name: part for name, part in parts[0].items() if name == "classes"}
    tests = {} if test is None else {f"{name}_test": part for name, part in _named(_read(test)).items() if name in ("x", "y")}
    return {**_named(_read(train)), **tests}


def _named(parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays under fedstill's names for them; arrays with other names are left out."""
    lower = {name.lower(): part for name, part in parts.items()}
    found = {name: next((lower[word] for word in words if word in lower), None) for name, words in _NAMES.items()}
    return {name: part for name, part in found.items() if part is not None}


def _raw(source: str, held: Mapping[str, np.ndarray]) -> Raw:
    parts = _named(held)
    if "x" not in parts:
        raise FedstillError(f"'{source}' has no array x (arrays: {', '.join(held) or 'none'})")
    for x, y in (("x", "y"), ("x_test", "y_test")):
        if y in parts and (len(parts[y]) != len(parts.get(x, ())) or parts[y].size != len(parts[y])):
            raise FedstillError(
                f"'{source}' has {len(parts.get(x, ()))} samples in {x} and labels of shape {parts[y].shape} in {y}"
            )
    classes: tuple[str, ...] = ()
    values = [parts[y].reshape(-1) if y in parts else None for y in ("y", "y_test")]
    if values[0] is not None:
        classes, values = _numbered(source, values, parts.get("classes"))
    kind = _kind(parts["x"])
    test = _split(parts["x_test"], values[1], kind, len(classes)) if "x_test" in parts else None
    return Raw(kind, classes, _split(parts["x"], values[0], kind, len(classes)), test)


def _numbered(
    source: str, values: list[np.ndarray | None], classes: np.ndarray | None
) -> tuple[tuple[str, ...], list[np.ndarray | None]]:
    for v in values:
        if v is not None and v.dtype.kind == "f" and not (v == np.floor(v)).all():
            raise FedstillError(f"'{source}': labels are whole numbers or words, not {v[v != np.floor(v)][0]:g}")
    whole = [v.astype(np.int64) if v is not None and v.dtype.kind in "fb" else v for v in values]
    train = whole[0]
    if classes is None or train is None or train.dtype.kind == "U":
        # a label of -1 is a class here: what has no label is left out of x
        known = np.unique(np.concatenate([v for v in whole if v is not None])).tolist()
        names = [str(name) for name in (classes.tolist() if classes is not None else known)]
        number = {name: label for label, name in enumerate(names)}
        for item in known:
            if str(item) not in number:
                raise unknown(f"label in '{source}'", str(item), names)
        return tuple(names), [None if v is None else np.array([number[str(i)] for i in v.tolist()]) for v in whole]
    return number_classes([str(name) for name in classes.tolist()], whole)


# -- memory ----------------------------------------------------------------------------------------------------------------------


def store(
    x: Any,
    y: Any = None,
    *,
    name: str = "arrays",
    classes: Sequence[str] = (),
    test: tuple[Any, Any] | None = None,
    cache: str | Path | None = None,
) -> str:
    """Write arrays to the cache, and return the source by which a configuration names them. ``y`` holds numbers or words; with
    ``classes`` it holds indices into them.

    >>> source = store(np.zeros((6, 2)), [0, 1] * 3, name="north", cache=tempfile.mkdtemp())
    >>> source.startswith("arrays:"), source.endswith("/north")
    (True, True)
    """
    parts = {"x": x, "y": y, **dict(zip(("x_test", "y_test"), test or (), strict=False))}
    arrays = {key: as_array(part) for key, part in parts.items() if part is not None}
    for key, array in arrays.items():
        if array.dtype == object:
            raise FedstillError(f"{key} of '{name}' mixes kinds of values: give numbers, or write a table to a file")
    if classes:
        arrays["classes"] = np.array([str(word) for word in classes])
    _raw(name, arrays)  # so that a mistake is reported here, not in a worker
    digest = _digest(arrays, classes)[:24]
    folder = cache_folder(cache) / "arrays"
    if not (folder / f"{digest}.npz").exists():
        folder.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=folder, prefix=".", suffix=f".{os.getpid()}.part")
        try:
            with naming(folder / f"{digest}.npz"), os.fdopen(handle, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            os.replace(aside, folder / f"{digest}.npz")
        finally:
            Path(aside).unlink(missing_ok=True)
    return f"{PREFIX}{digest}/{name}"


def stored(source: str, folder: Path) -> tuple[str, Path] | None:
    """The digest and the file behind ``arrays:DIGEST/NAME``; None for any other source."""
    if not source.startswith(PREFIX):
        return None
    digest = source.removeprefix(PREFIX).partition("/")[0]
    path = folder / "arrays" / f"{digest}.npz"
    if not path.is_file():
        raise FedstillError(f"'{source}' is no longer in the cache {folder}: pass the arrays to fedstill.run again")
    return digest, path


def federation(
    clients: Mapping[str, tuple[Any, Any]],
    pool: Any = None,
    tests: Mapping[str, tuple[Any, Any]] | None = None,
    target: tuple[Any, Any] | None = None,
    cache: str | Path | None = None,
) -> dict[str, Any]:
    """The table ``[data]`` of a federation whose clients are arrays ``(x, y)`` by name, with one list of classes for all.

    ``pool`` holds unlabelled inputs for the server. ``tests`` holds pairs like the clients', by the same names; if a client has
    none, a fifth of its samples is held out. ``target`` is the domain that systems of domain adaptation adapt to: its labels
    are used for the test alone.

    >>> x, y = np.zeros((10, 2)), np.arange(10) % 2
    >>> made = federation({"north": (x, y), "south": (x, y)}, pool=x, cache=tempfile.mkdtemp())
    >>> [source.rpartition("/")[2] for source in (*made["domains"], made["server"])]
    ['north', 'south', 'pool']
    """
    tests = dict(tests or {})
    if not clients:
        raise FedstillError("clients is empty: give at least one, such as {'north': (x, y)}")
    for name in tests:
        if name not in clients:
            raise unknown("client in tests", name, clients)
    if target is not None and (pool is not None or TARGET in clients):
        other = f"clients['{TARGET}']" if TARGET in clients else "pool"
        raise FedstillError(f"give target or {other}, not both: the target's own inputs are the server's pool")
    adapted = {} if target is None else {TARGET: target}
    groups = {"clients": clients, "tests": tests, "target": adapted}
    for what, held in groups.items():
        for name, pair in held.items():
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                place = what if what == "target" else f"{what}['{name}']"
                raise FedstillError(f"{place} is a pair (x, y), not {type(pair).__name__}")
    labels = {(what, name): as_array(pair[1]) for what, held in groups.items() for name, pair in held.items()}
    classes, numbered = _numbered("clients", [v.reshape(-1) for v in labels.values()], None)
    number = dict(zip(labels, numbered, strict=True))
    domains = [
        store(
            pair[0],
            number["clients", name],
            name=_plain(name),
            classes=classes,
            test=(tests[name][0], number["tests", name]) if name in tests else None,
            cache=cache,
        )
        for name, pair in clients.items()
    ]
    server = {} if pool is None else {"server": store(pool, name="pool", cache=cache)}
    for name, pair in adapted.items():
        server["target"] = store(pair[0], number["target", name], name=name, classes=classes, cache=cache)
    return {"domains": domains, **server}


def _plain(name: str) -> str:
    if not name or "/" in name or ":" in name:
        raise FedstillError(f"a client's name is a word without / and :, not '{name}'")
    return name
