"""Images of more than 8 bits: their values, and which of these are black and white, as far as the files say.

Pillow opens 16-bit greys, 32-bit integers and floats unchanged, but keeps only the high byte of 16-bit colours; here both
bytes are read. All such images of a domain share one range, so that equal values stay equal.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from fedstill.core.errors import FedstillError
from fedstill.data.raw import Deep, Limits

__all__ = ["Depth", "deep_image", "domain_range", "is_deep", "measure", "rawmode"]

_BITS, _INVERTED, _FORMAT = 258, 262, 339  # tags of TIFF: BitsPerSample, PhotometricInterpretation, SampleFormat
_LOWEST, _HIGHEST = (340, 280), (341, 281)  # SMinSampleValue or MinSampleValue, SMaxSampleValue or MaxSampleValue
_OTHER = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}  # the byte order that shows the low byte
_16 = (0.0, 65535.0)
_DEEP = ("RGB;16", "RGBA;16", "RGBX;16", "LA;16")  # of which Pillow keeps the high bytes


def is_deep(image: Image.Image) -> bool:
    """Whether an image has more than 8 bits a value; its header is enough.

    >>> is_deep(Image.new("F", (2, 2))), is_deep(Image.new("L", (2, 2)))
    (True, False)
    """
    return image.mode == "F" or image.mode.startswith("I") or rawmode(image).startswith(_DEEP)


def deep_image(image: Image.Image, again: Image.Image) -> Deep:
    """The values of a deep image and what its file says of them; ``again`` is the same image opened a second time."""
    declared, room = _limits(image)
    inverted = _tags(image).get(_INVERTED) == 0
    if not rawmode(image).startswith(_DEEP):
        return Deep(np.asarray(image), declared, room, inverted=inverted)
    if rawmode(image).startswith("LA"):
        # read as if each byte were a channel, since there is no way to the low bytes of grey and alpha alone
        again._mode = "RGBA"
        again.tile = [tile._replace(args="RGBA") for tile in again.tile]  # type: ignore[attr-defined]
        four = np.asarray(again).astype(np.uint16)
        return Deep(four[..., 0] << 8 | four[..., 1], declared, room, alpha=(four[..., 2] << 8 | four[..., 3]) / 65535)
    again.tile = [tile._replace(args=_other_byte(tile.args)) for tile in again.tile]  # type: ignore[attr-defined]
    high, low = np.asarray(image).astype(np.uint16), np.asarray(again)
    whole = high << 8 | low
    return Deep(whole[..., :3], declared, room, alpha=whole[..., 3] / 65535 if whole.shape[2] == 4 else None)


def rawmode(image: Image.Image) -> str:
    """How Pillow reads the file's pixels, such as ``RGB;16B``; empty if they are already read."""
    tiles = getattr(image, "tile", None)
    args = tiles[0].args if tiles else ""
    return str(args[0] if isinstance(args, tuple) and args else args)


def _other_byte(args: Any) -> Any:
    mode, rest = (args[0], args[1:]) if isinstance(args, tuple) else (args, None)
    swapped = f"{mode[:-1]}{_OTHER[mode[-1]]}"
    return swapped if rest is None else (swapped, *rest)


def _tags(image: Image.Image) -> dict[int, Any]:
    return dict(getattr(image, "tag_v2", {}))


def _limits(image: Image.Image) -> tuple[Limits | None, Limits | None]:
    """What the file declares, and what it has room for."""
    if image.format in ("PPM", "JPEG2000"):  # which Pillow spreads over 16 bits
        return _16, _16
    if image.format == "PNG":
        bits = _significant_bits(image)
        return (0.0, 2.0**bits - 1) if bits else None, _16
    tags = _tags(image)
    bits, form = int(max(_numbers(tags.get(_BITS, 16)))), max(_numbers(tags.get(_FORMAT, 1)))
    high = next((float(max(_numbers(tags[tag]))) for tag in _HIGHEST if tag in tags), None)
    low = next((float(min(_numbers(tags[tag]))) for tag in _LOWEST if tag in tags), None)
    if image.mode.startswith("I;16") or image.mode.startswith("RGB"):
        # a greatest value is a matter of bits: one file's own maximum would not be the next one's
        used = math.ceil(math.log2(high + 1)) if high is not None and 255 < high < 2**bits - 1 else bits
        return (0.0, 2.0**used - 1) if used < 16 else None, (0.0, 2.0**bits - 1)
    known = low is not None and high is not None and low < high and (form == 3 or high < 2 ** (bits - 1) - 1)
    return (low, high) if known else None, None  # type: ignore[return-value]


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _significant_bits(image: Image.Image) -> int | None:
    """What a PNG's chunk sBIT says, which Pillow does not read."""
    file = getattr(image, "fp", None)
    if file is None:
        return None
    here = file.tell()
    try:
        file.seek(8)
        while True:
            length, kind = struct.unpack(">I4s", file.read(8))
            if kind == b"sBIT":
                return max(file.read(length), default=0) or None
            if kind == b"IDAT":
                return None
            file.seek(length + 4, 1)
    finally:
        file.seek(here)


