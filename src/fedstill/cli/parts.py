"""``fedstill parts``: every kind of part and its members, built-in or from other packages."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fedstill.core.console import console
from fedstill.core.errors import FedstillError, first_line, unknown
from fedstill.core.registry import Registry

__all__ = ["KINDS", "Part", "first_sentence", "members", "parts"]


def first_sentence(documented: Any) -> str:
    """The first sentence of a docstring, which may span several lines.

    >>> first_sentence(Registry)
    'The members of one kind.'
    """
    return re.split(r"(?<=\.)\s", " ".join((documented.__doc__ or "").split()))[0]


@dataclass(frozen=True)
class Kind:
    """The place of a kind's registry, and the summary of its members."""

    registry: str  # module:name; imported on demand, since most import torch
    summary: Callable[[Any], str]


KINDS = {
    "algorithms": Kind("fedstill.algorithm:ALGORITHMS", lambda kind: f"{kind.title}: {first_sentence(kind)}"),
    "weightings": Kind("fedstill.fusion.weightings:WEIGHTINGS", lambda kind: str(kind.summary)),
    "merges": Kind("fedstill.fusion.merges:MERGES", first_sentence),
    "reports": Kind("fedstill.local.reports:REPORTS", lambda report: first_sentence(report.make)),
    "sources": Kind("fedstill.fusion.sources:SOURCES", lambda source: first_sentence(source.draw)),
    "loaders": Kind("fedstill.data.loaders:LOADERS", first_sentence),
    "models": Kind("fedstill.models:MODELS", lambda architecture: str(architecture.summary)),
    "generators": Kind("fedstill.models.generator:GENERATORS", lambda kind: str(kind.summary)),
    "trackers": Kind("fedstill.run.trackers:TRACKERS", first_sentence),
    "studies": Kind("fedstill.reproduce:STUDIES", lambda study: str(study.title)),
}


@dataclass(frozen=True)
class Part:
    """A member of a kind."""

    name: str
    origin: str
    summary: str


def registry_of(kind: str) -> Registry[Any]:
    """The registry of a kind."""
    module, _, name = KINDS[kind].registry.partition(":")
    found: Registry[Any] = getattr(importlib.import_module(module), name)
    return found


def members(kind: str) -> Iterator[Part]:
    """The members of a kind; a member that cannot be loaded is listed with the reason."""
    registry = registry_of(kind)
    for name in sorted(registry.names()):
        try:
            said = KINDS[kind].summary(registry.get(name))
        except FedstillError as error:
            said = f"cannot be used: {first_line(error)}"
        yield Part(name, registry.origin(name), said)


def _kinds(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def parts(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help=f"One kind only: {', '.join(KINDS)}.", autocompletion=_kinds)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """List every kind of part that systems are built from, and its members: name, origin, description."""
    if kind is not None and kind not in KINDS:
        raise unknown("kind of part", kind, KINDS)
    found = {one: list(members(one)) for one in ([kind] if kind is not None else KINDS)}
    if as_json:
        tree = {
            one: {part.name: {"origin": part.origin, "summary": part.summary} for part in some} for one, some in found.items()
        }
        print(json.dumps(tree, indent=2))
        return
    for place, (one, some) in enumerate(found.items()):
        group = registry_of(one).group
        console.print(("\n" if place else "") + f"[bold]{one}[/] (entry points: {group})", soft_wrap=True)
        wide = max((len(part.name) for part in some), default=0)
        far = max((len(part.origin) for part in some), default=0)
        for part in some:
            console.print(f"  {part.name:<{wide}}  {part.origin:<{far}}  {part.summary}", soft_wrap=True, markup=False)
        if not some:
            console.print("  none")
