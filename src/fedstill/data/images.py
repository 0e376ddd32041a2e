"""Images of any size and mode as one uint8 tensor of a common shape."""

from __future__ import annotations

import io
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from fedstill.core.errors import FedstillError, first_line
from fedstill.data.depth import Depth, deep_image, is_deep, measure, rawmode
from fedstill.data.raw import Deep, Encoded, Header, Limits

__all__ = ["Look", "Unreadable", "cannot_decode", "header_of", "left_out", "look_at", "png_grid", "resized", "stack_images"]

_GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F"})
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)  # orientations that exchange height and width
_LIGHT = 192  # ink lighter than this would be lost on white
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_16_BITS = (0.0, 65535.0)
_LOOKED_AT = 100  # transparent images whose ink decides on the background
NAMED = 10  # of the images that could not be decoded, this many are named
_PIECE = 64  # images that a thread decodes at a time
Unreadable = list[tuple[str, str]]  # an image's name, and why it cannot be decoded


def header_of(image: Image.Image | Deep) -> Header:
    """An image's properties, from its header alone: channels (1 for grey, 3 for colour), height and width when upright.

    >>> header_of(Image.new("RGBA", (4, 3)))
    Header(channels=3, height=3, width=4, transparent=True, deep=False)
    """
    if isinstance(image, Deep):
        height, width = image.values.shape[:2]
        return Header(1 if image.values.ndim == 2 else 3, height, width, deep=True)
    width, height = image.size
    # a PNG's orientation may stand behind its pixels: to look for it would decode them; Pillow turns a TIFF's size itself
    known = "exif" in image.info if image.format == "PNG" else image.format != "TIFF"
    if known and image.getexif().get(_ORIENTATION) in _SIDEWAYS:
        width, height = height, width
    grey = image.mode in _GREY_MODES or rawmode(image).startswith("LA")
    transparent = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    return Header(1 if grey else 3, height, width, transparent, is_deep(image))


@dataclass(frozen=True)
class Look:
    """The common properties of a domain's images."""

    shape: tuple[int, int, int]  # the most channels of any image, the first one's height and width
    background: int | None = None  # what shows through transparent pixels; None where there are none
    deep: bool = False  # whether any has more than 8 bits
    depth: Depth | None = None  # what these hold, where they have no limits of their own


def look_at(images: Callable[[], Iterable[Encoded]], unreadable: str, name: str) -> Look:
    """Look at all images: at their headers, and at the values of those that have more than 8 bits.

    >>> grey, colour = Image.new("L", (4, 3)), Image.new("RGB", (9, 9))
    >>> look_at(lambda: [Encoded("a", lambda: grey), Encoded("b", lambda: colour)], "error", "site").shape
    (3, 3, 4)
    """
    shape: tuple[int, int, int] | None = None
    clear: list[bool] = []
    deep: list[bool] = []
    for item in images():
        header = _tried(item, _header, unreadable)
        if header is not None:
            channels, height, width = shape or (header.channels, header.height, header.width)
            shape = (max(channels, header.channels), height, width)
        clear.append(header is not None and header.transparent)
        deep.append(header is not None and header.deep)
    if shape is None:
        raise FedstillError(f"none of the images of '{name}' can be decoded")
    depth = measure(_chosen(images(), deep, unreadable, _values)) if any(deep) else None
    background = _background(_chosen(images(), clear, unreadable, _ink)) if any(clear) else None
    return Look(shape, background, any(deep), depth)


def _header(item: Encoded) -> Header:
    if item.look is not None:
        return item.look()
    image = item.open()
    if isinstance(image, Deep):
        return header_of(image)
    with image:
        return header_of(image)


Found = TypeVar("Found")


def _chosen(
    images: Iterable[Encoded], wanted: Iterable[bool], unreadable: str, make: Callable[[Encoded], Found | None]
) -> Iterator[Found]:
    for item, taken in zip(images, wanted, strict=True):
        found = _tried(item, make, unreadable) if taken else None
        if found is not None:
            yield found


def _tried(item: Encoded, make: Callable[[Encoded], Found], unreadable: str) -> Found | None:
    """What ``make`` returns. If the image cannot be decoded: None, or an error that names it."""
    try:
        return make(item)
    except FedstillError:
        raise
    except Exception as error:  # a decoder may raise anything on a damaged file
        if unreadable == "skip":
            return None
        raise cannot_decode(item.name, _why(error, item.name)) from error


def cannot_decode(name: str, reason: str) -> FedstillError:
    """The error for an image that cannot be decoded."""
    text = f"{name} cannot be decoded: {reason}; data.unreadable = 'skip' leaves such images out"
    return FedstillError(text, setting="data.unreadable=skip")


def _why(error: Exception, name: str) -> str:
    """A decoder's reason, without the name of the image, which is said anyway.

    >>> _why(OSError("cannot identify image file '/data/a.png'"), "'/data/a.png'")
    'cannot identify image file'
    """
    return first_line(error, 5000).replace(name, "").rstrip(" :")[:200]


