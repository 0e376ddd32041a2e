"""Configurations as plain trees: read from TOML, changed by ``key.path=value``. Nothing is validated here."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError

__all__ = ["read", "settings"]


def settings(tree: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """``tree`` with ``key.path=value`` assignments made; values are TOML, or strings where they are not.

    >>> settings({"local": {"epochs": 1}}, ["local.epochs=3", "model.name=resnet8"])
    {'local': {'epochs': 3}, 'model': {'name': 'resnet8'}}
    """
    tree = copy.deepcopy(tree)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise FedstillError(f"--set takes key=value, not '{assignment}'")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        here = tree
        *parents, last = key.strip().split(".")
        for parent in parents:
            here = here.setdefault(parent, {})
            if not isinstance(here, dict):
                raise FedstillError(f"--set {assignment}: '{parent}' is a value, not a table")
        here[last] = value
    return tree


def read(path: Path) -> dict[str, Any]:
    """The tree in a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise FedstillError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedstillError(f"{path} is not TOML: {error}") from None
