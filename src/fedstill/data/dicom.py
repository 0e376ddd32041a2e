"""DICOM files as images (extra ``dicom``, pydicom): values on the scanner's scale, and their window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedstill.core.errors import FedstillError
from fedstill.data.raw import Deep, Encoded, Header, Limits

__all__ = ["DICOM", "dicom_image"]

DICOM = frozenset({".dcm", ".dicom"})


def dicom_image(path: Path, name: str) -> Encoded:
    """The image in a DICOM file, not decoded yet."""
    return Encoded(name, lambda: _decoded(_read(path, pixels=True)), lambda: _header(_read(path, pixels=False)))


def _read(path: Path, pixels: bool) -> Any:
    try:
        import pydicom  # optional: an extra
    except ImportError as error:
        raise FedstillError(f"'{path}' is a DICOM file, which needs pydicom: pip install 'fedstill[dicom]'") from error
    return pydicom.dcmread(path, stop_before_pixels=not pixels)


def _header(found: Any) -> Header:
    frames = int(found.get("NumberOfFrames", 1) or 1)
    if frames > 1:
        raise ValueError(f"it holds {frames} frames: write each to a file of its own")
    grey = int(found.SamplesPerPixel) == 1 and found.PhotometricInterpretation != "PALETTE COLOR"
    return Header(1 if grey else 3, int(found.Rows), int(found.Columns), deep=_has_more(found))


def _has_more(found: Any) -> bool:
    """Whether the image is more than 8 bits without a window or another scale."""
    if found.PhotometricInterpretation == "PALETTE COLOR":
        return False
    scaled = float(found.get("RescaleSlope", 1)) != 1 or float(found.get("RescaleIntercept", 0)) != 0
    return int(found.BitsStored) > 8 or scaled or _window(found) is not None or "ModalityLUTSequence" in found


def _decoded(found: Any) -> Image.Image | Deep:
    # optional: an extra
    from pydicom.pixels.processing import apply_color_lut, apply_modality_lut
    from pydicom.pixels.utils import pixel_array

    _header(found)  # more than one frame is refused
    inverted = found.PhotometricInterpretation == "MONOCHROME1"
    pixels: np.ndarray = pixel_array(found)
    if found.PhotometricInterpretation == "PALETTE COLOR":
        colours = apply_color_lut(pixels, found)
        return Image.fromarray(colours if colours.dtype == np.uint8 else (colours >> 8).astype(np.uint8))
    if not _has_more(found):
        bytes_of = _spread(pixels, int(found.BitsStored))
        return Image.fromarray(255 - bytes_of if inverted else bytes_of)
    window = _window(found)
    values = apply_modality_lut(pixels, found)
    if window is not None:
        return Deep(values, window, own=True, inverted=inverted)
    bits, signed = int(found.BitsStored), int(found.get("PixelRepresentation", 0)) == 1
    ends = np.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if signed else [0, 2**bits - 1])
    if "ModalityLUTSequence" in found:
        return Deep(values, inverted=inverted)
    low, high = sorted(float(found.get("RescaleSlope", 1)) * ends + float(found.get("RescaleIntercept", 0)))
    return Deep(values, room=(low, high), inverted=inverted)


def _window(found: Any) -> Limits | None:
    """The values that the (first) window shows as black and white: DICOM PS3.3, C.11.2.1.2."""
    given = [found.get("WindowCenter"), found.get("WindowWidth")]
    if int(found.SamplesPerPixel) > 1 or None in given:
        return None
    centre, width = (float(_first(value)) for value in given)
    if found.get("VOILUTFunction", "LINEAR") == "LINEAR":
        centre, width = centre - 0.5, width - 1
    return (centre - width / 2, centre + width / 2) if width > 0 else None


def _first(value: Any) -> Any:
    return value if isinstance(value, str | float | int) else next(iter(value), 0)


def _spread(pixels: np.ndarray, bits: int) -> np.ndarray:
    """Fewer than 8 bits over the whole range of a byte."""
    return pixels.astype(np.uint8) if bits == 8 else np.rint(pixels * (255 / (2**bits - 1))).astype(np.uint8)
