"""The console logger, and numbers formatted for people."""

from __future__ import annotations

from rich.console import Console

__all__ = ["console", "counted", "duration", "elapsed", "megabytes", "remark"]

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


def elapsed(seconds: float) -> str:
    """A time that has passed, to the second within the first hour: lines that follow each other differ.

    >>> elapsed(0.2), elapsed(90), elapsed(150.4), elapsed(3599.9), elapsed(7900)
    ('1 s', '1 min 30 s', '2 min 30 s', '1 h 0 min', '2 h 12 min')
    """
    whole = max(1, round(seconds))
    if whole >= 3600:
        return duration(seconds) if whole >= 5400 else f"1 h {(whole - 3600) // 60} min"
    minutes, rest = divmod(whole, 60)
    return " ".join(f"{count} {unit}" for count, unit in ((minutes, "min"), (rest, "s")) if count)


def remark(text: str) -> None:
    """Print a line that is worth knowing but is not a warning."""
    console.print(text, soft_wrap=True, markup=False)
