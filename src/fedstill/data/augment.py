"""Random flips and crops of a whole batch at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstill.core.errors import FedstillError

__all__ = ["augment"]


def augment(x: Tensor, flip: bool, crop: int, generator: torch.Generator) -> Tensor:
    """Mirror each image with probability one half, pad it with ``crop`` rows and columns of 0 on each side, and crop it at
    random to its size. The same generator state gives the same batch; uint8 stays uint8.

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
    n, channels, height, width = x.shape
    x = F.pad(x, (crop, crop, crop, crop)) if crop else x
    images = torch.arange(n, device=x.device)
    if flip:
        # Choosing from both versions copies whole images; a `where` over every pixel takes ten times as long.
        mirrored = torch.randint(2, (n,), generator=generator, device=generator.device)
        x, images = torch.cat([x, x.flip(-1)]), images + n * mirrored.to(x.device)
    if not crop:
        return x.index_select(0, images)
    top, left = torch.randint(2 * crop + 1, (2, n), generator=generator, device=generator.device).to(x.device)
    # Where each row of each cut-out begins in the flat batch: rows are then copied whole, five times as fast as by
    # indexing windows in two dimensions.
    planes = images[:, None] * channels + torch.arange(channels, device=x.device)
    corners = (planes * x.shape[2] + top[:, None]) * x.shape[3] + left[:, None]
    starts = corners[:, :, None] + torch.arange(height, device=x.device) * x.shape[3]
    return x.reshape(-1).unfold(0, width, 1).index_select(0, starts.reshape(-1)).reshape(n, channels, height, width)
