"""The configuration's tables, validated and frozen. The table ``[algorithm]`` is validated by the named system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, field_validator, model_validator

from fedstill.config.client_level import ClientLevel
from fedstill.config.reports import Reports
from fedstill.config.sample import Sample
from fedstill.config.secure import Secure
from fedstill.config.votes import Votes
from fedstill.core.options import Part, Positive
from fedstill.data.partition import Partition
from fedstill.data.reading import Reading
from fedstill.training.options import Local

__all__ = ["Config", "Privacy", "to_toml"]

Fraction = Annotated[float, Field(gt=0, le=1)]


class Poison(Part):
    """What a malicious or useless client does (for experiments on robustness)."""

    clients: list[str] = []
    """Ids of the poisoned clients. A domain's name stands for all of its clients."""

    fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of all clients that is poisoned besides those named, drawn by the seed."""

    kind: Literal["shift-labels", "flip-labels", "sign-flip", "gaussian", "false-verdict"] = "shift-labels"
    """What poisoned clients do. ``shift-labels``: train with the next class as label, y + 1 modulo C. ``flip-labels``: with label
    C - 1 - y. ``sign-flip``: send their update with the opposite sign. ``gaussian``: send the global model plus noise.
    ``false-verdict``: as judges, call the worse model the better one."""

    level: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Fraction of a poisoned client's labels that is changed (shift-labels, flip-labels)."""

    scale: Annotated[float, Field(gt=0)] = 1.0
    """Size of the false update: a factor of the honest one (sign-flip), or of each tensor's standard deviation (gaussian)."""


class Data(Reading):
    """The data of a run."""

    domains: list[str]
    """The clients' domains: ``embedded:NAME``, names on the Hugging Face Hub, folders or files (docs/data.md). Empty only in a
    federation whose nodes bring their own data."""

    root: str | None = None
    """Folder in which domains are looked up first."""

    server: str | list[str] | None = None
    """Domain or domains whose training samples, without labels, are the server's pool for distillation."""

    target: str | None = None
    """Target of domain adaptation: its training samples, without labels, are the pool, and only its test set is tested. It has no
    clients."""

    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Fraction of every client domain's training samples that is held back as the pool, if neither ``server`` nor ``target`` is
    set."""

    pool_limit: Positive | None = None
    """Keep at most this many samples of the pool, drawn at random."""

    pool_classes: Positive | None = None
    """Keep only the pool's samples of the first n classes (FedDF, Figure 6a)."""

    pool_fraction: Fraction = 1.0
    """Keep this fraction of the pool, drawn at random (FedDF, Figure 6b)."""

    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Fraction of every client domain's training samples that the server gets with labels, for early stopping, ``drop_worst`` and
    warnings."""

    image_size: Annotated[int, Field(ge=4, le=4096)] | None = None
    """Height and width that images are resized to; those of the first domain's first image if not set."""

    channels: Literal[1, 3] | None = None
    """Channels of the images; the most that any image of any domain has if not set."""

    limit: Positive | None = None
    """Keep at most this many training samples of each domain, drawn at random in the domain's class proportions."""

    test_limit: Positive | None = None
    """Keep at most this many test samples of each domain, drawn in the same way."""

    mean: float | list[float] | None = None
    """Mean that is subtracted from pixels in [0, 1]: one number, or a list with one for each channel. If not set, 0.5, or what
    packaged weights were trained with (``model.weights``)."""

    std: float | list[float] | None = None
    """Standard deviation that pixels are divided by, in the form of ``mean``."""

    classes: Literal["same", "union", "position"] = "same"
    """How classes of different domains are matched. ``same``: by name, and all domains must have the same. ``union``: by name,
    and the task has the classes of all. ``position``: by index whatever their names, for experiments with an irrelevant
    source."""

    poison: Poison | None = None
    """Clients that misbehave on purpose, for experiments on robustness."""


