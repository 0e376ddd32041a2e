"""From a preset, a file or a tree to a complete configuration, with the named system's options checked and filled in."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.algorithm import ALGORITHMS
from fedstill.algorithms import options_of
from fedstill.config.presets import tree_of
from fedstill.config.tables import Config
from fedstill.config.trees import over, settings
from fedstill.core.errors import FedstillError
from fedstill.core.options import validated
from fedstill.run.sharing import Shared, in_words, shared

__all__ = ["Resolved", "configuration", "from_toml", "parse", "resolve", "resolve_each", "resolved", "tree_in"]


@dataclass(frozen=True)
class Resolved:
    """A complete configuration, and a one-line note on settings that do not apply to its system."""

    config: Config
    note: str | None = None


def configuration(name: str, assignments: Sequence[str] = ()) -> Config:
    """The resolved configuration of a preset or file, with ``key=value`` assignments applied.

    >>> configuration("demo", ["rounds=2", "algorithm.name=fedprox"]).algorithm["name"]
    'fedprox'
    """
    return resolve(tree_of(name), assignments)


def tree_in(what: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """The raw tree that a caller names (a preset, a TOML file) or passes."""
    return what if isinstance(what, Mapping) else tree_of(str(what))


def resolve(raw: Mapping[str, Any], assignments: Sequence[str] = ()) -> Config:
    """The configuration in a raw tree, overlaid with its ``[for.NAME]`` table for the chosen algorithm."""
    return resolved(raw, assignments).config


def resolved(raw: Mapping[str, Any], assignments: Sequence[str] = ()) -> Resolved:
    """The same, with a note on settings that do not apply to the system that the assignments name.

    If the assignments name another system than the file, it gets those of the file's options that it also has, except the options
    that define the file's system. ``[for.NAME]`` overrides these, and the assignments override both.

    >>> tree = {"data": {"domains": ["embedded:mnist"], "holdout": 0.1}, "algorithm": {"name": "fedd3a", "rate": {"final": 0.1},
    ...         "distillation": {"epochs": 4}}}
    >>> found = resolved(tree, ["algorithm.name=feddf"])
    >>> found.config.algorithm["distillation"]["epochs"], found.note
    (4, 'feddf: does not use rate')
    """
    tree = {key: value for key, value in raw.items() if key not in ("about", "for")}
    overlays = raw.get("for", {})
    chosen, named = _named(settings(tree, assignments)), _named(tree)
    left = Shared()
    if chosen is not None and named not in (None, chosen):
        options_of(tree["algorithm"])  # a mistake in the file is refused for every chosen system
        left = shared(tree["algorithm"], ALGORITHMS.get(str(named)).Options, ALGORITHMS.get(chosen).Options)
        tree = {**tree, "algorithm": left.options}
    if isinstance(overlays, dict) and isinstance(overlays.get(chosen), dict):
        tree = over(tree, overlays[chosen])
    return Resolved(parse(settings(tree, assignments)), in_words(chosen or "", left.lacking, left.own, named))


def resolve_each(raw: Mapping[str, Any], names: Sequence[str], assignments: Sequence[str] = ()) -> list[Resolved]:
    """The configurations of several systems. An assignment to ``algorithm`` applies to the systems that accept it; one that no
    system accepts is an error. The same holds for the options of an ``[algorithm]`` table that names no system.

    >>> tree = {"data": {"domains": ["embedded:mnist"], "holdout": 0.1}}
    >>> for one in resolve_each(tree, ["fedavg", "feddf"], ["algorithm.distillation.steps=30"]):
    ...     print(one.config.algorithm.get("distillation", {}).get("steps"), one.note)
    None fedavg: does not use distillation.steps
    30 None
    """
    free, table = dict(raw), raw.get("algorithm")
    loose: list[str | tuple[str, Any]] = [one for one in assignments if one.partition("=")[0].strip().startswith("algorithm.")]
    if isinstance(table, Mapping) and "name" not in table:
        free["algorithm"] = {}
        loose = [*table.items(), *loose]
    fixed = [one for one in assignments if one not in loose]
    found, refused = [], dict[int, list[FedstillError]]()
    for name in names:
        one, wrong = _taking(free, name, fixed, loose)
        for place, error in wrong.items():
            refused.setdefault(place, []).append(error)
        found.append(one)
    for errors in refused.values():
        if len(errors) == len(names):
            raise min(errors, key=_how_far)
    return found


def _how_far(error: FedstillError) -> int:
    """The rank of an error: the most informative is one about a known key, then one about a key with a near match."""
    text = str(error)
    return 0 if not text.startswith("unknown key") else 1 if "did you mean" in text else 2


def _taking(
    raw: Mapping[str, Any], name: str, fixed: Sequence[str], loose: Sequence[str | tuple[str, Any]]
) -> tuple[Resolved, dict[int, FedstillError]]:
    """A system's configuration with those ``loose`` settings that it accepts, and the errors of the others."""
    system = f'algorithm.name="{name}"'

    def attempt(places: Sequence[int]) -> Resolved:
        chosen = [loose[place] for place in places]
        table = {**raw.get("algorithm", {}), **dict(one for one in chosen if not isinstance(one, str))}
        return resolved({**raw, "algorithm": table}, [*fixed, *(one for one in chosen if isinstance(one, str)), system])

    try:
        return attempt(range(len(loose))), {}
    except FedstillError:
        taken: list[int] = []
        found = attempt(taken)  # an error without any of them is a real error
    wrong: dict[int, FedstillError] = {}
    left = list(range(len(loose)))
    while left:  # one may be valid only after another, such as an option of a weighting that a later setting names
        before = len(left)
        for place in list(left):
            try:
                found = attempt(sorted([*taken, place]))
            except FedstillError as error:
                wrong[place] = error
                continue
            taken.append(place)
            left.remove(place)
            wrong.pop(place, None)
        if len(left) == before:
            break
    names = [_label(loose[place], name) for place in left]
    return Resolved(found.config, "; ".join(filter(None, [found.note, in_words(name, names)]))), wrong


