"""Sources of domains: the wheels, a program, a local folder or file, or the Hugging Face Hub.

Every source becomes a `Raw`: images, texts, vectors or columns that are read when needed, their labels and the class names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError, nearest, unknown
from fedstill.data.arrays import ARRAYS, open_arrays, stored
from fedstill.data.embedded import EMBEDDED, embedded_images
from fedstill.data.folders import IMAGES, open_image_folder
from fedstill.data.loaders import brought
from fedstill.data.raw import Encoded, Raw, RawSplit
from fedstill.data.reading import Reading
from fedstill.data.tables import TABLES, open_hub, open_table

__all__ = ["FILES", "Source", "find_source"]

FILES = (*TABLES, *sorted(ARRAYS))  # endings of files that are a data set by themselves
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


def find_source(source: str, root: str | Path | None, scratch: Path, reading: Reading) -> Source:
    """Look for ``source`` among the embedded domains, arrays and loaders, under ``root``, on this machine and, last, on the Hub.

    The ending of a file may be left out. On the Hub a name is ``NAME``, ``OWNER/NAME``, with ``:CONFIG`` and ``@REVISION`` where
    wanted.
    """
    if source.startswith("embedded:"):
        name = source.removeprefix("embedded:")
        if name not in EMBEDDED:
            raise unknown("embedded domain", source, [f"embedded:{known}" for known in EMBEDDED])
        return Source(source, {"embedded": name}, lambda: _open_embedded(name))
    kept = stored(source, scratch)
    if kept is not None:
        digest, path = kept
        return Source(source, {"arrays": digest}, lambda: open_arrays(source, path))
    arrays = brought(source)
    if arrays is not None:
        return Source(source, {"arrays": arrays.digest, "loader": True}, lambda: arrays.raw)
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
    if not _HUB_NAME.match(source):
        raise FedstillError(f"no data at '{source}': not a folder, a file or a Hub name{hint}")
    return Source(source, {"hub": source, "read": _read_as(reading)}, lambda: open_hub(source, hint, reading))


def _read_as(reading: Reading) -> list[Any]:
    """The options that decide how a table is read."""
    return [reading.kind, reading.label, reading.ignore]


def _local(source: str, place: Path, scratch: Path, reading: Reading) -> Source:
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    stats = [(str(path.relative_to(place)), path.stat()) for path in files]
    key: dict[str, Any] = {"path": str(place), "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]}
    endings = {path.suffix.lower() for path in files}
    images = bool(endings & IMAGES) and not place.is_file()
    if place.is_file() and not endings & {*FILES}:
        raise FedstillError(f"cannot read '{source}': a data file is one of {', '.join(sorted(FILES))}")
    if endings & TABLES.keys() and not (images and reading.kind == "image"):
        return Source(source, {**key, "read": _read_as(reading)}, lambda: open_table(source, place, scratch, reading))
    if images and reading.kind in ("auto", "image"):
        key["layout"] = 3  # raised whenever the same folder would be read differently
        return Source(source, key, lambda: open_image_folder(place, files))
    if endings & ARRAYS:
        return Source(source, key, lambda: open_arrays(source, place))
    if images:
        raise FedstillError(f"'{source}' is a folder of images, and data.kind = '{reading.kind}'")
    raise FedstillError(f"no data at '{source}': the folder holds neither tables nor images nor arrays")


def _open_embedded(name: str) -> Raw:
    images, labels = embedded_images(name)
    items = [Encoded(f"image {i} of 'embedded:{name}'", lambda image=image: image) for i, image in enumerate(images)]  # type: ignore[misc]
    return Raw("image", tuple(str(digit) for digit in range(10)), RawSplit(len(items), lambda: iter(items), labels), None)
