"""The reference of all options, written from the code: ``python -m fedstill.run.reference`` renews docs/configuration.md."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from fedstill.algorithms import algorithms
from fedstill.fusion.weighting import options_kind, weightings
from fedstill.run.config import Config, _model_in

__all__ = ["reference"]


def comments(kind: type[BaseModel]) -> dict[str, str]:
    """The comment behind each field in the source; that is where options are explained."""
    found = {}
    for base in reversed([k for k in kind.__mro__ if issubclass(k, BaseModel) and k is not BaseModel]):
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):
            continue
        found.update(dict(re.findall(r"^    (\w+):[^\n#]*#\s*([^\n]+)$", source, re.MULTILINE)))
    return found


def rows(kind: type[BaseModel], prefix: str) -> list[str]:
    """A line for each option of a table, those of nested tables after it."""
    lines = []
    said = comments(kind)
    for name, field in kind.model_fields.items():
        inner = _model_in(field.annotation)
        default = field.get_default(call_default_factory=True) if field.default is not PydanticUndefined else PydanticUndefined
        key = f"{prefix}{name}"
        if inner is not None and isinstance(default, BaseModel):
            lines += rows_with_defaults(inner, default, f"{key}.")
            continue
        shown = "required" if default is PydanticUndefined else f"`{json.dumps(plain(default))}`"
        lines.append(f"| `{key}` | {shown} | {said.get(name, '')} |")
        if inner is not None:
            lines += rows(inner, f"{key}.")
    return lines


def rows_with_defaults(kind: type[BaseModel], value: BaseModel, prefix: str) -> list[str]:
    """As :func:`rows`, with the defaults that the outer table gives."""
    lines = []
    said = comments(kind)
    for name in kind.model_fields:
        inner = getattr(value, name)
        if isinstance(inner, BaseModel):
            lines += rows_with_defaults(type(inner), inner, f"{prefix}{name}.")
        else:
            lines.append(f"| `{prefix}{name}` | `{json.dumps(plain(inner))}` | {said.get(name, '')} |")
    return lines


def plain(value: Any) -> Any:
    """A default as JSON can show it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    return list(value) if isinstance(value, tuple) else value


def reference() -> str:
    """All options as Markdown."""
    head = "| key | default | |\n|---|---|---|"
    parts = [head]
    for name, field in Config.model_fields.items():
        if name == "algorithm":
            continue
        inner = _model_in(field.annotation)
        if inner is None:
            parts.append(f"| `{name}` | `{json.dumps(plain(field.default))}` | {comments(Config).get(name, '')} |")
        else:
            parts += rows(inner, f"{name}.")
    for name, kind in algorithms().items():
        parts += ["", f'## {kind.title}: `algorithm.name = "{name}"`', "", f"{kind.paper}. {first_line(kind)}", ""]
        found = rows(kind.Options, "algorithm.")
        parts += [head, *found] if found else ["No options."]
    parts += ["", "## Weightings", "", "How much each teacher counts for each sample: `algorithm.weighting`.", ""]
    parts += ["| name | |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in weightings().items())]
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


def first_line(kind: type) -> str:
    """The first line of a docstring."""
    return (kind.__doc__ or "").strip().split("\n")[0]


def main() -> None:
    """Renew the page."""
    page = Path("docs/configuration.md")
    head = page.read_text().split("<!-- options -->")[0]
    page.write_text(f"{head}<!-- options -->\n{reference()}")


if __name__ == "__main__":
    main()
