"""Random streams: every draw in fedstill comes from a generator named by (seed, purpose, round, client, ...).

Because a stream is a pure function of its name, the same seed gives the same model whatever the number of workers, after a
resume and on any engine.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

__all__ = ["numpy_stream", "stream", "subseed"]


def subseed(seed: int, *name: object) -> int:
    """A 63-bit seed derived from ``seed`` and a name.

    >>> subseed(0, "sample", 3) == subseed(0, "sample", 3) != subseed(0, "sample", 4)
    True
    """
    digest = hashlib.sha256(repr((int(seed), *map(str, name))).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def stream(seed: int, *name: object, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for one named purpose.

    >>> torch.rand(1, generator=stream(0, "noise")).equal(torch.rand(1, generator=stream(0, "noise")))
    True
    """
    return torch.Generator(device=device).manual_seed(subseed(seed, *name))


def numpy_stream(seed: int, *name: object) -> np.random.Generator:
    """A numpy generator for one named purpose."""
    return np.random.default_rng(subseed(seed, *name))
