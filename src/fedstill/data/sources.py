"""Where a domain comes from: the wheels, a local folder or file, or the Hugging Face Hub.

Every source ends as a `Raw`: images or texts that can be read one by one, their labels and the names of the classes.
`datasets` is imported only here and only when something is really read; a cached domain never needs it.
"""

from __future__ import annotations

import io
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
from PIL import Image

from fedstill.core.errors import FedstillError, first_line, nearest, unknown
from fedstill.data.embedded import EMBEDDED, embedded_images
from fedstill.data.loaders import brought
from fedstill.data.raw import Raw, RawSplit

__all__ = ["Source", "find_source"]

_TABLES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}
_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})
_TRAIN_NAMES = ("train", "training")
_TEST_NAMES = ("test", "testing", "validation", "valid", "val", "dev")
_LABEL_NAMES = ("label", "labels", "fine_label", "target", "class", "category", "y")
_TEXT_NAMES = ("text", "sentence", "content", "review", "document")
_HUB_NAME = re.compile(r"^[\w.-]+(/[\w.-]+)?(:[\w.-]+)?(@[\w.-]+)?$")


@dataclass(frozen=True)
class Source:
    """A place that was found: its name, what its cache key depends on, and how it is opened."""

    name: str
    key: Mapping[str, Any]
    opener: Callable[[], Raw] = field(repr=False)

    @cached_property
    def raw(self) -> Raw:
        """The data itself, opened once."""
        return self.opener()


def find_source(source: str, root: str | Path | None, scratch: Path) -> Source:
    """Look for ``source`` among the embedded domains and the loaders, under ``root``, on this machine and, last, on the Hub.

    On the Hub a name is ``NAME``, ``OWNER/NAME``, with ``:CONFIG`` and ``@REVISION`` where wanted.
    """
    if source.startswith("embedded:"):
        name = source.removeprefix("embedded:")
        if name not in EMBEDDED:
            raise unknown("embedded domain", source, [f"embedded:{known}" for known in EMBEDDED])
        return Source(source, {"embedded": name}, lambda: _open_embedded(name))
    arrays = brought(source)
    if arrays is not None:
        return Source(source, {"arrays": arrays.digest}, lambda: arrays.raw)
    places = [Path(root).expanduser() / source] if root is not None else []
    for place in [*places, Path(source).expanduser()]:
        if place.exists():
            return _local(source, place.resolve(), scratch)
    folder = Path(root).expanduser() if root is not None else None
    if folder is not None and not folder.is_dir():
        raise FedstillError(f"data root '{root}' is not a folder")
    close = nearest(source, [child.name for child in folder.iterdir()]) if folder is not None else None
    hint = f"; did you mean '{close}'?" if close else ""
    if not _HUB_NAME.match(source):
        raise FedstillError(f"no data at '{source}': not a folder, a file or a Hub name{hint}")
    return Source(source, {"hub": source}, lambda: _open_hub(source, hint))