def _label(setting: str | tuple[str, Any], name: str) -> str:
    """The label of a setting that a system does not accept: its key, with the value if the system has the key."""
    if not isinstance(setting, str):
        return setting[0]
    key, _, value = setting.removeprefix("algorithm.").partition("=")
    known = key.strip().split(".")[0] in ALGORITHMS.get(name).Options.model_fields
    return f"{key.strip()} = {value.strip()}" if known else key.strip()


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
    odd = next(_not_finite(tree), None)
    if odd is not None:
        raise FedstillError(f"{odd}: numbers must be finite")
    config = validated(Config, tree)
    options = options_of(config.algorithm)
    # the resolved options replace the given ones, so that config.toml is complete
    resolved = {"name": config.algorithm["name"], **options.model_dump(mode="json", exclude_none=True)}
    lost = next(_lost(options.model_dump(), options_of(resolved).model_dump(), "algorithm"), None)
    if lost:
        raise FedstillError(f"{lost} = None would be lost, since TOML files have no None; use 0 or false, or leave it out")
    return config.model_copy(update={"algorithm": resolved})


def _lost(given: Mapping[str, Any], read: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """The keys that are None in the first tree but not in the second."""
    for key, value in given.items():
        other = read.get(key)
        if value is None and other is not None:
            yield f"{prefix}.{key}"
        elif isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _lost(value, other, f"{prefix}.{key}")


def _not_finite(tree: Any, key: str = "") -> Iterator[str]:
    """The keys of NaN and infinite numbers, which a run's configuration file could not keep."""
    if isinstance(tree, float) and not math.isfinite(tree):
        yield f"{key} = {tree}"
    elif isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _not_finite(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _not_finite(value, key)


def from_toml(text: str) -> Config:
    """The configuration in TOML text."""
    try:
        return parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise FedstillError(f"not TOML: {error}") from None
