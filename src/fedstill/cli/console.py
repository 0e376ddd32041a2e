"""Where the commands write."""

from __future__ import annotations

from rich.console import Console

__all__ = ["console", "megabytes", "remark"]

console = Console(highlight=False)


def megabytes(count: float) -> str:
    """Bytes for people.

    >>> megabytes(1_234_567), megabytes(2_500)
    ('1.2 MB', '2.5 kB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def remark(text: str) -> None:
    """A line that is worth knowing and no warning."""
    console.print(text, soft_wrap=True, markup=False)