class Clients(Part):
    """How data is divided among clients, and how many clients take part in a round."""

    per_domain: Positive = 1
    """Clients of each domain."""

    partition: Partition = Partition()
    """How a domain's training samples are divided among its clients."""

    fraction: Fraction = 1.0
    """Fraction of all clients that takes part in a round, at least one client. With ``privacy.client``, the probability with
    which each client takes part: their number varies, and may be none."""

    per_round: Positive | None = None
    """Number of clients that take part in a round, instead of ``fraction``."""

    validation: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The share of its samples that each client holds out of a round's training to judge that round's models, in systems whose
    judge asks the clients. Others of the same classes are repeated in their place, so that a round has as many steps as without a
    judge. Clients train on all of their samples in systems without such a judge, and in the last rounds if
    ``algorithm.line.full_rounds`` says so."""

    validation_drawn: Literal["once", "round"] = "once"
    """Whether the same samples are held out in all rounds, so that no model has seen them, or others in every round, so that none
    is lost to training. The second favours the average where clients come to know their samples by heart."""

    min_replies: Positive = 1
    """The run stops if an exchange brings fewer usable replies than this, or than the clients drawn with ``privacy.client``."""

    timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds that each exchange of a round waits for replies; no limit if not set. No effect on the engine ``inprocess`` without
    workers, where clients train one after another."""


class Variant(Part):
    """A network under a name of your own."""

    name: str
    """The network."""

    options: dict[str, Any] = {}
    """Its options, instead of ``model.options``."""


class Model(Part):
    """The clients' networks, and the server's."""

    name: str | None = None
    """The network of all clients and of the server. If not set, ``cnn`` for images, ``text-small`` for text and ``mlp`` for
    vectors."""

    clients: list[str] = []
    """Networks of heterogeneous clients, dealt to them in turn, instead of ``name``."""

    student: str | None = None
    """The server's network if it is not the clients' own. Each client then keeps its model from round to round and learns from
    the server's (FedD3A)."""

    by: Literal["client", "domain"] = "client"
    """Whether ``clients`` is dealt client by client or domain by domain."""

    norm: Literal["batch", "group", "none"] = "batch"
    """Normalisation layers, as far as the network has a choice. In networks from elsewhere BatchNorm layers are replaced."""

    options: dict[str, Any] = {}
    """Further arguments of the network's builder, such as ``bottleneck = 256``."""

    variants: dict[str, Variant] = {}
    """Networks under names of your own, which ``clients`` and ``student`` may use: for example one backbone with different
    heads."""

    weights: str | None = None
    """Pretrained weights: a file (safetensors or PyTorch), or the name of packaged ones, such as ``imagenet`` for
    ``efficientnet-lite0`` (extra ``pretrained``). A head of another size is not loaded."""

    train: str = "all"
    """What is trained: ``all``, ``head``, or ``last:N``, the last N pieces of the backbone and the head. The rest is frozen: it
    is never sent, never averaged, and its BatchNorm never moves."""

    cache: bool = True
    """Whether a frozen backbone's outputs are computed once and kept (``fedstill cache``). They are not kept if inputs are
    augmented, unless ``views`` is set."""

    views: Annotated[int, Field(ge=2)] | None = None
    """Number of versions of each training image, the image itself and augmented ones, that are made once and that training draws
    from. Needs ``local.augment`` and a frozen backbone whose outputs are kept."""

    buffers: Literal["average", "recalibrate", "local"] = "average"
    """BatchNorm statistics of the merged model. ``average``: averaged like the weights. ``recalibrate``: estimated on the
    server's data. ``local``: clients keep their own, and the server's are estimated on its data."""

    def dealt(self, usual: Callable[[], str]) -> list[str]:
        """The architectures dealt to the clients in turn; ``usual`` provides one if none is named."""
        return list(self.clients) or [self.name or usual()]


