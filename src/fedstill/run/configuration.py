"""From a preset, a file or a tree to a configuration that is complete: the named system's options checked and filled in."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.algorithms import options_of
from fedstill.config.presets import tree_of
from fedstill.config.tables import Config
from fedstill.config.trees import settings
from fedstill.core.errors import FedstillError
from fedstill.core.options import laid_over, validated

__all__ = ["configuration", "from_toml", "parse", "resolve", "tree_in"]


def configuration(name: str, assignments: Sequence[str] = ()) -> Config:
    """The resolved configuration of a preset or file with ``key=value`` assignments made.

    >>> configuration("demo", ["rounds=2", "algorithm.name=fedprox"]).algorithm["name"]
    'fedprox'
    """
    return resolve(tree_of(name), assignments)


def tree_in(what: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """The raw tree that a caller names (a preset, a TOML file) or gives."""
    return what if isinstance(what, Mapping) else tree_of(str(what))


def resolve(raw: Mapping[str, Any], assignments: Sequence[str] = ()) -> Config:
    """The configuration in a raw tree, its ``[for.NAME]`` table of the algorithm in force laid over it."""
    tree = {key: value for key, value in raw.items() if key not in ("about", "for")}
    overlays = raw.get("for", {})
    chosen = _named(settings(tree, list(assignments)))
    if chosen is not None and _named(tree) not in (None, chosen):
        tree = {**tree, "algorithm": {}}  # another system: the options written for the first do not apply
    if isinstance(overlays, dict) and isinstance(overlays.get(chosen), dict):
        tree = laid_over(tree, overlays[chosen])
    return parse(settings(tree, list(assignments)))


def _named(tree: Mapping[str, Any]) -> str | None:
    table = tree.get("algorithm")
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) else None


def parse(tree: Mapping[str, Any]) -> Config:
    """The configuration in a tree of plain values; every mistake is one line.

    >>> parse({"data": {"domains": ["embedded:mnist"]}, "rouns": 3})
    Traceback (most recent call last):
    fedstill.core.errors.FedstillError: unknown key 'rouns'; did you mean 'rounds'?
    """
    config = validated(Config, tree)
    options = options_of(config.algorithm)
    # the resolved options replace what was given, so that config.toml says everything
    resolved = {"name": config.algorithm["name"], **options.model_dump(mode="json", exclude_none=True)}
    lost = next(_lost(options.model_dump(), options_of(resolved).model_dump(), "algorithm"), None)
    if lost:
        raise FedstillError(f"{lost} = None would be lost, since files cannot say it; use 0 or false, or leave it out")
    return config.model_copy(update={"algorithm": resolved})


def _lost(given: Mapping[str, Any], read: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """The keys that are None in one tree and something else in the other."""
    for key, value in given.items():
        other = read.get(key)
        if value is None and other is not None:
            yield f"{prefix}.{key}"
        elif isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _lost(value, other, f"{prefix}.{key}")


def from_toml(text: str) -> Config:
    """The configuration in TOML text."""
    try:
        return parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise FedstillError(f"not TOML: {error}") from None