def left_out(name: str, images: Sequence[str]) -> str:
    """The message about images that could not be decoded.

    >>> left_out("site", ["'a.jpg'"])
    "1 image of 'site' left out as undecodable: 'a.jpg'"
    """
    more = f" and {len(images) - NAMED} more" if len(images) > NAMED else ""
    count = "1 image" if len(images) == 1 else f"{len(images)} images"
    return f"{count} of '{name}' left out as undecodable: {', '.join(images[:NAMED])}{more}"


def _values(item: Encoded) -> Deep:
    """The values of a deep image, upright."""
    image = item.open()
    if isinstance(image, Deep):
        return image
    again = item.open()
    assert isinstance(again, Image.Image)
    with image, again:
        deep, orientation = deep_image(image, again), _orientation(image)
        alpha = None if deep.alpha is None else _turned(deep.alpha, orientation)
        return replace(deep, values=_turned(deep.values, orientation), alpha=alpha)


def _turned(values: np.ndarray, orientation: int) -> np.ndarray:
    """Values (height, width, ...) turned upright from one of EXIF's eight orientations."""
    if orientation in _SIDEWAYS:
        values = values.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        values = values[::-1]
    return values[:, ::-1] if orientation in (2, 3, 6, 7) else values


def _ink(item: Encoded) -> float | None:
    """The lightness of a transparent image's visible part, from 0 to 255; None if it is all opaque, or all invisible."""
    image = item.open()
    assert isinstance(image, Image.Image)
    if is_deep(image):
        deep = _values(item)
        if deep.alpha is None:
            return None
        grey = (deep.values if deep.values.ndim == 2 else deep.values @ _LUMA) * (255 / (deep.declared or _16_BITS)[1])
        weight = deep.alpha
    else:
        with image:
            grey, weight = np.asarray(image.convert("RGBA").convert("LA"), dtype=np.float64).transpose(2, 0, 1) / [[[1]], [[255]]]
    if weight.min() == 1 or weight.max() == 0:
        return None
    return float((grey * weight).sum() / weight.sum())


def _background(inks: Iterator[float]) -> int | None:
    """What shows through transparent pixels: white, or black where the ink is so light that it would be lost."""
    found = list(itertools.islice(inks, _LOOKED_AT))
    return None if not found else 0 if sum(found) / len(found) > _LIGHT else 255


def stack_images(
    images: Iterable[Encoded],
    count: int,
    shape: tuple[int, int, int],
    *,
    background: int | None = None,
    limits: Limits | None = None,
    own: bool = True,
    done: Callable[[int], None] = lambda images: None,
) -> tuple[Tensor, np.ndarray, Unreadable]:
    """``count`` images as uint8 ``(count, channels, height, width)``, each turned upright, resized and converted to ``shape``.

    Colour becomes grey by luma, grey becomes colour by repetition; shrinking is antialiased. Transparent pixels show the
    ``background``. In images of more than 8 bits, ``limits`` become 0 and 255, unless an image has limits of its ``own``. Also
    returned: the positions of the images that could be decoded, and the names of the others. Threads share the work, since
    decoders run beside each other; ``done`` is told how many images they have finished.

    >>> x, kept, lost = stack_images([Encoded("a", lambda: Image.new("L", (2, 2), 7))], 1, (3, 4, 4))
    >>> x.unique().tolist(), kept.tolist(), lost
    ([7], [0], [])
    """
    channels, height, width = shape
    out = np.empty((count, channels, height, width), dtype=np.uint8)
    failed: dict[int, tuple[str, str]] = {}

    def decode(piece: Sequence[tuple[int, Encoded]]) -> int:
        for number, item in piece:
            try:
                out[number] = _pixels(item, shape, background, limits, own).transpose(2, 0, 1)
            except FedstillError:
                raise
            except Exception as error:  # a decoder may raise anything on a damaged file
                failed[number] = (item.name, _why(error, item.name))
        return len(piece)

    found = 0
    for pieces in _in_threads(decode, itertools.islice(enumerate(images), count)):
        found += pieces
        done(found)
    kept = np.array([number for number in range(found) if number not in failed], dtype=np.int64)
    x = torch.from_numpy(out[:found] if len(kept) == found else out[kept])
    return x, kept, [failed[number] for number in sorted(failed)]


