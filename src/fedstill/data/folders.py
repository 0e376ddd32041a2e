"""Folders of images: one folder per class, one file per image."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from fedstill.core.errors import FedstillError
from fedstill.data.dicom import DICOM, dicom_image
from fedstill.data.raw import Encoded, Raw, RawSplit

__all__ = ["IMAGES", "TEST_NAMES", "TRAIN_NAMES", "empty_classes", "encoded_image", "open_image", "open_image_folder"]

_FORMATS = "png jpg jpeg jpe jfif bmp gif tif tiff webp avif jp2 j2k tga pbm pgm ppm pnm"
IMAGES = frozenset(f".{name}" for name in _FORMATS.split()) | DICOM
_SUBFILE = 254  # the tag NewSubfileType of TIFF
TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "validation", "valid", "val", "dev")


# Image folders are read here, not by `datasets`: its guesses at splits take a class called "test tube" for a test set.
def open_image_folder(place: Path, files: list[Path]) -> Raw:
    """The images in a folder: one folder per class, below ``train`` and ``test`` if these exist, or all without labels."""
    images = _images(place, files)
    train_place = _train_place(place, images)
    train = [path for path in images if train_place in path.parents]
    classes = tuple(_folders(train_place, train))
    if train_place == place:
        return Raw("image", classes, _folder_split(place, images, classes), None)
    splits = {name.lower(): name for name in _folders(place, images)}
    test_name = next((splits[name] for name in TEST_NAMES if name in splits), None)
    if test_name is None:
        return Raw("image", classes, _folder_split(train_place, train, classes), None)
    test_place = place / test_name
    test = [path for path in images if test_place in path.parents]
    extra = set(_folders(test_place, test)) - set(classes)
    if extra:
        raise FedstillError(f"'{test_place}' has a class that the training images lack: {', '.join(sorted(extra))}")
    return Raw("image", classes, _folder_split(train_place, train, classes), _folder_split(test_place, test, classes))


def empty_classes(place: Path, files: list[Path]) -> list[str]:
    """The names of the folders beside the class folders that hold no images, so that their classes are unknown."""
    images = _images(place, files)
    train_place = _train_place(place, images)
    classes = _folders(train_place, images)
    known = {*classes, *((*TRAIN_NAMES, *TEST_NAMES) if train_place == place else ())}
    if not classes:
        return []  # images without labels
    folders = sorted(path.name for path in train_place.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [name for name in folders if not {name, name.lower()} & known]


def _images(place: Path, files: list[Path]) -> list[Path]:
    return [path for path in files if path.suffix.lower() in IMAGES and not _hidden(path.relative_to(place))]


def _train_place(place: Path, images: list[Path]) -> Path:
    """The folder of the class folders: that of the training set, or ``place`` itself."""
    splits = {name.lower(): name for name in _folders(place, images)}
    train_name = next((splits[name] for name in TRAIN_NAMES if name in splits), None)
    # images of trains beside those of buses are a class, not a training set
    others = splits.keys() - {*TRAIN_NAMES, *TEST_NAMES}
    if train_name is None or (others and not _folders(place / train_name, images)):
        return place
    return place / train_name


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _folders(place: Path, files: list[Path]) -> list[str]:
    """The names of the folders in ``place`` that hold some of the files."""
    return sorted({path.relative_to(place).parts[0] for path in files if place in path.parents and path.parent != place})


def _folder_split(place: Path, files: list[Path], classes: tuple[str, ...]) -> RawSplit:
    if not classes:
        return RawSplit(len(files), lambda: map(encoded_image, files), None)
    loose = [path.name for path in files if path.parent == place]
    if loose:
        count = "1 image lies" if len(loose) == 1 else f"{len(loose)} images lie"
        raise FedstillError(f"in '{place}' {count} beside the class folders ({loose[0]}): put each into the folder of its class")
    number = {name: label for label, name in enumerate(classes)}
    labels = np.array([number[path.relative_to(place).parts[0]] for path in files], dtype=np.int64)
    return RawSplit(len(files), lambda: map(encoded_image, files), labels)


def encoded_image(path: Path) -> Encoded:
    """A file that is not decoded yet."""
    if path.suffix.lower() in DICOM:
        return dicom_image(path, f"'{path}'")
    return Encoded(f"'{path}'", lambda: open_image(path))


def open_image(file: Path | BytesIO) -> Image.Image:
    """An image by its header; a TIFF of several pages is refused, since all but the first would be lost."""
    image = Image.open(file)
    if isinstance(image, TiffImageFile):
        image.filename = ""  # by its name Pillow maps it into memory, and then confuses height and width of one that is turned
        pages = sum(_is_page(image, number) for number in range(image.n_frames)) if image.n_frames > 1 else 1
        if pages > 1:
            raise ValueError(f"it holds {pages} pages: write each to a file of its own")
        image.seek(0)
    return image


def _is_page(image: TiffImageFile, number: int) -> bool:
    """Whether this page is more than a smaller copy of another one."""
    image.seek(number)
    return not int(image.tag_v2.get(_SUBFILE, 0)) & 1
