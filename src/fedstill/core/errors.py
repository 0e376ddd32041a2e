"""The one kind of error a user can cause: a clear line, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["FedstillError", "first_line", "nearest", "reason_of", "unknown"]


class FedstillError(Exception):
    """A mistake in a configuration, a path, a file or a request; the command line prints it and exits with status 2.

    ``setting`` is the assignment that would fix it. Each interface shows it in its own way: the command line as an option.
    """

    def __init__(self, text: str, *, setting: str | None = None):
        super().__init__(text)
        self.setting = setting


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name closest to ``name``, or None if nothing is close.

    >>> nearest("fedagv", ["fedavg", "moon"])
    'fedavg'
    """
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return found[0] if found else None


def unknown(kind: str, name: str, valid: Iterable[str]) -> FedstillError:
    """The error for a name that is not valid. It suggests the nearest valid name, if any.

    >>> str(unknown("algorithm", "fedagv", ["fedavg", "moon"]))
    "unknown algorithm 'fedagv'; did you mean 'fedavg'?"
    """
    names = sorted(valid)
    close = nearest(name, names)
    hint = f"did you mean '{close}'?" if close else "valid: " + ", ".join(names)
    return FedstillError(f"unknown {kind} '{name}'; {hint}")


def first_line(error: BaseException, longest: int = 500) -> str:
    """The first line of an error's message, or its type if it has no message.

    >>> first_line(ValueError("bad shape\\nsecond line")), first_line(KeyError())
    ('bad shape', 'KeyError')
    """
    lines = str(error).strip().splitlines()
    return (lines[0].strip() if lines else type(error).__name__)[:longest]


def reason_of(error: BaseException) -> str:
    """An exception in one line, with its type.

    >>> reason_of(ValueError("bad shape")), reason_of(KeyError())
    ('ValueError: bad shape', 'KeyError')
    """
    kind, line = type(error).__name__, first_line(error)
    return kind if line == kind else f"{kind}: {line}"
