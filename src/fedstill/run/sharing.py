"""Which options of a file's ``[algorithm]`` table apply to other systems than the one that it names.

Options for the length of training and for the students' training are shared, so that a comparison is fair; options that define a
system are not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedstill.algorithm import Options

__all__ = ["Shared", "in_words", "shared"]

# options that define a system: it never takes them from another
DEFINING = ("merge", "weighting", "weighting_options", "ensemble", "preset")
DEFINING_IN = {"source": ("kind", "generator", "shares", "options")}
ALIKE = ("drop_worst", "line")  # declared by several families of systems, with the same meaning in all


@dataclass
class Shared:
    """Which options of a table another system takes, and which it does not."""

    options: dict[str, Any] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)  # options that it does not have
    own: list[str] = field(default_factory=list)  # options that differ in meaning, or that define a system


def shared(table: Mapping[str, Any], written_for: type[Options], other: type[Options]) -> Shared:
    """Which of the options in ``table``, written for one system, apply to another.

    >>> from fedstill.algorithms import algorithms
    >>> kinds = {name: kind.Options for name, kind in algorithms().items()}
    >>> table = {"weighting": "soft", "distillation": {"epochs": 4}, "rate": {"kind": "constant"}}
    >>> shared(table, kinds["fedd3a"], kinds["feddf"])
    Shared(options={'distillation': {'epochs': 4}}, lacking=['rate'], own=['weighting'])
    >>> shared({"mu": 1.0}, kinds["fedprox"], kinds["moon"]).own  # two options with the same name
    ['mu']
    """
    found = Shared()
    for name, value in table.items():
        if name == "name":
            continue
        if name not in other.model_fields:
            found.lacking.append(name)
        elif name in DEFINING or not _same(name, written_for, other):
            found.own.append(name)
        elif name in DEFINING_IN and isinstance(value, Mapping):
            found.own += [f"{name}.{key}" for key in value if key in DEFINING_IN[name]]
            rest = {key: inner for key, inner in value.items() if key not in DEFINING_IN[name]}
            if rest:
                found.options[name] = rest
        else:
            found.options[name] = value
    return found


def _same(name: str, one: type[Options], other: type[Options]) -> bool:
    """Whether two systems inherit an option from the same class; options that only share a name differ."""
    return name in ALIKE or _declared(name, one) is _declared(name, other)


def _declared(name: str, kind: type[Options]) -> type | None:
    """The class that first declares the option."""
    having = [base for base in kind.__mro__ if name in inspect.get_annotations(base)]
    return having[-1] if having else None


def in_words(system: str, lacking: Iterable[str], own: Iterable[str] = (), whose: str | None = None) -> str | None:
    """The options that a system does not take, in one line; None if it takes all.

    >>> in_words("fedavg", ["distillation", "source"], ["merge"], "fedd3a")
    "fedavg: does not use distillation, source; uses its own merge, not fedd3a's"
    """
    unused = ", ".join(dict.fromkeys(lacking))
    kept = ", ".join(dict.fromkeys(own))
    parts = [*([f"does not use {unused}"] if unused else []), *([f"uses its own {kept}, not {whose}'s"] if kept else [])]
    return f"{system}: {'; '.join(parts)}" if parts else None
