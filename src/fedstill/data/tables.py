"""Tables: files of Parquet, CSV, JSON or Arrow, and data sets of the Hugging Face Hub. They hold images, texts, or columns of
numbers and words.

`datasets` is imported only when something is really read; a cached domain never needs it.
"""

from __future__ import annotations

import io
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
from PIL import Image

from fedstill.core.errors import FedstillError, first_line
from fedstill.core.scratch import Scratch
from fedstill.data.columns import columns_of, described
from fedstill.data.folders import TEST_NAMES, TRAIN_NAMES, open_image
from fedstill.data.raw import Column, Encoded, Kind, Raw, RawSplit
from fedstill.data.reading import Reading

__all__ = ["LABEL_NAMES", "TABLES", "number_classes", "open_hub", "open_table"]

TABLES = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}
LABEL_NAMES = ("label", "labels", "fine_label", "target", "class", "category", "y")
_TEXT_NAMES = ("text", "sentence", "content", "review", "document")
_LONG = 5  # words of an average text; a category has fewer
_INDEX = re.compile(r"^(Unnamed: \d+|__index_level_\d+__|)$")  # what pandas calls the numbers of its rows
_NOTHING = ("?", "na", "n/a", "nan", "null", "none", "-", "")  # words for a missing number


def open_table(source: str, place: Path, scratch: Path, reading: Reading) -> Raw:
    """What is in a table, or in a folder of tables."""
    import datasets  # slow: seconds, and folders of images do without

    datasets.disable_progress_bars()
    try:
        if (place / "dataset_dict.json").exists() or (place / "state.json").exists():
            return _from_splits(source, datasets.load_from_disk(str(place)), reading)
        files = _csv_files(place)
        if files is not None:
            return _from_splits(source, {split: _read_csv(paths) for split, paths in files.items()}, reading)
        scratch.mkdir(parents=True, exist_ok=True)
        # The Arrow copy that `datasets` makes is read once and then gone: the tensors are what is kept.
        aside = Scratch("arrow", scratch)
        if place.is_file():
            kind = TABLES[place.suffix.lower()]
            found = datasets.load_dataset(kind, data_files=str(place), cache_dir=str(aside.folder))
        else:
            found = datasets.load_dataset(str(place), cache_dir=str(aside.folder))
        return _from_splits(source, found, reading, keep=aside)
    except (
        OSError,
        ValueError,
        datasets.exceptions.DatasetsError,
        datasets.exceptions.DatasetGenerationError,
    ) as error:
        raise FedstillError(f"cannot read '{source}': {first_line(error, 200)}") from error


# -- CSV -------------------------------------------------------------------------------------------------------------------------


def _csv_files(place: Path) -> dict[str, list[Path]] | None:
    """The CSV files of each split; None if there are files of another kind."""
    from datasets.data_files import DataFilesDict, get_data_patterns  # slow

    if place.is_file():
        return {"train": [place]} if TABLES[place.suffix.lower()] == "csv" else None
    files = [path for path in place.rglob("*") if path.is_file() and not path.name.startswith(".")]
    if any(TABLES.get(path.suffix.lower()) != "csv" for path in files):
        return None
    found = DataFilesDict.from_patterns(get_data_patterns(str(place)), base_path=str(place))
    return {str(split): [Path(path) for path in paths] for split, paths in found.items()}


# `datasets` reads CSV in pieces and takes the first one's types for all: whole numbers in the first 10,000 rows and a fraction
# after them are an error there.
def _read_csv(paths: Sequence[Path]) -> Any:
    import datasets  # slow
    import pandas  # slow

    frames = []
    for path in paths:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            first, second = file.readline(), file.readline()
        mark = max(",;\t|", key=first.count)
        if all(_is_number(name) for name in first.strip().split(mark)):
            raise FedstillError(f"the first line of '{path}' holds numbers, not the names of its columns")
        decimal = "," if mark == ";" and re.search(r"\d,\d", second) and not re.search(r"\d\.\d", second) else "."
        frame = pandas.read_csv(path, sep=mark, decimal=decimal, low_memory=False, skipinitialspace=True)
        frames.append(frame.apply(_as_numbers))
    whole = pandas.concat(frames, ignore_index=True)
    return datasets.Dataset.from_pandas(whole[[name for name in whole if not _INDEX.match(str(name))]], preserve_index=False)


