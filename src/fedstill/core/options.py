"""What every table of options has in common: frozen, validated, no unknown keys; a mistake is reported in one line."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedstill.core.errors import FedstillError, nearest
from fedstill.core.nested import laid_over

__all__ = ["Part", "Positive", "descriptions", "table_in", "validated"]

Positive = Annotated[int, Field(ge=1)]
Table = TypeVar("Table", bound=BaseModel)


class Part(BaseModel):
    """A table of the configuration. The string below a field is its description (:func:`descriptions`).

    If a nested table is given in part, its other keys come from this table's default, not from the nested class's defaults:

    >>> class Inner(Part):
    ...     steps: int = 10
    ...     size: int = 1
    >>> class Outer(Part):
    ...     inner: Inner = Inner(steps=5)
    >>> Outer.model_validate({"inner": {"size": 3}}).inner
    Inner(steps=5, size=3)
    """

    # a table's validator is built when it is first used: a run uses a few of them
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _over_defaults(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        given = {name: None if _is_null(cls, name, value) else value for name, value in given.items()}
        given = laid_over(cls.presets(given), given)
        nested = {name: field.default for name, field in cls.model_fields.items() if isinstance(field.default, Part)}
        over = {name: default.under(given[name]) for name, default in nested.items() if isinstance(given.get(name), Mapping)}
        return {**given, **over}

    def under(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A partial table, completed by this table's own values."""
        return laid_over(self.model_dump(), given)

    @classmethod
    def presets(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Values implied by those given, such as a named set of defaults; the given ones take precedence."""
        return {}


def descriptions(kind: type[BaseModel]) -> dict[str, str]:
    """The description of each option: the string below the field, or that of the class that declares it. They are read from the
    source when asked for, since reading them for every table would take a tenth of the start of a run.

    >>> from fedstill.config.tables import Engine
    >>> descriptions(Engine)["device"]
    'Device of torch, such as ``cpu`` or ``cuda:0``.'
    """
    found: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if issubclass(base, BaseModel) and base is not BaseModel]):
        try:
            source = inspect.getsource(base)
            tree = ast.parse(f"if True:\n{source}" if source[0].isspace() else source)  # a class within a function is indented
        except (OSError, TypeError, SyntaxError):  # no source that can be read: typed into a terminal, made by a program
            continue
        body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        for field, below in pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return {
        name: field.description or found[name] for name, field in kind.model_fields.items() if field.description or name in found
    }


def _is_null(kind: type[BaseModel], name: Any, value: Any) -> bool:
    """Whether a value is a word for "not set", which TOML lacks, of an option that may be unset.

    >>> class Found(Part):
    ...     root: str | None = None
    ...     norm: Literal["batch", "none"] | None = "batch"
    >>> Found(root="null", norm="none")
    Found(root=None, norm='none')
    """
    if not isinstance(value, str) or value.lower() not in ("null", "none") or name not in kind.model_fields:
        return False
    annotation = kind.model_fields[name].annotation
    return type(None) in get_args(annotation) and value not in _words(annotation)


def _words(annotation: Any) -> list[Any]:
    """Every value that an annotation lists."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [word for part in get_args(annotation) for word in _words(part)]


def validated(kind: type[Table], tree: Mapping[str, Any], prefix: str = "", besides: Sequence[str] = ()) -> Table:
    """``tree`` as a ``kind``. The first mistake is reported in one line with the nearest valid name; ``besides`` are further
    valid keys, which are read elsewhere."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise FedstillError(_one_line(kind, error, prefix, besides)) from None


def _one_line(kind: type[BaseModel], error: ValidationError, prefix: str, besides: Sequence[str]) -> str:
    problem = error.errors()[0]
    path = _keys(kind, problem["loc"])
    key = ".".join([prefix, *path] if prefix else path)
    if problem["type"] == "extra_forbidden":
        valid = [*_fields_at(kind, path[:-1]), *(besides if len(path) == 1 else ())]
        close = nearest(path[-1], valid)
        whole = ".".join([*key.split(".")[:-1], close or ""])  # as it is written behind --set
        hint = f"did you mean '{whole}'?" if close else "valid: " + (", ".join(sorted(valid)) or "none")
        return f"unknown key '{key}'; {hint}"
    if problem["type"] == "missing":
        return f"missing key '{key}'"
    value = json.dumps(problem.get("input"), default=str)
    value = value if len(value) <= 80 else value[:77] + "..."
    text = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "literal_error" and isinstance(problem.get("input"), str):
        expected = problem.get("ctx", {}).get("expected", "")
        close = nearest(problem["input"], [name.strip(" '") for name in expected.replace(" or ", ", ").split(",")])
        text = f"should be {expected}" + (f"; did you mean '{close}'?" if close else "")
    if problem["type"] == "model_type":
        text = "should be a table"
    # of a choice between kinds, every kind has said what it expects; the words that would do are worth saying too
    for other in error.errors()[1:]:
        if other["type"] == "literal_error" != problem["type"] and _keys(kind, other["loc"]) == path:
            text += f"; or {other['ctx']['expected']}".replace("; or False", "; or false")
    return f"{key} = {value}: {text}" if key else text


def _keys(kind: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """The keys and indices in the place of a mistake, without the names of the kinds that were tried there.

    >>> class Line(Part):
    ...     far: Annotated[float, Field(ge=0)] | Literal["auto"] = 1.0
    >>> _keys(Line, ("far", "constrained-float")), _keys(Line, ("fra",))
    (['far'], ['fra'])
    """
    found: list[str] = []
    here: Any = kind
    for number, part in enumerate(place):
        fields = next((table.model_fields for table in _tables(here) if part in table.model_fields), None)
        if fields is not None:
            found.append(str(part))
            here = fields[str(part)].annotation
        elif isinstance(part, int) or (_mappings(here) and not _is_kind(here, part)):
            found.append(str(part))
            here = get_args(next(iter(_mappings(here)), here))[-1:] or here
        elif number == len(place) - 1 and _tables(here) and not _is_kind(here, part):
            found.append(str(part))  # a key that no table has
    return found


def _parts(annotation: Any) -> list[Any]:
    """An annotation and everything that it is made of."""
    inside = annotation if isinstance(annotation, tuple) else get_args(annotation)
    return [annotation, *(part for one in inside for part in _parts(one))]


def _tables(annotation: Any) -> list[type[BaseModel]]:
    return [part for part in _parts(annotation) if _is_table(part)]


def _mappings(annotation: Any) -> list[Any]:
    return [part for part in _parts(annotation) if get_origin(part) in (dict, Mapping)]


def _is_kind(annotation: Any, name: str | int) -> bool:
    """Whether ``name`` is that of a kind in a union, as pydantic writes it: ``Line``, ``constrained-int``, ``list[str]``."""
    named = {part.__name__ for part in _parts(annotation) if isinstance(part, type)}
    return name in named or bool(re.match(r"function-|constrained-|nullable|literal\[|\w+\[", str(name)))


def _fields_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    here: Any = kind
    for part in path:
        field = here.model_fields.get(part) if _is_table(here) else None
        if field is None:
            continue  # an index, or the tag of a union
        here = table_in(field.annotation) or here
    return list(here.model_fields) if _is_table(here) else []


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def table_in(annotation: Any) -> Any:
    if _is_table(annotation):
        return annotation
    if get_origin(annotation) is not None:
        for part in get_args(annotation):
            found = table_in(part)
            if found:
                return found
    return None