def _local(source: str, place: Path, scratch: Path) -> Source:
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    stats = [(str(path.relative_to(place)), path.stat()) for path in files]
    key: dict[str, Any] = {"path": str(place), "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]}
    if place.is_file():
        if place.suffix.lower() not in _TABLES:
            raise FedstillError(f"cannot read '{source}': a data file is one of {', '.join(sorted(_TABLES))}")
        return Source(source, key, lambda: _open_table(source, place, scratch))
    if any(path.suffix.lower() in _TABLES for path in files):
        return Source(source, key, lambda: _open_table(source, place, scratch))
    if any(path.suffix.lower() in _IMAGES for path in files):
        key["layout"] = 2  # raised whenever the same folder would be read differently
        return Source(source, key, lambda: _open_image_folder(place, files))
    raise FedstillError(f"no data at '{source}': the folder holds neither tables nor images")


def _open_embedded(name: str) -> Raw:
    images, labels = embedded_images(name)
    return Raw("image", tuple(str(digit) for digit in range(10)), RawSplit(len(images), lambda: iter(images), labels), None)


# Image folders are read here, not by `datasets`: its guesses at splits take a class called "test tube" for a test set.
def _open_image_folder(place: Path, files: list[Path]) -> Raw:
    images = [path for path in files if path.suffix.lower() in _IMAGES and not _hidden(path.relative_to(place))]
    top = _folders(place, images)
    splits = {name.lower(): name for name in top}
    train_name = next((splits[name] for name in _TRAIN_NAMES if name in splits), None)
    # images of trains beside those of buses are a class, not a training set
    others = splits.keys() - {*_TRAIN_NAMES, *_TEST_NAMES}
    if train_name is not None and others and not _folders(place / train_name, images):
        train_name = None
    if train_name is None:
        classes = tuple(top)
        return Raw("image", classes, _folder_split(place, images, classes), None)
    train_place = place / train_name
    train = [path for path in images if train_place in path.parents]
    classes = tuple(_folders(train_place, train))
    test_name = next((splits[name] for name in _TEST_NAMES if name in splits), None)
    if test_name is None:
        return Raw("image", classes, _folder_split(train_place, train, classes), None)
    test_place = place / test_name
    test = [path for path in images if test_place in path.parents]
    extra = set(_folders(test_place, test)) - set(classes)
    if extra:
        raise FedstillError(f"'{test_place}' has a class that the training images lack: {', '.join(sorted(extra))}")
    return Raw("image", classes, _folder_split(train_place, train, classes), _folder_split(test_place, test, classes))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _folders(place: Path, files: list[Path]) -> list[str]:
    """The names of the folders in ``place`` that hold some of the files."""
    return sorted({path.relative_to(place).parts[0] for path in files if place in path.parents and path.parent != place})


def _folder_split(place: Path, files: list[Path], classes: tuple[str, ...]) -> RawSplit:
    if not classes:
        return RawSplit(len(files), lambda: (Image.open(path) for path in files), None)
    loose = [path.name for path in files if path.parent == place]
    if loose:
        count = "1 image lies" if len(loose) == 1 else f"{len(loose)} images lie"
        raise FedstillError(f"in '{place}' {count} beside the class folders ({loose[0]}): put each into the folder of its class")
    number = {name: label for label, name in enumerate(classes)}
    labels = np.array([number[path.relative_to(place).parts[0]] for path in files], dtype=np.int64)
    return RawSplit(len(files), lambda: (Image.open(path) for path in files), labels)


def _open_table(source: str, place: Path, scratch: Path) -> Raw:
    import datasets  # slow: seconds, and folders of images do without

    datasets.disable_progress_bars()
    try:
        if (place / "dataset_dict.json").exists() or (place / "state.json").exists():
            return _from_splits(source, datasets.load_from_disk(str(place)))
        scratch.mkdir(parents=True, exist_ok=True)
        # The Arrow copy that `datasets` makes is read once and then gone: the tensors are what is kept.
        aside = tempfile.TemporaryDirectory(dir=scratch, prefix=".arrow-")
        if place.is_file():
            kind = _TABLES[place.suffix.lower()]
            found = datasets.load_dataset(kind, data_files=str(place), cache_dir=aside.name)
        else:
            found = datasets.load_dataset(str(place), cache_dir=aside.name)
        return _from_splits(source, found, keep=aside)
    except (
        OSError,
        ValueError,
        datasets.exceptions.DatasetsError,
        datasets.exceptions.DatasetGenerationError,
    ) as error:
        raise FedstillError(f"cannot read '{source}': {first_line(error, 200)}") from error


def _open_hub(source: str, hint: str) -> Raw:
    import datasets  # slow: seconds, and folders of images do without

    name, _, revision = source.partition("@")
    name, _, config = name.partition(":")
    try:
        with _offline_if_cut_off():
            found = datasets.load_dataset(name, config or None, revision=revision or None)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        place = "is neither a local folder or file nor a data set that the Hub lets us have"
        raise FedstillError(f"'{source}' {place}{hint} ({first_line(error, 200)})") from error
    return _from_splits(source, found)


@contextmanager
def _offline_if_cut_off() -> Iterator[None]:
    """Without a way to the Hub, look only at what was fetched before, instead of half a minute of retries."""
    import datasets  # slow
    from huggingface_hub import constants  # slow

    host = urlsplit(constants.ENDPOINT).hostname or ""
    before = (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)
    try:
        if not getproxies():
            socket.getaddrinfo(host, 443)
    except OSError:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _from_splits(source: str, found: Any, keep: object = None) -> Raw:
    splits: dict[str, Any] = dict(found) if isinstance(found, dict) else {"train": found}
    train = next((splits[name] for name in _TRAIN_NAMES if name in splits), next(iter(splits.values())))
    features = train.features
    label = _label_column(features)
    image = next((name for name, kind in features.items() if type(kind).__name__ == "Image"), None)
    text = None if image else _text_column(features, label)
    column = image or text
    if column is None:
        raise FedstillError(f"'{source}' has no image and no text column (columns: {', '.join(features)})")
    tests = [splits[name] for name in _TEST_NAMES if name in splits and splits[name] is not train]
    values = [_labels(split, label) for split in (train, *tests)]
    classes, numbered = _number_classes(features[label] if label else None, values)
    kind: Literal["image", "text"] = "image" if image else "text"
    raws = [_table_split(split, column, kind, numbers, keep) for split, numbers in zip((train, *tests), numbered, strict=True)]
    # The Hub hides the labels of some test sets (-1 throughout): then the validation set is the test.
    labelled = [raw for raw in raws[1:] if raw.count]
    return Raw(kind, classes, raws[0], labelled[0] if labelled else None)


def _label_column(features: Mapping[str, Any]) -> str | None:
    kinds = {name: (type(kind).__name__, str(getattr(kind, "dtype", ""))) for name, kind in features.items()}
    named = [name for name in _LABEL_NAMES if name in kinds]
    class_labels = [name for name in (*named, *kinds) if kinds[name][0] == "ClassLabel"]
    whole = [name for name in named if kinds[name][0] == "Value" and re.match(r"u?int|bool|.*string", kinds[name][1])]
    return next(iter(class_labels + whole), None)


def _text_column(features: Mapping[str, Any], label: str | None) -> str | None:
    texts = [
        name
        for name, kind in features.items()
        if name != label and type(kind).__name__ == "Value" and "string" in str(kind.dtype)
    ]
    return next((name for name in _TEXT_NAMES if name in texts), texts[0] if texts else None)


def _labels(split: Any, label: str | None) -> np.ndarray | None:
    if label is None or label not in split.column_names:
        return None
    values: np.ndarray = split.select_columns([label]).with_format("arrow")[:][label].to_numpy()
    return values


def _number_classes(feature: Any, values: list[np.ndarray | None]) -> tuple[tuple[str, ...], list[np.ndarray | None]]:
    """The names of the classes, and labels 0, 1, ... for every split; -1 stays for what has no label."""
    if feature is None:
        return (), values
    names = getattr(feature, "names", None)
    if names is not None:
        numbered = [None if v is None else np.nan_to_num(v.astype(np.float64), nan=-1).astype(np.int64) for v in values]
        return tuple(names), numbered
    # -1 hides a label, unless it is a class: labels of -1 and 1 are common in files of one's own.
    train = values[0]
    hidden = (None, "") if train is not None and -1 in train.tolist() else (None, "", -1)
    known = sorted({item for v in values if v is not None for item in v.tolist() if item not in hidden and item == item})
    number = {item: label for label, item in enumerate(known)}
    numbered = [None if v is None else np.array([number.get(item, -1) for item in v.tolist()], dtype=np.int64) for v in values]
    return tuple(str(item) for item in known), numbered


def _table_split(split: Any, column: str, kind: str, labels: np.ndarray | None, keep: object) -> RawSplit:
    if labels is not None and (labels < 0).any():
        rows = np.flatnonzero(labels >= 0)
        split, labels = split.select(rows), labels[rows]

    def read(kept: object = keep) -> Iterator[Any]:  # `kept` holds the temporary files for as long as rows may be read
        import datasets  # slow: seconds, and folders of images do without

        rows = split.select_columns([column])
        if kind == "image":
            rows = rows.cast_column(column, datasets.Image(decode=False))
        for batch in rows.with_format("arrow").iter(1000):
            for item in batch[column].to_pylist():
                if kind == "text":
                    yield item or ""
                else:
                    yield Image.open(io.BytesIO(item["bytes"]) if item["bytes"] is not None else item["path"])

    return RawSplit(len(split), read, labels)
