"""Sources of domains: the wheels, a program, a local folder or file, or the Hugging Face Hub.

Every source becomes a `Raw`: images, texts, vectors or columns that are read when needed, their labels and the class names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstill.core.errors import FedstillError, nearest, unknown
from fedstill.data.arrays import ARRAYS, open_arrays, stored
from fedstill.data.cache import cached
from fedstill.data.embedded import EMBEDDED, embedded_images
from fedstill.data.folders import IMAGES, empty_classes, open_image_folder
from fedstill.data.loaders import brought
from fedstill.data.raw import Encoded, Raw, RawSplit
from fedstill.data.reading import Reading
from fedstill.data.tables import TABLES, open_hub, open_table

__all__ = ["FILES", "Source", "find_source"]

FILES = (*TABLES, *sorted(ARRAYS))  # endings of files that are a data set by themselves
_HUB_NAME = re.compile(r"^[\w.-]+(/[\w.-]+)?(:[\w.-]+)?(@[\w.-]+)?$")


@dataclass(frozen=True)
class Source:
    """A place that was found: its name, what its cache key depends on, how it is opened, and where it is."""

    name: str
    keyed: Callable[[], Mapping[str, Any]] = field(repr=False)
    opener: Callable[[], Raw] = field(repr=False)
    place: str = ""
    empty: Callable[[], Sequence[str]] = field(default=tuple, repr=False)  # class folders without images

    @cached_property
    def key(self) -> Mapping[str, Any]:
        """What the data is; the same data has the same key wherever it is."""
        return self.keyed()

    @cached_property
    def raw(self) -> Raw:
        """The data itself, opened once."""
        return self.opener()


def find_source(source: str, root: str | Path | None, scratch: Path, reading: Reading) -> Source:
    """Look for ``source`` among the embedded domains, arrays and loaders, under ``root``, on this machine and, last, on the Hub.

    The ending of a file may be left out. On the Hub a name is ``NAME``, ``OWNER/NAME``, with ``:CONFIG`` and ``@REVISION`` where
    wanted.
    """
    if source.startswith("embedded:"):
        name = source.removeprefix("embedded:")
        if name not in EMBEDDED:
            raise unknown("embedded domain", source, [f"embedded:{known}" for known in EMBEDDED])
        return Source(source, lambda: {"embedded": name}, lambda: _open_embedded(name))
    kept = stored(source, scratch)
    if kept is not None:
        digest, path = kept
        return Source(source, lambda: {"arrays": digest}, lambda: open_arrays(source, path))
    arrays = brought(source)
    if arrays is not None:
        return Source(source, lambda: {"arrays": arrays.digest, "loader": True}, lambda: arrays.raw)
    places = [Path(root).expanduser() / source] if root is not None else []
    for place in [*places, Path(source).expanduser()]:
        found = next((path for path in (place, *(place.with_name(place.name + end) for end in FILES)) if path.exists()), None)
        if found is not None:
            return _local(source, found.resolve(), scratch, reading)
    folder = Path(root).expanduser() if root is not None else None
    if folder is not None and not folder.is_dir():
        raise FedstillError(f"data.root = '{root}' is not a folder: it says where the data is", setting="data.root=FOLDER")
    close = nearest(source, [child.name for child in folder.iterdir()]) if folder is not None else None
    hint = f"; did you mean '{close}'?" if close else ""
    if source.startswith(("./", "../", "/", "~")):  # a path, which no name on the Hub begins like
        raise FedstillError(f"no such folder or file: {source}{hint}")
    if not _HUB_NAME.match(source):
        raise FedstillError(f"no data at '{source}': not a folder, a file or a Hub name{hint}")
    return Source(source, lambda: {"hub": source, "read": _read_as(reading)}, lambda: open_hub(source, hint, reading))


def _read_as(reading: Reading) -> list[Any]:
    """The options that decide how a table is read."""
    return [reading.kind, reading.label, reading.ignore]


def _local(source: str, place: Path, scratch: Path, reading: Reading) -> Source:
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    endings = {path.suffix.lower() for path in files}
    images = bool(endings & IMAGES) and not place.is_file()

    def keyed(**more: Any) -> Callable[[], Mapping[str, Any]]:
        return lambda: {"content": _content(place, files, scratch), **more}

    if place.is_file() and not endings & {*FILES}:
        raise FedstillError(f"cannot read '{source}': a data file is one of {', '.join(sorted(FILES))}")
    if endings & TABLES.keys() and not (images and reading.kind == "image"):
        return Source(source, keyed(read=_read_as(reading)), lambda: open_table(source, place, scratch, reading), str(place))
    if images and reading.kind in ("auto", "image"):
        # the layout is raised whenever the same folder would be read differently
        opener = partial(open_image_folder, place, files)
        return Source(source, keyed(layout=3), opener, str(place), partial(empty_classes, place, files))
    if endings & ARRAYS:
        return Source(source, keyed(), lambda: open_arrays(source, place), str(place))
    if images:
        raise FedstillError(f"'{source}' is a folder of images, and data.kind = '{reading.kind}'")
    raise FedstillError(f"no data at '{source}': the folder holds neither tables nor images nor arrays")


def _content(place: Path, files: Sequence[Path], scratch: Path) -> str:
    """A digest of files' names and bytes. They are read again only if a size or a time of change differs from the last time."""
    names = [str(path.relative_to(place)) if path != place else path.suffix for path in files]
    stats = [path.stat() for path in files]
    seen = {"path": str(place), "files": [[n, s.st_size, s.st_mtime_ns] for n, s in zip(names, stats, strict=True)]}

    def digest() -> tuple[dict[str, Tensor], dict[str, Any]]:
        with ThreadPoolExecutor() as pool:
            held = list(pool.map(_file_digest, files))
        whole = hashlib.sha256(json.dumps(list(zip(names, held, strict=True))).encode())
        return {}, {"content": whole.hexdigest()}

    found: str = cached({"what": "content", **seen}, scratch, digest, place.name)[1]["content"]
    return found


def _file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_embedded(name: str) -> Raw:
    images, labels = embedded_images(name)
    items = [Encoded(f"image {i} of 'embedded:{name}'", lambda image=image: image) for i, image in enumerate(images)]  # type: ignore[misc]
    return Raw("image", tuple(str(digit) for digit in range(10)), RawSplit(len(items), lambda: iter(items), labels), None)
