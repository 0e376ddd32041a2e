"""The configuration's tables, validated and frozen. The table ``[algorithm]`` is the named system's own affair."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, field_validator, model_validator

from fedstill.core.options import Part, Positive
from fedstill.data.partition import Partition
from fedstill.data.text import TextOptions
from fedstill.training.options import Local

__all__ = ["Config", "to_toml"]

Fraction = Annotated[float, Field(gt=0, le=1)]


class Poison(Part):
    """What a malicious or useless client does (for experiments on robustness)."""

    clients: list[str] = []  # client ids or domain names; a domain names all of its clients
    fraction: Annotated[float, Field(ge=0, le=1)] = 0.0  # or: this fraction of all clients, drawn by the seed
    kind: Literal["shift-labels", "flip-labels", "sign-flip", "gaussian"] = "shift-labels"
    level: Annotated[float, Field(ge=0, le=1)] = 1.0  # fraction of the client's labels that are changed
    scale: Annotated[float, Field(gt=0)] = 1.0  # of the false update (sign-flip, gaussian)


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
    text: TextOptions | None = None
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

    @property
    def dealt(self) -> list[str]:
        """The architectures dealt to the clients in turn."""
        return list(self.clients) or [self.name]


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

    def due(self, round: int, rounds: int) -> bool:
        """Whether accuracies are measured after this round: every so many rounds, and after the last."""
        return round % self.every == 0 or round == rounds


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


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML; reading it again gives the same run."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
