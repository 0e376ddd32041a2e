"""The pictures of runs: generator samples and figures, within the page's size budget; and which of the samples are noise."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedstill.report.numbers import count, fixed
from fedstill.report.runs import Run

if TYPE_CHECKING:  # slow, and a page without pictures needs none
    import numpy as np

__all__ = ["DECIDED", "Measures", "measures", "pictures", "what_is_wrong"]

# The page must stay easy to store and send: at most 6 MB in all, of which the plotting library takes two.
IMAGE_BYTES = 2_000_000

GAP = 2  # pixels between the images of a sheet of samples
# Grey levels are 0 to 1. Digits have values of 0.7 to 0.97, 0.11 to 0.3 and 0.2 to 0.3; white noise has a neighbour value of 0.
LEAST_NEIGHBOUR, LEAST_WITHIN, LEAST_CONTRAST = 0.35, 0.03, 0.02
LEAST_AGREEMENT = 0.5

DECIDED = (
    "Samples are marked as noise if neighbouring pixels are hardly correlated (correlation below "
    f"{LEAST_NEIGHBOUR:g}; pictures of objects have 0.7 and more), as flat if an image has hardly any contrast, and as repeated "
    f"if the images of a class differ by less than {LEAST_WITHIN:.0%} of the grey levels."
).replace("%", " %")


@dataclass(frozen=True)
class Measures:
    """Measures of a sheet of samples, with grey levels from 0 to 1."""

    contrast: float  # standard deviation of the pixels of an image
    neighbour: float  # correlation of neighbouring pixels
    within: float | None  # standard deviation of a pixel among the images of a class; None if the sheet has no columns


def pictures(runs: Sequence[Run], names: Sequence[str]) -> tuple[list[dict[str, str]], str]:
    """Generator samples (the first, the middle and the last of each run) and figures, and a note on pictures left out."""
    found: list[dict[str, str]] = []
    left_out, size = 0, 0
    for run, name in zip(runs, names, strict=True):
        samples = sorted(run.folder.glob("samples/*.png"))
        chosen = sorted({0, len(samples) // 2, len(samples) - 1} & set(range(len(samples))))
        figures = sorted([*run.folder.glob("*.png"), *run.folder.glob("figures/*.png")])
        for path, kind in [*((samples[i], "sample") for i in chosen), *((path, "figure") for path in figures)]:
            data = path.read_bytes()
            if size + len(data) > IMAGE_BYTES:
                left_out += 1
                continue
            size += len(data)
            noted = next((line.get("generator", {}) for line in run.history if line["round"] == _round(path)), {})
            found.append(
                {
                    "kind": kind,
                    "caption": f"{name}: {_name(path)}",
                    "src": "data:image/png;base64," + base64.b64encode(data).decode("ascii"),
                    "wrong": what_is_wrong(measures(data, len(run.classes)), noted) if kind == "sample" else "",
                    "noted": ", ".join(f"{name.replace('_', ' ')} {fixed(value, 3)}" for name, value in noted.items()),
                }
            )
    note = f"{count(left_out, 'picture')} left out to keep the page small; they are in the run folders."
    return found, note if left_out else ""


def _name(path: Path) -> str:
    number = _round(path)
    return path.stem.replace("_", " ") if number is None else f"round {number}"


def _round(path: Path) -> int | None:
    numbered = re.fullmatch(r"round_0*(\d+)", path.stem)
    return int(numbered[1]) if numbered else None


def measures(data: bytes, columns: int) -> Measures | None:
    """The measures of a PNG with one column per class; None if it cannot be read."""
    # slow, and a page without pictures needs none
    import numpy as np
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            sheet = np.asarray(image.convert("L"), dtype=np.float64) / 255
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # damaged: the browser shows this
        return None
    tiles = _tiles(sheet, columns)
    images = tiles if tiles is not None else sheet[None, None]
    if min(images.shape[2:]) < 2:
        return None
    centred = images - images.mean((2, 3), keepdims=True)
    variance = (centred**2).mean((2, 3))
    beside = (centred[..., 1:] * centred[..., :-1]).mean((2, 3))
    below = (centred[..., 1:, :] * centred[..., :-1, :]).mean((2, 3))
    shown = variance > 1e-6
    neighbour = float(((beside + below) / 2)[shown].mean() / variance[shown].mean()) if shown.any() else 0.0
    within = float(images.std(0).mean()) if tiles is not None and len(tiles) > 1 else None
    return Measures(float(np.sqrt(variance).mean()), neighbour, within)


def _tiles(sheet: np.ndarray, columns: int) -> np.ndarray | None:
    """The images of a sheet, (rows, columns, height, width); None if the picture is not a sheet of square images with white
    lines between them."""
    high, wide = sheet.shape
    if columns < 1 or (wide - GAP) % columns or (side := (wide - GAP) // columns - GAP) < 2 or (high - GAP) % (side + GAP):
        return None
    across, down = range(GAP, wide, side + GAP), range(GAP, high, side + GAP)
    if any((sheet[top - GAP : top] < 1).any() for top in down) or any((sheet[:, left - GAP : left] < 1).any() for left in across):
        return None
    import numpy as np  # slow, and a page without pictures needs none

    return np.stack([np.stack([sheet[top : top + side, left : left + side] for left in across]) for top in down])


def what_is_wrong(found: Measures | None, noted: Mapping[str, float]) -> str:
    """What is wrong with samples, for the reader of the page; empty if nothing is. ``noted`` is what the run's history says about
    its generator.

    >>> what_is_wrong(Measures(0.3, 0.05, 0.01), {})
    'noise (neighbouring pixels correlate by 0.05), repeated (the images of a class differ by 1.0 %)'
    >>> what_is_wrong(Measures(0.3, 0.9, 0.2), {"label_agreement": 0.1})
    'not recognised (the ensemble sees the class in 10 % of them)'
    """
    if found is None:
        return ""
    agreement = noted.get("label_agreement")
    said = []
    if found.contrast < LEAST_CONTRAST:
        said.append(f"flat (contrast {fixed(100 * found.contrast, 1)} %)")
    elif found.neighbour < LEAST_NEIGHBOUR:
        said.append(f"noise (neighbouring pixels correlate by {fixed(found.neighbour, 2)})")
    if found.within is not None and found.within < LEAST_WITHIN:
        said.append(f"repeated (the images of a class differ by {fixed(100 * found.within, 1)} %)")
    if agreement is not None and agreement < LEAST_AGREEMENT:
        said.append(f"not recognised (the ensemble sees the class in {fixed(100 * agreement, 0)} % of them)")
    return ", ".join(said)