class Engine(Part):
    """Where clients run."""

    name: Literal["inprocess", "flower-simulation"] = "inprocess"
    """Where clients run: on this machine, or in Flower's simulation (needs the extra ``flower``)."""

    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes in which clients train, at most 256. With 0, ``inprocess`` trains in the server's own process and
    ``flower-simulation`` uses all cores."""

    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of torch in each process; 0 leaves torch's own choice."""

    device: str = "cpu"
    """Device of torch, such as ``cpu`` or ``cuda:0``."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of networks' matrix products and convolutions, by torch's automatic mixed precision. Weights, gradients,
    features, logits and losses stay float32."""

    compile: bool = False
    """Compile networks with ``torch.compile``. Each process compiles each network for half a minute or more, so this pays in long
    runs on an accelerator only. If it fails, a warning says so and networks run as they are."""


class Evaluation(Part):
    """What is measured, and how often."""

    every: Positive = 1
    """Rounds between measurements; the last round is always measured."""

    targets: list[Annotated[float, Field(gt=0, le=1)]] = [0.5, 0.6, 0.7, 0.8, 0.9]
    """Accuracies for which the summary names the first round that reached them."""

    ensemble: bool = True
    """Also measure the teachers' ensemble, and the merged model before distillation."""

    keep_ensemble: bool = False
    """Keep the last round's teachers and their weighting in ``ensemble/`` of the run's folder, for use in place of the student
    (``fedstill run --keep-ensemble``)."""

    batch_size: Positive = 64
    """Samples in a batch while testing; affects memory and speed only."""

    samples_every: Annotated[int, Field(ge=0)] = 5
    """Rounds between images of generated samples in ``samples/`` of the run's folder; 0 for none."""

    def due(self, round: int, rounds: int) -> bool:
        """Whether accuracies are measured after this round: every ``every`` rounds, and after the last."""
        return round % self.every == 0 or round == rounds


class Privacy(Part):
    """What limits what is learned about clients and their samples. The tables can be combined."""

    sample: Sample | None = None
    """Clients train by DP-SGD: what they send has a stated epsilon for each of their samples."""

    client: ClientLevel | None = None
    """Clipped and noised sums of the clients' updates (FedAvg, FedProx, FedAvgM, MOON): the model's epsilon is stated, for each
    client as a whole."""

    reports: Reports | None = None
    """Noise on what clients send besides weights: projections, label counts, feature statistics, predictions."""

    secure: Secure | None = None
    """Sums that hide single models, or with ``votes`` single votes, from the server; ``{}`` takes its defaults."""

    votes: Votes | None = None
    """Noised votes of the teachers about the pool (FedDF): the student's epsilon is stated."""


class Config(Part):
    """The configuration of a run."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of every random stream."""

    rounds: Positive = 10
    """Rounds of communication."""

    data: Data
    """The domains, the server's pool and the test sets."""

    clients: Clients = Clients()
    """How domains are divided among clients, and how many take part in a round."""

    model: Model = Model()
    """The networks."""

    local: Local = Local()
    """How a client trains."""

    algorithm: dict[str, Any] = {"name": "fedavg"}
    """The algorithm's ``name`` and its options, listed below."""

    engine: Engine = Engine()
    """Where clients run."""

    evaluation: Evaluation = Evaluation()
    """What is measured, and how often."""

    privacy: Privacy = Privacy()
    """What limits what the server learns about a client (docs/privacy.md)."""

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
        given = next((name for name in ("server", "target") if getattr(self.data, name)), None)
        if self.data.holdout and given:
            raise ValueError(f"data.holdout has no use, since data.{given} is the pool: set only one of them")
        model, augment = self.model, self.local.augment
        if model.views is not None and (model.train == "all" or not model.cache or not (augment.flip or augment.crop)):
            raise ValueError("model.views needs a frozen backbone and augmentation: set model.train and local.augment")
        return self


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML; reading it again gives the same run."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
