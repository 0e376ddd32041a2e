"""Random streams: every draw in fedstill comes from a generator named by (seed, purpose, round, client, ...).

Because a stream is a pure function of its name, the same seed gives the same model whatever the number of workers, after a
resume and on any engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator

import numpy as np
import torch

__all__ = ["numpy_stream", "secret_stream", "seeded", "stream", "subseed"]


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


def secret_stream() -> torch.Generator:
    """A torch generator that no seed repeats, for noise that nobody may subtract: its start is the operating system's."""
    return torch.Generator().manual_seed(secrets.randbits(63))


def numpy_stream(seed: int, *name: object) -> np.random.Generator:
    """A numpy generator for one named purpose."""
    return np.random.default_rng(subseed(seed, *name))


@contextlib.contextmanager
def seeded(seed: int, *name: object, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global generators, which dropout and others draw from, for one named purpose, and restore them afterwards.

    Only those of ``device`` and of the CPU are touched: ``torch.manual_seed`` would also queue a call, with a formatted stack,
    for every kind of accelerator that is absent.

    >>> with seeded(0, "a"): first = torch.rand(1)
    >>> with seeded(0, "a"): first.equal(torch.rand(1))
    True
    """
    cuda = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        number = subseed(seed, *name)
        torch.default_generator.manual_seed(number)
        for one in cuda:
            with torch.cuda.device(one):
                torch.cuda.manual_seed(number)
        yield