# -- one range for a domain ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Depth:
    """The deep images of a domain that have no limits of their own: their least and greatest value, the widest limits that any
    of them declares, and the widest range that all can hold; None for what is unknown."""

    found: Limits
    declared: Limits | None
    room: Limits | None


def measure(images: Iterable[Deep]) -> Depth | None:
    """The values in these images; None if all have limits of their own.

    >>> measure([Deep(np.array([[0, 900]], dtype=np.int32))])
    Depth(found=(0.0, 900.0), declared=None, room=None)
    """
    found: list[Limits] = []
    declared: list[Limits] = []
    rooms: list[Limits | None] = []
    silent = False
    for image in images:
        if image.own:
            continue
        finite = image.values[np.isfinite(image.values)] if image.values.dtype.kind == "f" else image.values
        if finite.size:
            found.append((float(finite.min()), float(finite.max())))
        if image.declared is not None:
            declared.append(image.declared)
        rooms.append(image.room)
        silent = silent or (image.declared is None and image.room is None)
    if not rooms:
        return None
    known = [room for room in rooms if room is not None]
    whole = _widest(known) if len(known) == len(rooms) else None
    return Depth(_widest(found) or (0.0, 0.0), None if silent else _widest(declared), whole)


def _widest(limits: list[Limits]) -> Limits | None:
    return (min(low for low, _ in limits), max(high for _, high in limits)) if limits else None


def domain_range(depth: Depth, wanted: Limits | None, name: str) -> Limits:
    """The values that are black and white in all deep images of the domain ``name``; an error if they cannot be known.

    A declared range that the values exceed is ignored. If files only say how many bits there are, values that use less than a
    quarter of the range may as well be of 12 bits, so nothing is guessed.

    >>> domain_range(Depth((0, 4000), (0, 4095), (0, 65535)), None, "a")
    (0, 4095)
    >>> domain_range(Depth((0, 900), None, None), None, "a")
    Traceback (most recent call last):
    fedstill.core.errors.FedstillError: the images of 'a' hold values from 0 to 900, and their files do not say which are black \
and white: set data.range, such as [0, 1023]
    """
    low, high = depth.found
    if wanted is not None:
        at_an_end = low < high and (high == wanted[0] or low == wanted[1])
        if high < wanted[0] or low > wanted[1] or at_an_end:
            text = f"data.range = [{wanted[0]:g}, {wanted[1]:g}]"
            raise FedstillError(f"{text}, but the images of '{name}' hold values from {low:g} to {high:g}")
        return wanted
    for limits, share in ((depth.declared, 0.0), (depth.room, 0.25)):
        inside = limits is not None and limits[0] <= low and high <= limits[1]
        black = limits is not None and low == high == limits[0]  # on every scale
        if limits is not None and inside and (black or max(-low, high) >= share * max(-limits[0], limits[1])):
            return limits
    room = f", with room up to {depth.room[1]:g}" if depth.room is not None else ""
    raise FedstillError(
        f"the images of '{name}' hold values from {low:g} to {high:g}{room}, and their files do not say which are black and "
        f"white: set data.range, such as [{', '.join(f'{value:g}' for value in _likely(low, high))}]"
    )


def _likely(low: float, high: float) -> Limits:
    """A likely range for values between ``low`` and ``high``."""
    if low >= 0 and high <= 1:
        return (0.0, 1.0)
    if low >= 0 and high == int(high):
        return (0.0, 2.0 ** max(1, math.ceil(math.log2(high + 1))) - 1)
    return (low, high)
