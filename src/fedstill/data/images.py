"""Images of any size and mode as one uint8 tensor of a common shape."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from fedstill.core.errors import FedstillError

__all__ = ["image_shape", "png_grid", "resized", "stack_images"]

_GREY_MODES = frozenset({"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "I;16N", "F"})


def image_shape(image: Image.Image) -> tuple[int, int, int]:
    """Channels (1 for grey, 3 for colour), height and width of an image.

    >>> image_shape(Image.new("RGB", (4, 3)))
    (3, 3, 4)
    """
    return (1 if image.mode in _GREY_MODES else 3), image.height, image.width


def stack_images(images: Iterable[Image.Image], count: int, shape: tuple[int, int, int], name: str = "the data") -> Tensor:
    """``count`` images as uint8 ``(count, channels, height, width)``, each resized and converted to ``shape``.

    Colour becomes grey by luma, grey becomes colour by repetition; shrinking is antialiased. An image that cannot be
    decoded is an error that says which one of ``name`` it is.

    >>> stack_images([Image.new("L", (2, 2), 7)], 1, (3, 4, 4)).unique().tolist()
    [7]
    """
    channels, height, width = shape
    out = np.empty((count, height, width, channels), dtype=np.uint8)
    rows = iter(images)
    for number in range(count):
        try:
            out[number] = _pixels(next(rows), channels, height, width)
        except OSError as error:
            raise FedstillError(f"image {number} of '{name}' cannot be decoded: {error}") from error
    return torch.from_numpy(out).permute(0, 3, 1, 2).contiguous()


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


def _pixels(image: Image.Image, channels: int, height: int, width: int) -> np.ndarray:
    mode = "L" if channels == 1 else "RGB"
    # A JPEG much larger than what is wanted is decoded at a fraction of its size.
    image.draft(None, (2 * width, 2 * height))
    if image.mode.startswith("I"):  # 16-bit greys: the high byte
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(height, width, channels)


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
