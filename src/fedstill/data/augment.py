"""Random flips and crops of a whole batch at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstill.errors import FedstillError

__all__ = ["augment"]


def augment(x: Tensor, flip: bool, crop: int, generator: torch.Generator) -> Tensor:
    """Each image mirrored with probability one half, and cut out at random after ``crop`` rows and columns of 0 were
    put around it. The same generator state gives the same batch; uint8 stays uint8.

    >>> x = torch.arange(6, dtype=torch.uint8).reshape(1, 1, 2, 3)
    >>> augment(x, False, 0, torch.Generator()) is x
    True
    >>> augment(x, True, 1, torch.Generator().manual_seed(1)).shape
    torch.Size([1, 1, 2, 3])
    """
    if not flip and not crop:
        return x
    if x.dim() != 4:
        raise FedstillError("flips and crops are for images, not for text or vectors")
    if crop:
        x = _random_crop(x, crop, generator)
    if flip:
        mirrored = torch.rand(len(x), generator=generator, device=generator.device) < 0.5
        x = torch.where(mirrored.to(x.device).reshape(-1, 1, 1, 1), x.flip(-1), x)
    return x


def _random_crop(x: Tensor, crop: int, generator: torch.Generator) -> Tensor:
    n, _, height, width = x.shape
    corner = torch.randint(2 * crop + 1, (2, n), generator=generator, device=generator.device).to(x.device)
    # Every possible window is a view of the padded batch; only the chosen ones are copied.
    windows = F.pad(x, (crop, crop, crop, crop)).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(n, device=x.device), :, corner[0], corner[1]]
