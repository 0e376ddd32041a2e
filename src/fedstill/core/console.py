"""The console logger, and numbers formatted for people."""

from __future__ import annotations

from rich.console import Console

__all__ = ["console", "counted", "duration", "megabytes", "remark"]

console = Console(highlight=False)


def megabytes(count: float) -> str:
    """A number of bytes, readable.

    >>> megabytes(1_234_567), megabytes(2_500)
    ('1.2 MB', '2.5 kB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def counted(count: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "round"), counted(1200, "step")
    ('1 round', '1,200 steps')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A duration, rounded to what matters.

    >>> duration(8.4), duration(200), duration(7900), duration(300_000)
    ('8 s', '3 min', '2 h 12 min', '3 d 11 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def remark(text: str) -> None:
    """Print a line that is worth knowing but is not a warning."""
    console.print(text, soft_wrap=True, markup=False)