def _as_numbers(column: Any) -> Any:
    """A column of words as numbers, if all of them are numbers or stand for a missing one."""
    import pandas  # slow

    if pandas.api.types.is_numeric_dtype(column):
        return column
    words = column.where(~column.astype(str).str.strip().str.lower().isin(_NOTHING))
    numbers = pandas.to_numeric(words, errors="coerce")
    return numbers if words.notna().any() and numbers.notna().equals(words.notna()) else column


def _is_number(word: str) -> bool:
    try:
        float(word.strip().strip('"'))
    except ValueError:
        return False
    return True


# -- the Hub ---------------------------------------------------------------------------------------------------------------------


def open_hub(source: str, hint: str, reading: Reading) -> Raw:
    """A data set of the Hub, ``NAME``, ``OWNER/NAME``, with ``:CONFIG`` and ``@REVISION`` where wanted."""
    import datasets  # slow: seconds, and folders of images do without

    name, _, revision = source.partition("@")
    name, _, config = name.partition(":")
    try:
        with _offline_if_cut_off():
            found = datasets.load_dataset(name, config or None, revision=revision or None)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        place = "is neither a local folder or file nor a data set that can be loaded from the Hub"
        raise FedstillError(f"'{source}' {place}{hint} ({first_line(error, 200)})") from error
    return _from_splits(source, found, reading)


@contextmanager
def _offline_if_cut_off() -> Iterator[None]:
    """If the Hub cannot be reached, use only what was downloaded before, instead of retrying for half a minute."""
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


# -- from columns to rows and labels ---------------------------------------------------------------------------------------------


def _from_splits(source: str, found: Any, reading: Reading, keep: object = None) -> Raw:
    splits: dict[str, Any] = dict(found) if isinstance(found, dict) else {"train": found}
    train = next((splits[name] for name in TRAIN_NAMES if name in splits), next(iter(splits.values())))
    tests = [splits[name] for name in TEST_NAMES if name in splits and splits[name] is not train]
    label = _label_column(train, reading.label)
    kind, column = _kind_of(source, train, label, reading)
    values = [_labels(source, split, label) for split in (train, *tests)]
    names = getattr(train.features[label], "names", None) if label else None
    classes, numbered = number_classes(names, values) if label else ((), values)
    parts = [_labelled_rows(split, numbers) for split, numbers in zip((train, *tests), numbered, strict=True)]
    # The Hub hides the labels of some test sets (-1 throughout): then the validation set is the test.
    parts = [parts[0], *[part for part in parts[1:] if len(part[0])][:1]]
    columns: tuple[Column, ...] = ()
    if kind == "table":
        wanted = [name for name in train.features if name not in (label, *reading.ignore) and not _INDEX.match(name)]
        columns = described(source, [split for split, _, _ in parts], wanted)
        if not columns:
            raise FedstillError(f"'{source}' has no column besides its label (columns: {', '.join(train.features)})")
    raws = [_split(source, part, kind, column, [c.name for c in columns], keep) for part in parts]
    return Raw(kind, classes, raws[0], raws[1] if len(raws) > 1 else None, columns)


def _kind_of(source: str, train: Any, label: str | None, reading: Reading) -> tuple[Kind, str]:
    """The kind of data in a table, and the column that holds it (none for a table of numbers and categories)."""
    features = train.features
    image = next((name for name, kind in features.items() if type(kind).__name__ == "Image"), None)
    if image is not None and reading.kind in ("auto", "image"):
        return "image", image
    texts = [name for name, kind in features.items() if name not in (label, *reading.ignore) and _type(kind) == "string"]
    named = next((name for name in _TEXT_NAMES if name in texts), None)
    if reading.kind == "text" and texts:
        return "text", named or texts[0]
    if reading.kind in ("image", "text"):
        raise FedstillError(f"'{source}' has no {reading.kind} column (columns: {', '.join(features)})")
    if reading.kind == "auto" and named is not None:
        return "text", named
    if reading.kind == "auto" and len(texts) == 1 and _words(train, texts[0]) >= _LONG:
        return "text", texts[0]
    return "table", ""


def _type(feature: Any) -> str:
    if type(feature).__name__ != "Value":
        return type(feature).__name__
    dtype = str(feature.dtype)
    return (
        "string" if "string" in dtype else "whole" if re.match(r"u?int|bool", dtype) else "float" if "float" in dtype else dtype
    )


def _words(train: Any, column: str) -> float:
    """The mean number of words of the first texts."""
    texts = [text for text in train.select_columns([column])[:1000][column] if text]
    return sum(len(text.split()) for text in texts) / len(texts) if texts else 0.0


