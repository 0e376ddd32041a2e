"""An algorithm is four functions; an engine carries messages between them and knows nothing about algorithms.

::

    start()                        -> server     the server's first state
    instruct(server, client_id)    -> message    the message to this client
    train(message, client)         -> message    runs where the data is
    fuse(server, replies, round)   -> server     runs on the server: merge, then distil

All state is explicit: the server's is a :class:`Server`, a client's private state is ``client.memory``, and an algorithm object
holds nothing but its options and its task, so a checkpoint is the state and a resume is exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedstill.core.accounting import Ledger
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message, State
from fedstill.core.options import Part
from fedstill.core.registry import Registry
from fedstill.core.streams import stream
from fedstill.data.samples import Samples
from fedstill.models.generator import Generator
from fedstill.models.network import Network
from fedstill.models.predict import predict_logits
from fedstill.task import Task
from fedstill.task.predictions import right_later
from fedstill.training.options import Local

__all__ = ["ALGORITHMS", "Algorithm", "Client", "Ends", "Options", "OptionsT", "Reply", "Round", "Scores", "Server", "algorithm"]


class Options(Part):
    """An algorithm's options: the keys of ``[algorithm]`` besides ``name``. Unknown keys are refused."""


# Options are only read, so their type is covariant: options of a subclass will do wherever their base class is expected.
OptionsT = TypeVar("OptionsT", bound=Options, covariant=True, default=Options)


@dataclass
class Server:
    """The server's whole state: one set of weights per model prototype, and anything else that an algorithm keeps.

    >>> server = Server(models={"mlp": {"w": torch.ones(2)}}, parts={"momentum": {"w": torch.zeros(2)}}, values={"k": [1]})
    >>> again = Server.from_message(server.to_message())
    >>> again.models["mlp"]["w"].tolist(), again.parts["momentum"]["w"].tolist(), again.values
    ([1.0, 1.0], [0.0, 0.0], {'k': [1]})
    """

    models: dict[str, State]
    parts: dict[str, State] = field(default_factory=dict)  # generator, momentum, ...
    values: dict[str, Any] = field(default_factory=dict)  # anything JSON can hold

    def to_message(self) -> Message:
        """The state as a message, for a checkpoint."""
        tensors: State = {}
        for kind, groups in (("models", self.models), ("parts", self.parts)):
            for name, state in groups.items():
                tensors.update({f"{kind}/{name}|{key}": tensor for key, tensor in state.items()})
        return Message(tensors, {"server": json.dumps(self.values), "models": json.dumps(list(self.models))})

    @classmethod
    def from_message(cls, message: Message) -> Server:
        """The state that :meth:`to_message` wrote."""
        server = cls({name: {} for name in json.loads(str(message.values["models"]))})
        for key, tensor in message.tensors.items():
            kind, rest = key.split("/", 1)
            name, key = rest.split("|", 1)
            groups = server.models if kind == "models" else server.parts
            groups.setdefault(name, {})[key] = tensor
        server.values = json.loads(str(message.values["server"]))
        return server


@dataclass
class Client:
    """A client as ``train`` sees it: its data, a network to train, a random stream, and memory that survives rounds.

    ``network(prototype)`` is the process's one network of that architecture; load weights into it before use.
    Assign ``client.memory`` to change what is kept until this client's next round.
    """

    id: str
    domain: str
    prototype: str
    data: Samples
    round: int
    seed: int
    task: Task
    memory: Message = field(default_factory=Message)

    held: Samples | None = None  # samples held out to judge models, if the system's judge asks clients
    ledger: Ledger = field(default_factory=Ledger)  # what was spent on this client's samples, in all rounds (privacy)

    @classmethod
    def of(cls, task: Task, client: str, round: int, memory: Message | None = None, validation: float = 0.0) -> Client:
        """The client with that id, ready to train in ``round``; a share ``validation`` of its samples is held out."""
        info = task.clients[client]
        data, held = task.split_of(client, validation, round) if validation else (task.data_of(client), None)
        return cls(info.id, info.domain, info.prototype, data, round, task.seed, task, memory or Message(), held)

    @property
    def network(self) -> Network:
        """The network of this client's architecture; its weights are those that its last user left."""
        return self.task.networks.get(self.prototype)

    def rng(self, *purpose: object) -> torch.Generator:
        """This client's random stream for ``purpose`` in this round."""
        return stream(self.seed, "client", self.id, self.round, *purpose)


