"""Strong variations of unlabelled inputs, so that a small or uniform pool covers more of the input space.

Images are shifted, rotated and scaled, recoloured, laid over one another and made noisy; vectors are mixed and made noisy.
The teachers label the result, so a variation need not keep its class.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["varied_images", "varied_vectors"]


def varied_images(x: Tensor, others: Tensor, rng: torch.Generator) -> Tensor:
    """Images ``x`` (n, channels, height, width), uint8, each varied in its own way; half of them are laid over one of ``others``.

    >>> x = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    >>> made = varied_images(x, x.flip(0), torch.Generator().manual_seed(0))
    >>> made.shape, made.dtype, bool((made != x).any())
    (torch.Size([4, 3, 8, 8]), torch.uint8, True)
    """
    front = _coloured(_moved(x.float() / 255, rng), rng)
    back = _coloured(_moved(others.float() / 255, rng), rng)
    over = torch.rand(len(x), 1, 1, 1, generator=rng)
    # the difference of two images is how MNIST-M puts digits before photographs; a blend keeps both visible
    mixed = torch.where(over < 0.25, (front - back).abs(), torch.lerp(front, back, 0.3))
    made = torch.where(over < 0.5, mixed, front)
    spread = 0.1 * torch.rand(len(x), 1, 1, 1, generator=rng)
    made = made + spread * torch.randn(made.shape, generator=rng)
    return (made.clamp(0, 1) * 255).round().to(torch.uint8)


def _moved(x: Tensor, rng: torch.Generator) -> Tensor:
    """Rotated by up to 15 degrees, scaled by up to a fifth, shifted by up to a tenth of the side."""

    def draw(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(x), generator=rng)

    angle, scale = draw(-math.pi / 12, math.pi / 12), draw(0.8, 1.2)
    cosine, sine = angle.cos() / scale, angle.sin() / scale
    rows = [torch.stack([cosine, -sine, draw(-0.2, 0.2)], 1), torch.stack([sine, cosine, draw(-0.2, 0.2)], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _coloured(x: Tensor, rng: torch.Generator) -> Tensor:
    """Each channel with a contrast and a brightness of its own, a quarter of the images inverted."""
    n, channels = x.shape[:2]
    gain = 0.3 + 0.7 * torch.rand(n, channels, 1, 1, generator=rng)
    lift = (1 - gain) * torch.rand(n, channels, 1, 1, generator=rng)
    inverted = torch.rand(n, 1, 1, 1, generator=rng) < 0.25
    return lift + gain * torch.where(inverted, 1 - x, x)


def varied_vectors(x: Tensor, others: Tensor, noise: float, rng: torch.Generator) -> Tensor:
    """Vectors mixed with others by a share of up to a half, plus noise of ``noise`` times each coordinate's deviation. If no
    coordinate is negative, as behind a ReLU, none becomes negative.

    >>> x = torch.rand(5, 3)
    >>> bool((varied_vectors(x, x.flip(0), 0.5, torch.Generator().manual_seed(0)) >= 0).all())
    True
    """
    share = torch.rand(len(x), *[1] * (x.ndim - 1), generator=rng) / 2
    made = torch.lerp(x, others, share) + noise * x.std(0, keepdim=True) * torch.randn(x.shape, generator=rng)
    return made.clamp_min(0) if bool((x >= 0).all()) else made
