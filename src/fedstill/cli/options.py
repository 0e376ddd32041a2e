"""Options that several commands have, and how their texts are read."""

from __future__ import annotations

from typing import Annotated

import typer

from fedstill.cli.completion import assignments, configurations
from fedstill.core.errors import FedstillError

__all__ = ["Set", "What", "whole_numbers", "words"]

What = Annotated[
    str,
    typer.Argument(metavar="PRESET|FILE.toml", help="A shipped preset or a configuration file.", autocompletion=configurations),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, e.g. --set local.epochs=5.", autocompletion=assignments),
]


def words(text: str) -> list[str]:
    """The words between commas.

    >>> words("fedavg, feddf,")
    ['fedavg', 'feddf']
    """
    return [word.strip() for word in text.split(",") if word.strip()]


def whole_numbers(option: str, text: str) -> list[int]:
    """The numbers between commas.

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