@dataclass(frozen=True)
class Reply:
    """One client's screened reply. The message is read on access, so that teachers can be streamed."""

    client: str
    domain: str
    prototype: str
    samples: int
    read: Callable[[], Message] = field(repr=False)
    decode: Callable[[State], State] = field(default=dict, repr=False)  # e.g. packed bits to weights

    @property
    def message(self) -> Message:
        """The whole message."""
        return self.read()

    @property
    def model(self) -> State:
        """The client's weights."""
        return self.decode(self.read().group("model"))

    def part(self, name: str) -> State:
        """Another group of tensors in the message."""
        return self.read().group(name)


@dataclass(frozen=True)
class Scores:
    """Accuracies (0..1) on every test domain, and of every model prototype (mean over domains)."""

    domains: dict[str, float]
    prototypes: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The mean over the domains: the figure that comparisons use."""
        return fmean(self.domains.values()) if self.domains else float("nan")


@dataclass(frozen=True)
class Ends:
    """The two ends of a line: the average that a student started from, and the student."""

    average: State
    student: State
    held: tuple[Samples, Tensor] | None = None
    snapshots: Sequence[State] = ()  # of the student during distillation
    plain: State | None = None  # the average by examples, if the system has another
    view: Callable[[Network], Network] | None = None  # the part of the network that takes held samples, if not all of it


@dataclass
class Round:
    """What ``fuse`` knows about the round that it closes: its number (from 1), its random streams and its notes.

    Notes become fields of the round's line in ``history.jsonl``.
    """

    number: int
    total: int
    seed: int
    phase: str = "train"
    notes: dict[str, Any] = field(default_factory=dict)
    progress: Callable[[str, int, int], None] = lambda what, done, of: None  # shown while the server works
    ends: dict[str, Ends] = field(default_factory=dict)  # by prototype, if a judge is to choose between them
    snapshots: dict[str, list[State]] = field(default_factory=dict)  # of each prototype's student, if they are judged too
    speakers: Any = None  # the teachers of this round and their weighting, if an ensemble is to be kept (fusion/kept.py)
    feature_map: Any = None  # real and virtual features of the domains, to look at (fusion/feature_map.py)
    validated: dict[str, float] = field(default_factory=dict)  # replies' accuracy on the server's labelled data, measured once

    def offer(
        self,
        averages: Mapping[str, State],
        students: Mapping[str, State],
        held: tuple[Samples, Tensor] | None = None,
        plain: Mapping[str, State] | None = None,
        view: Callable[[Network], Network] | None = None,
    ) -> None:
        """Let a judge choose a point between each average and the student distilled from it. ``held`` holds samples that the
        students did not learn from, and the ensemble's targets for them; ``view`` is the part of a network that takes them.
        ``plain`` holds the averages by examples of a system with another average, which the judge may prefer."""
        self.ends = {
            name: Ends(averages[name], student, held, self.snapshots.get(name, ()), (plain or {}).get(name), view)
            for name, student in students.items()
            if name in averages
        }

    def rng(self, *purpose: object) -> torch.Generator:
        """The server's random stream for ``purpose`` in this round."""
        return stream(self.seed, "server", self.number, *purpose)

    def note(self, **fields: Any) -> None:
        """Add fields to this round's line of the history."""
        self.notes.update(fields)