def _label_column(train: Any, wanted: str | None) -> str | None:
    """The column of the labels, if there is one: the one named, a ClassLabel, or one with a usual name."""
    kinds = {name: _type(feature) for name, feature in train.features.items()}
    if wanted is not None:
        return wanted if wanted in kinds else None
    usual = sorted((name for name in kinds if name.lower() in LABEL_NAMES), key=lambda name: LABEL_NAMES.index(name.lower()))
    class_labels = [name for name in (*usual, *kinds) if kinds[name] == "ClassLabel"]
    whole = [
        name
        for name in usual
        if kinds[name] in ("whole", "string") or (kinds[name] == "float" and _whole(_values(train, name)) is not None)
    ]
    return next(iter(class_labels + whole), None)


def _labels(source: str, split: Any, label: str | None) -> np.ndarray | None:
    if label is None or label not in split.column_names:
        return None
    values = _values(split, label)
    if values.dtype.kind != "f":
        return values
    whole = _whole(values)
    if whole is None:
        some = next(value for value in values.tolist() if value == value and value != int(value))
        raise FedstillError(f"column '{label}' of '{source}' cannot be the label: it holds numbers such as {some:g}, not classes")
    return whole


def _values(split: Any, column: str) -> np.ndarray:
    values: np.ndarray = split.select_columns([column]).with_format("arrow")[:][column].to_numpy()
    return values


def _whole(values: np.ndarray) -> np.ndarray | None:
    """Floats that are whole numbers or missing, as whole numbers with None; None if others are among them."""
    missing = np.isnan(values)
    if not (values[~missing] == np.floor(values[~missing])).all() or np.isinf(values).any():
        return None
    return np.array([None if value != value else int(value) for value in values.tolist()], dtype=object)


def number_classes(
    names: Sequence[str] | None, values: Sequence[np.ndarray | None]
) -> tuple[tuple[str, ...], list[np.ndarray | None]]:
    """The names of the classes, and labels 0, 1, ... for every split; -1 stays for what has no label."""
    if names is not None:
        numbered = [None if v is None else np.array([-1 if i is None else i for i in v.tolist()], dtype=np.int64) for v in values]
        return tuple(names), numbered
    # -1 hides a label, unless it is a class: labels of -1 and 1 are common in files of one's own.
    train = values[0]
    hidden = (None, "") if train is not None and -1 in train.tolist() else (None, "", -1)
    known = sorted({item for v in values if v is not None for item in v.tolist() if item not in hidden and item == item})
    number = {item: label for label, item in enumerate(known)}
    numbered = [None if v is None else np.array([number.get(item, -1) for item in v.tolist()], dtype=np.int64) for v in values]
    return tuple(str(item) for item in known), numbered


def _labelled_rows(split: Any, labels: np.ndarray | None) -> tuple[Any, np.ndarray | None, np.ndarray]:
    """The rows that have labels, these labels, and the rows' numbers."""
    if labels is None or (labels >= 0).all():
        return split, labels, np.arange(len(split))
    rows = np.flatnonzero(labels >= 0)
    return split.select(rows), labels[rows], rows


def _split(
    source: str,
    part: tuple[Any, np.ndarray | None, np.ndarray],
    kind: Kind,
    column: str,
    columns: Sequence[str],
    keep: object,
) -> RawSplit:
    split, labels, numbers = part
    if kind == "table":
        return RawSplit(len(split), lambda: iter(()), labels, lambda: columns_of(source, split, columns))

    def read(kept: object = keep) -> Iterator[Any]:  # `kept` holds the temporary files for as long as rows may be read
        import datasets  # slow: seconds, and folders of images do without

        rows = split.select_columns([column])
        if kind == "image":
            rows = rows.cast_column(column, datasets.Image(decode=False))
        position = 0
        for batch in rows.with_format("arrow").iter(1000):
            for item in batch[column].to_pylist():
                name = f"the image in row {numbers[position]} of '{source}'"
                yield item or "" if kind == "text" else _picture(item, name)
                position += 1

    return RawSplit(len(split), read, labels)


def _picture(item: Mapping[str, Any] | None, name: str) -> Encoded:
    def read() -> Image.Image:
        if item is None:
            raise ValueError("the row holds none")
        return open_image(io.BytesIO(item["bytes"]) if item["bytes"] is not None else Path(item["path"]))

    return Encoded(name, read)
