"""Configurations as plain trees: read from TOML, changed by ``key.path=value``. Nothing is validated here."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError
from fedstill.core.nested import laid_over

__all__ = ["as_assignments", "over", "read", "settings"]

RIVALS = {"steps": "epochs", "epochs": "steps"}  # two units of the same length: the later setting replaces the earlier


def settings(tree: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """``tree`` after ``key.path=value`` assignments. A value that is not valid TOML is a string. ``key.path=`` removes the key,
    so that its default applies.

    >>> settings({"local": {"epochs": 1}, "data": {"server": "a"}}, ["local.epochs=3", "model.name=resnet8", "data.server="])
    {'local': {'epochs': 3}, 'data': {}, 'model': {'name': 'resnet8'}}
    >>> settings({"distillation": {"epochs": 4}}, ["distillation.steps=30"])
    {'distillation': {'steps': 30}}
    """
    found = copy.deepcopy(dict(tree))
    keys = [assignment.partition("=")[0].strip() for assignment in assignments]
    for key, assignment in zip(keys, assignments, strict=True):
        _, equals, text = assignment.partition("=")
        if not equals or not key:
            raise FedstillError(f"a setting is key=value, not '{assignment}'")
        here = found
        *parents, last = key.split(".")
        for parent in parents:
            here = here.setdefault(parent, {})
            if not isinstance(here, dict):
                raise FedstillError(f"{assignment}: '{parent}' is a value, not a table")
        if not text.strip():
            here.pop(last, None)
            continue
        try:
            here[last] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            here[last] = text
        if last in RIVALS and ".".join([*parents, RIVALS[last]]) not in keys:
            here.pop(RIVALS[last], None)
    return found


def as_assignments(given: Sequence[str] | Mapping[str, Any], prefix: str = "") -> list[str]:
    """A program's changes, a list of assignments or values by dotted key, as assignments; None removes a key.

    >>> as_assignments({"rounds": 2, "algorithm": {"name": "feddf"}, "data.root": None, "data.domains": ["a", "b"]})
    ['rounds=2', 'algorithm.name="feddf"', 'data.root=', 'data.domains=["a", "b"]']
    """
    if isinstance(given, str):
        raise TypeError(f"settings are a dictionary or a list of 'key=value', not the string {given!r}")
    if not isinstance(given, Mapping):
        return [str(one) for one in given]
    found: list[str] = []
    for key, value in given.items():
        if isinstance(value, Mapping) and value:
            found += as_assignments(value, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key}={_as_toml(value)}")
    return found


def _as_toml(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_as_toml, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_as_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value.item() if hasattr(value, "item") else str(value) if isinstance(value, Path) else value)


def over(under: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees merged key by key; the second one wins. Its ``steps`` replace ``epochs`` of the first, and the other way round.

    >>> over({"a": {"epochs": 1, "size": 2}}, {"a": {"steps": 9}})
    {'a': {'size': 2, 'steps': 9}}
    """
    return laid_over(_without_rivals(under, upper), upper)


def _without_rivals(under: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    lost = {rival for name, rival in RIVALS.items() if name in upper and rival not in upper}
    kept = {key: value for key, value in under.items() if key not in lost}
    both = [key for key, value in kept.items() if isinstance(value, Mapping) and isinstance(upper.get(key), Mapping)]
    return {**kept, **{key: _without_rivals(kept[key], upper[key]) for key in both}}


def read(path: Path) -> dict[str, Any]:
    """The tree in a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise FedstillError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedstillError(f"{path} is not TOML: {error}") from None