class Algorithm(Generic[OptionsT]):
    """The four functions. A subclass overrides what differs and inherits the rest.

    A system with its own options names their class twice, once for type checkers and once for use at run time:

    >>> class MyOptions(Options):
    ...     strength: float = 1.0
    >>> class Mine(Algorithm[MyOptions]):
    ...     name = "mine"
    ...     Options = MyOptions

    ``requires`` names the tensor groups that a reply must have; ``model`` is checked against the architecture's names, shapes
    and dtypes before ``fuse`` sees it.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # as the field writes it, e.g. "FedAvg"
    paper: ClassVar[str]
    parts: ClassVar[Mapping[str, str]] = {}  # part -> member, for `fedstill algorithms`
    requires: ClassVar[Sequence[str]] = ("model",)
    needs: ClassVar[Sequence[str]] = ()  # "pool", "target": what the task must have
    private_items: ClassVar[Sequence[str]] = ()  # what clients send that is made from weights of `client_fit` and public data
    everyone: ClassVar[bool] = False  # every client takes part in every round
    has_ensemble: ClassVar[bool] = False  # whether its teachers can be kept as an ensemble
    sums_models: ClassVar[bool] = (
        False  # whether its server needs no more than the sum of the models (privacy.secure, privacy.client)
    )
    public_structure: ClassVar[bool] = False  # whether the server may have its own architecture, model.student
    Options: type[OptionsT] = Options  # type: ignore[assignment]  # the default of OptionsT

    def __init__(self, task: Task, options: OptionsT | None = None):
        self.task = task
        self.options: OptionsT = options if options is not None else self.Options()
        if task.config.model.student is not None and not self.public_structure:
            raise FedstillError(f"the server of {self.name} has the clients' architectures: remove model.student")

    def phases(self, round: int) -> Sequence[str]:
        """The named exchanges of a round; most protocols have one."""
        return ("train",)

    def required(self, phase: str) -> Sequence[str]:
        """The tensor groups that a reply of ``phase`` must have; by default ``requires`` in every phase."""
        return self.requires

    def sent(self) -> Sequence[str]:
        """The tensor groups that clients send, in all exchanges and with all reports."""
        return self.requires

    def cohort(self, round: int) -> int:
        """The round whose sampled clients take part in ``round``: itself, unless a protocol keeps its clients for several."""
        return round

    def start(self) -> Server:
        """The server's first state: initial weights for every prototype."""
        return Server({name: self.task.networks.initial(name) for name in self.task.networks.prototypes})

    def instruct(self, server: Server, client: str, round: Round) -> Message:
        """The message to ``client``: by default, the weights of its prototype."""
        return Message.of(model=server.models[self.task.clients[client].prototype])

    def train(self, message: Message, client: Client, phase: str = "train") -> Message:
        """Runs where the data is; returns at least the trained weights and ``samples``."""
        raise NotImplementedError

    def fuse(self, server: Server, replies: Sequence[Reply], round: Round) -> Server:
        """Runs on the server after each phase: merge, then distil."""
        raise NotImplementedError

    def screen(self, server: Server, client: str, message: Message) -> str | None:
        """A reason to drop this reply beyond the common checks, or None."""
        return None

    def samples(self, server: Server, round: Round) -> Tensor | None:
        """Generated images (n, channels, height, width) in [-1, 1] to look at, one column per class; None if there are none."""
        return None

    def trained_generator(self, server: Server) -> Generator | None:
        """The generator that a finished run saves; None if the system trains none."""
        return None

    def evaluate(self, server: Server) -> Scores:
        """Accuracy on every domain's test set, as the mean over prototypes."""
        return self._evaluate_later(server)()

    def evaluate_later(self, server: Server) -> Callable[[], Scores]:
        """Start to evaluate in the engine's workers; returns what waits for the scores. A system with its own ``evaluate``
        measures at once."""
        if type(self).evaluate is Algorithm.evaluate:
            return self._evaluate_later(server)
        found = self.evaluate(server)
        return lambda: found

    def _evaluate_later(self, server: Server) -> Callable[[], Scores]:
        size = self.task.config.evaluation.batch_size
        later: dict[str, dict[str, Callable[[], float]]] = {}
        for name, state in server.models.items():
            network = self.loaded(name, state)
            later[name] = {domain: right_later(self.task, network, test, size) for domain, test in self.task.tests.items()}

        def waited() -> Scores:
            scores = {name: {domain: wait() for domain, wait in by.items()} for name, by in later.items()}
            domains = {domain: fmean(by[domain] for by in scores.values()) for domain in self.task.tests}
            return Scores(domains, {name: fmean(by.values()) for name, by in scores.items()})

        return waited

    def predictions(self, server: Server, samples: Samples) -> list[Tensor]:
        """The class that each evaluated model predicts for each sample; empty if the server has no model."""
        size = self.task.config.evaluation.batch_size
        return [predict_logits(self.loaded(name, state), samples, size).argmax(1).cpu() for name, state in server.models.items()]

    def products(self, server: Server) -> dict[str, tuple[str, State]]:
        """The evaluated models, which a finished run saves, by name: (architecture, weights)."""
        return {name: (name, state) for name, state in server.models.items()}

    def loaded(self, prototype: str, state: State) -> Network:
        """A server model as a network; override it if the system changes the shapes of its architecture."""
        return self.task.networks.load(prototype, state, role="student")

    @cached_property
    def local(self) -> Local:
        """The local training options in force."""
        return self.task.config.local


def _adopted(name: str, thing: Any) -> type[Algorithm]:
    if not (isinstance(thing, type) and issubclass(thing, Algorithm)):
        raise FedstillError(f"algorithm '{name}' is not a subclass of fedstill.Algorithm")
    return thing


ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "algorithm", group="fedstill.algorithms", home="fedstill.algorithms", adopt=_adopted
)
Kind = TypeVar("Kind", bound=type[Algorithm])


def algorithm(kind: Kind) -> Kind:
    """Register the decorated system under its ``name``."""
    ALGORITHMS.add(kind.name, kind)
    return kind