def _in_threads(decode: Callable[[Sequence[tuple[int, Encoded]]], int], images: Iterator[tuple[int, Encoded]]) -> Iterator[int]:
    """``decode`` of one piece of the images after another, in as many threads as there are cores; few pieces are read ahead."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[int]] = deque()
        try:
            while piece := list(itertools.islice(images, _PIECE)):
                waiting.append(pool.submit(decode, piece))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def resized(x: Tensor, shape: Sequence[int]) -> Tensor:
    """A batch of uint8 images (n, channels, height, width) brought to another ``shape``, as :func:`stack_images` would.

    >>> grey = torch.full((1, 1, 4, 4), 9, dtype=torch.uint8)
    >>> made = resized(grey, (3, 2, 2))
    >>> tuple(made.shape), made.unique().tolist(), resized(grey, (1, 4, 4)) is grey
    ((1, 3, 2, 2), [9], True)
    """
    if tuple(x.shape[1:]) == tuple(shape):
        return x
    channels, height, width = shape
    if x.shape[1] == 3 and channels == 1:
        luma = torch.tensor([0.299, 0.587, 0.114], device=x.device).view(1, 3, 1, 1)
        x = (x.float() * luma).sum(1, keepdim=True).round().to(torch.uint8)
    elif x.shape[1] == 1 and channels == 3:
        x = x.expand(-1, 3, -1, -1)
    elif x.shape[1] != channels:
        raise FedstillError(f"images of {x.shape[1]} channels cannot become images of {channels}")
    if x.shape[2:] != (height, width):
        x = F.interpolate(x.float(), (height, width), mode="bilinear", antialias=True).round().clamp(0, 255).to(torch.uint8)
    return x


def _pixels(item: Encoded, shape: tuple[int, int, int], background: int | None, limits: Limits | None, own: bool) -> np.ndarray:
    """One image as (height, width, channels), uint8."""
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    image = item.open()
    if isinstance(image, Deep) or is_deep(image):
        deep = image if isinstance(image, Deep) else _values(item)
        return _spread(deep, deep.declared if deep.own and own else limits, shape, background)
    with image:
        # A JPEG much larger than what is wanted is decoded at a fraction of its size.
        sideways = "exif" in image.info and _orientation(image) in _SIDEWAYS
        image.draft(None, (2 * height, 2 * width) if sideways else (2 * width, 2 * height))
        image.load()
        upright = ImageOps.exif_transpose(image) if _orientation(image) != 1 else image
        if background is not None and header_of(image).transparent:
            upright = _composed(upright, background)
        if upright.mode != mode:
            upright = upright.convert(mode)
        if upright.size != (width, height):
            upright = upright.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(upright).reshape(height, width, channels)


def _orientation(image: Image.Image) -> int:
    return 1 if image.format == "TIFF" else int(image.getexif().get(_ORIENTATION, 1))  # Pillow itself turns a TIFF


def _composed(image: Image.Image, background: int) -> Image.Image:
    front = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", front.size, (background, background, background, 255)), front)


def _spread(deep: Deep, limits: Limits | None, shape: tuple[int, int, int], background: int | None) -> np.ndarray:
    """Deep values as bytes: scaled so that ``limits`` become 0 and 255, then rounded."""
    assert limits is not None, "a deep image without limits is refused before"
    channels, height, width = shape
    low, high = limits
    scaled = (np.nan_to_num(deep.values.astype(np.float64), nan=low) - low) * (255 / (high - low))
    scaled = np.clip(255 - scaled if deep.inverted else scaled, 0, 255).astype(np.float32)
    if scaled.ndim == 3 and channels == 1:
        scaled = scaled @ _LUMA
    if deep.alpha is not None and background is not None:
        alpha = (deep.alpha if scaled.ndim == 2 else deep.alpha[..., None]).astype(np.float32)
        scaled = alpha * scaled + (1 - alpha) * np.float32(background)
    planes = [scaled] if scaled.ndim == 2 else [np.ascontiguousarray(scaled[..., c]) for c in range(3)]
    found = [_resized_plane(Image.fromarray(plane), (width, height)) for plane in planes]
    return np.repeat(np.stack(found, axis=-1), channels // len(found), axis=-1)


def _resized_plane(plane: Image.Image, size: tuple[int, int]) -> np.ndarray:
    if plane.size != size:
        plane = plane.resize(size, Image.Resampling.BILINEAR)
    pixels: np.ndarray = np.rint(np.asarray(plane)).clip(0, 255).astype(np.uint8)
    return pixels


def png_grid(images: Tensor, columns: int, gap: int = 2) -> bytes:
    """Images (n, channels, height, width) in [-1, 1] as one PNG of ``columns`` columns.

    >>> grid = Image.open(io.BytesIO(png_grid(torch.zeros(6, 1, 4, 4), columns=3)))
    >>> grid.size, grid.mode
    ((20, 14), 'L')
    """
    n, channels, height, width = images.shape
    rows = -(-n // columns)
    sheet = torch.full((channels, rows * (height + gap) + gap, columns * (width + gap) + gap), 255, dtype=torch.uint8)
    pixels = ((images.detach().cpu().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    for i, image in enumerate(pixels):
        top, left = gap + i // columns * (height + gap), gap + i % columns * (width + gap)
        sheet[:, top : top + height, left : left + width] = image
    shown = sheet[0].numpy() if channels == 1 else sheet.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(shown).save(file, "PNG", optimize=True)
    return file.getvalue()
