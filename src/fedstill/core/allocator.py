"""What the C library does with memory that a process has freed."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # malloc.h
MB = 1 << 20


def keep_freed_memory(most: int = 512 * MB) -> bool:
    """Let this process keep up to ``most`` bytes that it has freed; whether the C library (glibc) can be told so.

    By default every training step gives its activations back to the system and asks for them again, page by page, which takes up
    to a third of a step. The peak is the same: what is kept is used again. Only for processes that are fedstill's own.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        return False
    # 32 MB is the most that glibc allows; larger tensors still come from the system
    return bool(libc.mallopt(MMAP_THRESHOLD, 32 * MB) and libc.mallopt(TRIM_THRESHOLD, most))
