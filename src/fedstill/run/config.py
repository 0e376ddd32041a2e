"""The configuration: TOML in, a validated and frozen tree of options out; unknown keys and bad values get one clear line."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from fedstill.data.partition import Partition
from fedstill.errors import FedstillError, nearest
from fedstill.local.options import Local
from fedstill.options import Part, Positive

__all__ = ["Config", "from_toml", "parse", "read", "settings", "to_toml"]

Fraction = Annotated[float, Field(gt=0, le=1)]


class Poison(Part):
    """What a malicious or useless client does (for experiments on robustness)."""

    clients: list[str] = []  # client ids or domain names; a domain names all of its clients
    fraction: Annotated[float, Field(ge=0, le=1)] = 0.0  # or: this fraction of all clients, drawn by the seed
    kind: Literal["shift-labels", "flip-labels", "sign-flip", "gaussian"] = "shift-labels"
    level: Annotated[float, Field(ge=0, le=1)] = 1.0  # fraction of the client's labels that are changed
    scale: Annotated[float, Field(gt=0)] = 1.0  # of the false update (sign-flip, gaussian)


class TextPart(Part):
    """How text becomes numbers."""

    length: Positive = 64
    vocab: Annotated[int, Field(ge=2)] = 8192
    tokenizer: str = "hash"


class Data(Part):
    """Domains in, tensors out."""

    domains: list[str]  # embedded:NAME, Hub names, folders or files (docs/data.md); [] where a federation's nodes bring theirs
    root: str | None = None  # looked up here first
    server: str | list[str] | None = None  # images of these, without labels, are the distillation pool
    target: str | None = None  # unlabelled target domain: the pool, and the only domain tested
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # or: this fraction of the clients' domains is kept back as the pool
    pool_limit: Positive | None = None
    pool_classes: Positive | None = None  # only samples of the first n classes (FedDF, Figure 6a)
    pool_fraction: Fraction = 1.0
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0  # labelled fraction of every domain for the server
    image_size: Annotated[int, Field(ge=4, le=4096)] | None = None
    channels: Literal[1, 3] | None = None
    limit: Positive | None = None  # training samples a domain
    test_limit: Positive | None = None
    mean: float | list[float] = 0.5
    std: float | list[float] = 0.5
    classes: Literal["same", "union", "position"] = (
        "same"  # position: class i is class i whatever it is called (a useless source)
    )
    text: TextPart | None = None
    poison: Poison | None = None


class Clients(Part):
    """Who holds what, and how many take part in a round."""

    per_domain: Positive = 1
    partition: Partition = Partition()
    fraction: Fraction = 1.0
    per_round: Positive | None = None  # instead of a fraction
    min_replies: Positive = 1
    timeout: Annotated[float, Field(gt=0)] | None = None  # seconds that each exchange of a round waits for replies


class Model(Part):
    """The network, or for heterogeneous clients a list of networks, dealt to the clients in turn."""

    name: str = "cnn"
    clients: list[str] = []
    student: str | None = None  # the server's public structure where clients keep their own (FedD3A)
    by: Literal["client", "domain"] = "client"  # whether the list is dealt client by client or domain by domain
    norm: Literal["batch", "group", "none"] = "batch"
    options: dict[str, Any] = {}
    weights: str | None = None  # pretrained weights, a safetensors or .pt file
    buffers: Literal["average", "recalibrate", "local"] = "average"  # BatchNorm statistics of the merged model


class Engine(Part):
    """Where clients run."""

    name: Literal["inprocess", "flower-simulation"] = "inprocess"
    workers: Annotated[int, Field(ge=0)] = 0  # processes besides the server's; 0 trains in the server's own
    threads: Annotated[int, Field(ge=0, le=1024)] = 0  # torch threads of each; 0 leaves torch's own choice
    device: str = "cpu"


class Evaluation(Part):
    """What is measured, and how often."""

    every: Positive = 1
    targets: list[Annotated[float, Field(gt=0, le=1)]] = [0.5, 0.6, 0.7, 0.8, 0.9]
    ensemble: bool = True  # also the teachers' ensemble and the merged model, each round
    batch_size: Positive = 512
    samples_every: Annotated[int, Field(ge=0)] = 5  # rounds between grids of generated images in samples/; 0 for none


class Config(Part):
    """A run, whole."""

    seed: Annotated[int, Field(ge=0)] = 0
    rounds: Positive = 10
    data: Data
    clients: Clients = Clients()
    model: Model = Model()
    local: Local = Local()
    algorithm: dict[str, Any] = {"name": "fedavg"}
    engine: Engine = Engine()
    evaluation: Evaluation = Evaluation()

    @field_validator("algorithm")
    @classmethod
    def _named(cls, value: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(value.get("name"), str):
            raise ValueError("needs a name")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if len(set(self.data.domains)) != len(self.data.domains):
            raise ValueError("data.domains lists a domain twice")
        return self


def parse(tree: Mapping[str, Any]) -> Config:
    """The configuration in a tree of plain values; every mistake is one line.

    >>> parse({"data": {"domains": ["embedded:mnist"]}, "rouns": 3})
    Traceback (most recent call last):
    fedstill.errors.FedstillError: unknown key 'rouns'; did you mean 'rounds'?
    """
    from fedstill.algorithms import options_of

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


def validated(kind: type[BaseModel], tree: Mapping[str, Any], prefix: str = "") -> Any:
    """``tree`` as a ``kind``; the first mistake is told in one line with the nearest valid name."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise FedstillError(_one_line(kind, error, prefix)) from None


def _one_line(kind: type[BaseModel], error: ValidationError, prefix: str) -> str:
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"] if not str(part).startswith("function-")]
    key = ".".join([prefix, *path] if prefix else path)
    if problem["type"] == "extra_forbidden":
        valid = _fields_at(kind, path[:-1])
        close = nearest(path[-1], valid)
        hint = f"did you mean '{close}'?" if close else "valid: " + ", ".join(sorted(valid))
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
    return f"{key} = {value}: {text}" if key else text


def _fields_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    here: Any = kind
    for part in path:
        field = here.model_fields.get(part) if _is_model(here) else None
        if field is None:
            continue  # an index, or the tag of a union
        here = _model_in(field.annotation) or here
    return list(here.model_fields) if _is_model(here) else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _model_in(annotation: Any) -> Any:
    if _is_model(annotation):
        return annotation
    if get_origin(annotation) is not None or get_origin(annotation) is Union:
        for part in get_args(annotation):
            found = _model_in(part)
            if found:
                return found
    return None


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


def from_toml(text: str) -> Config:
    """The configuration in TOML text."""
    try:
        return parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise FedstillError(f"not TOML: {error}") from None


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML; reading it again gives the same run."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
