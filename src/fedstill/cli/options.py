"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from fedstill.cli.completion import assignments, configurations
from fedstill.config.trees import settings
from fedstill.core.errors import FedstillError

__all__ = ["Set", "What", "reading_in", "whole_numbers", "words"]

What = Annotated[
    str,
    typer.Argument(metavar="PRESET|FILE.toml", help="A shipped preset or a configuration file.", autocompletion=configurations),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, e.g. --set local.epochs=5.", autocompletion=assignments),
]


def words(text: str) -> list[str]:
    """The words of a comma-separated list.

    >>> words("fedavg, feddf,")
    ['fedavg', 'feddf']
    """
    return [word.strip() for word in text.split(",") if word.strip()]


def reading_in(assignments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings ``data.KEY=VALUE``, which say how to read data, and the other settings.

    >>> reading_in(["data.range=[0, 1]", "temperature=2"])
    ({'range': [0, 1]}, ['temperature=2'])
    """
    read = [text for text in assignments if text.strip().startswith("data.")]
    return settings({}, read).get("data", {}), [text for text in assignments if text not in read]


def whole_numbers(option: str, text: str) -> list[int]:
    """The numbers of a comma-separated list.

    >>> whole_numbers("--seeds", "0,1")
    [0, 1]
    >>> whole_numbers("--seeds", "0,x")
    Traceback (most recent call last):
    fedstill.core.errors.FedstillError: --seeds takes whole numbers, not '0,x'
    """
    try:
        found = [int(word) for word in words(text)]
    except ValueError:
        found = []
    if not found:
        raise FedstillError(f"{option} takes whole numbers, not '{text}'")
    return found
