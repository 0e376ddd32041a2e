"""The reference of all options, generated from the code: ``python -m fedstill.cli.reference`` writes docs/configuration.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from fedstill import models
from fedstill.algorithms import algorithms
from fedstill.cli.parts import first_sentence
from fedstill.config.tables import Config
from fedstill.core.options import descriptions, table_in
from fedstill.fusion.merges import make_merge, merges
from fedstill.fusion.weightings import options_kind, weightings

__all__ = ["reference"]

INTRODUCTION = """\
The last column has the allowed values, if they are few, and the meaning of the key. The keys of a table follow it. A
key whose default is `null` is not set: omit it, remove it with `--set key=`, or unset it with `"null"`. The possible
values of `data.domains`, `data.server` and `data.target` are in [data.md](data.md)."""

# options that name a member of a common set, with the section that lists the members
SETS = {
    "model.name": "a [model](#models)",
    "model.clients": "a list of [models](#models)",
    "model.student": "a [model](#models)",
    "algorithm.merge": "a [merge](#merges)",
    "algorithm.weighting": "a [weighting](#weightings)",
    "algorithm.generator.kind": "a [generator](#generators)",
}

NOUNS = {int: "a number", float: "a number", str: "a name"}


def literals(annotation: Any) -> tuple[list[Any], list[str]]:
    """The values that an annotation lists, and the other types that it accepts.

    >>> literals(Literal["a", "b"] | None), literals(int | Literal["epoch"])
    ((['a', 'b'], []), (['epoch'], ['a number']))
    """
    if get_origin(annotation) is Literal:
        return list(get_args(annotation)), []
    if get_origin(annotation) is Annotated:
        return literals(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        parts = [literals(part) for part in get_args(annotation) if part is not type(None)]
        besides = dict.fromkeys(other for _, others in parts for other in others)
        return [value for values, _ in parts for value in values], list(besides)
    return [], ["a table" if table_in(annotation) else NOUNS.get(annotation, "other")]


def meaning(key: str, annotation: Any, description: str | None) -> str:
    """The third column: the allowed values, then the description.

    >>> meaning("local.schedule.kind", Literal["constant", "cosine"], "Over the rounds.")
    '`"constant"`, `"cosine"`. Over the rounds.'
    """
    values, others = literals(annotation)
    allowed = ", ".join([*others, *(f"`{json.dumps(value)}`" for value in values)]) if values else SETS.get(key, "")
    allowed = f"{allowed[0].upper()}{allowed[1:]}." if allowed else ""
    said = " ".join((description or "").split()).replace("``", "`")
    return " ".join(part for part in (allowed, said) if part).replace("|", "\\|")


def rows(kind: type[BaseModel], prefix: str, given: BaseModel | None = None) -> list[str]:
    """A line for each option of a table, followed by those of a nested table; defaults are those of ``given``.

    >>> from fedstill.training.options import Optimizer
    >>> rows(Optimizer, "local.optimizer.", Optimizer(lr=0.1))[1]
    '| `local.optimizer.lr` | `0.1` | Learning rate. |'
    """
    lines, meanings = [], descriptions(kind)
    for name, field in kind.model_fields.items():
        key, inner = f"{prefix}{name}", table_in(field.annotation)
        value = field.get_default(call_default_factory=True) if given is None else getattr(given, name)
        table = value if isinstance(value, BaseModel) else None
        shown = "required" if value is PydanticUndefined else "table" if table is not None else f"`{json.dumps(plain(value))}`"
        lines.append(f"| `{key}` | {shown} | {meaning(key, field.annotation, meanings.get(name))} |")
        if inner is not None:
            lines += rows(inner, f"{key}.", table)
    return lines


def plain(value: Any) -> Any:
    """A default in a form that JSON can show."""
    return list(value) if isinstance(value, tuple) else value


def reference() -> str:
    """All options as Markdown."""
    head = "| key | default | values, meaning |\n|---|---|---|"
    parts = [INTRODUCTION, "", head, *rows(Config, "")]
    for name, kind in algorithms().items():
        parts += ["", f'## {kind.title}: `algorithm.name = "{name}"`', "", f"{kind.paper}. {first_line(kind)}", ""]
        found = rows(kind.Options, "algorithm.")
        parts += [head, *found] if found else ["No options."]
    said = "The networks: `model.name`, `model.clients`, `model.student`. Each line ends with the possible `model.norm`."
    besides = {
        "torchvision:NAME": "a torchvision model, such as `torchvision:resnet50`; needs the extra `torchvision`",
        "hf:NAME": "a Hugging Face text encoder, by its name or folder; needs the extra `text`",
        "module.path:callable": "your own callable: gets `classes`, `model.options`, and `shape` and `norm` if it has them",
    }
    parts += members("Models", said, {**{name: models.describe(name) for name in models.names()}, **besides})
    said = "The student's initial weights, or the merged model: `algorithm.merge`."
    parts += members("Merges", said, {name: first_sentence(make_merge(name)) for name in merges()})
    said = "Networks that generate samples or features: `algorithm.generator.kind`."
    parts += members("Generators", said, {kind: models.describe_generator(kind) for kind in models.generator_kinds()})
    parts += members("Weightings", "How much each teacher counts for each sample: `algorithm.weighting`.", weightings())
    takers: dict[type[BaseModel], list[str]] = {}
    for name in weightings():
        kind_of = options_kind(name)
        if kind_of is not None:
            takers.setdefault(kind_of, []).append(f"`{name}`")
    for taken, names in takers.items():
        found = rows(taken, "algorithm.weighting_options.")
        parts += ["", f"`algorithm.weighting_options` of {', '.join(names)}:{'' if found else ' none.'}"]
        parts += ["", head, *found] if found else []
    return "\n".join(parts) + "\n"


def members(title: str, said: str, listed: Mapping[str, str]) -> list[str]:
    """A section that lists a common set, with a line for each member."""
    lines = [f"| `{name}` | {what} |" for name, what in listed.items()]
    return ["", f"## {title}", "", said, "", "| name | |", "|---|---|", *lines]


def first_line(kind: type) -> str:
    """The first line of a docstring."""
    return (kind.__doc__ or "").strip().split("\n")[0]


def main() -> None:
    """Write the page."""
    page = Path("docs/configuration.md")
    head = page.read_text().split("<!-- options -->")[0]
    page.write_text(f"{head}<!-- options -->\n{reference()}")


if __name__ == "__main__":
    main()
