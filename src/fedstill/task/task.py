"""The task: domains, clients, models, test sets. It is built from a configuration, the same in every process.

Data is loaded when it is first needed, so a client never reads the server's pool, and a server never a client's data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedstill.config.tables import Config
from fedstill.core.errors import FedstillError
from fedstill.core.jobs import Jobs
from fedstill.core.streams import numpy_stream
from fedstill.data.inputs import Preprocessing
from fedstill.data.loading import load_domains
from fedstill.data.partition import Shares, class_counts, partition
from fedstill.data.reading import Reading
from fedstill.data.rows import Rows
from fedstill.data.samples import Domain, Samples, hold_out, stratified
from fedstill.data.shifts import flip_labels, shift_labels
from fedstill.data.sources import FILES
from fedstill.data.text import TextOptions
from fedstill.models.text import encoder_folder, is_encoder
from fedstill.models.trunk import Top, is_cut
from fedstill.task.clients import ClientInfo, ClientTable
from fedstill.task.kinds import USUAL, check_model
from fedstill.task.networks import Networks
from fedstill.task.trunks import Views, through_trunk

__all__ = ["USUAL", "ClientInfo", "Pool", "Task", "kind_of", "short_name"]


COUNTED = 1000  # clients whose labels are counted at once: all of them would need a table of clients x classes


@dataclass(frozen=True)
class Pool:
    """Unlabelled samples on the server; ``origin`` says which of ``domains`` each comes from (for the figures only)."""

    samples: Samples
    domains: tuple[str, ...]
    origin: Tensor

    def __len__(self) -> int:
        return len(self.samples)


class Task:
    """The data, clients and networks of a configuration.

    >>> task = Task(Config(data={"domains": ["embedded:optdigits"]}, clients={"per_domain": 2}))
    >>> list(task.clients), task.shape
    (['optdigits-0', 'optdigits-1'], (1, 8, 8))
    """

    jobs: Jobs | None = None  # worker processes that the server may use, if the engine has some
    measurable = True  # whether the clients' data is here, so that a step of their training can be timed

    def __init__(self, config: Config):
        self.config = config
        self.seed = config.seed
        try:
            self.device = torch.device(config.engine.device)
        except RuntimeError:
            raise FedstillError(f"engine.device = '{config.engine.device}' is not a device; examples: cpu, cuda:0") from None
        self.progress: Callable[[str, int, int], None] = lambda what, done, of: None  # told while data is prepared

    @cached_property
    def networks(self) -> Networks:
        """The networks of this task, one per architecture."""
        return Networks(self.config, self.device, self._inputs, lambda: self.dealt)

    def _inputs(self) -> tuple[int, tuple[int, ...]]:
        """The number of classes and the shape of an input; refuses models that do not take such inputs."""
        model = self.config.model
        for name in [*self.dealt, *([model.student] if model.student else [])]:
            check_model(model.variants[name].name if name in model.variants else name, self.kind)
        return len(self.classes), self.raw_shape

    @cached_property
    def _names(self) -> dict[str, str]:
        """Short domain name -> source, for the clients' domains and then the server's."""
        data = self.config.data
        extra = [data.server] if isinstance(data.server, str) else list(data.server or [])
        sources = dict.fromkeys([*data.domains, *extra, *([data.target] if data.target else [])])
        names: dict[str, str] = {}
        for source in sources:
            name = short_name(source)
            if name in names:
                name = source
            names[name] = source
        return names

    @cached_property
    def domains(self) -> dict[str, Domain]:
        """Every domain as the networks take it: unchanged, or as the outputs of a frozen trunk if these are kept."""
        views = Views(self.client_domains, (self.config.model.views or 1) - 1, self.config.local.augment)
        return through_trunk(self.raw_domains, self.kept_trunk, self.progress, views)

    @cached_property
    def kept_trunk(self) -> Top | None:
        """The network whose trunk's outputs are computed once and kept, or None."""
        config = self.config
        augmented = (config.local.augment.flip or config.local.augment.crop) and config.model.views is None
        return self.networks.trunk if is_cut(config.model.train) and config.model.cache and not augmented else None

    @cached_property
    def raw_domains(self) -> dict[str, Domain]:
        """Every domain that the configuration names, brought to one shape."""
        if not self.config.data.domains:
            raise FedstillError("data.domains is empty: only a federation whose nodes bring their own data can do without")
        return self._loaded()

    def _loaded(self) -> dict[str, Domain]:
        data = self.config.data
        return load_domains(
            self._names,
            root=data.root,
            image_size=data.image_size,
            channels=data.channels,
            limit=data.limit,
            test_limit=data.test_limit,
            seed=self.seed,
            reading=self._reading,
            classes=data.classes,
            unlabelled=self._unlabelled,
            measured=self.client_domains,
            progress=self.progress,
        )

    @property
    def _reading(self) -> Reading:
        """How the data is read; text becomes token ids by the encoder's own tokenizer if the model is an encoder."""
        data, model = self.config.data, self.config.model
        named = (*model.clients, model.name or "", model.student or "")
        encoder = next((name for name in named if is_encoder(name)), None)
        if encoder is None:
            return data
        text = (data.text or TextOptions()).model_copy(update={"tokenizer": f"hf:{encoder_folder(encoder)}"})
        return data.model_copy(update={"text": text})

    @cached_property
    def _unlabelled(self) -> frozenset[str]:
        """The domains that only the pool is drawn from."""
        data = self.config.data
        return frozenset(name for name, source in self._names.items() if source not in (*data.domains, data.target))

    @cached_property
    def client_domains(self) -> list[str]:
        """The domains that clients hold."""
        by_source = {source: name for name, source in self._names.items()}
        return [by_source[source] for source in self.config.data.domains if source != self.config.data.target]

    @property
    def _first(self) -> Domain:
        """The first client domain; all domains have its classes and shape."""
        domains = self.raw_domains
        if not self.client_domains:
            raise FedstillError(f"data.target '{self.config.data.target}' is the only domain: none is left for the clients")
        return domains[self.client_domains[0]]

    @cached_property
    def server_domains(self) -> list[str]:
        """The domains that the pool is drawn from."""
        by_source = {source: name for name, source in self._names.items()}
        data = self.config.data
        if data.target:
            return [by_source[data.target]]
        servers = [data.server] if isinstance(data.server, str) else list(data.server or [])
        return [by_source[source] for source in servers]

    @property
    def target(self) -> str | None:
        """The target domain's name, in adaptation."""
        return self.server_domains[0] if self.config.data.target else None

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The class names."""
        return self._first.classes

    @cached_property
    def raw_shape(self) -> tuple[int, ...]:
        """One sample's shape: (channels, height, width), (length,) for text, or (width,) for vectors."""
        return tuple(self._first.train.x.shape[1:])

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input of the networks: a sample's, or that of a frozen trunk's output if these are kept."""
        trunk = self.kept_trunk
        return self.raw_shape if trunk is None else tuple(trunk.output_shape(self.raw_shape))

    @cached_property
    def kind(self) -> str:
        """What the inputs are: ``image``, ``text`` or ``vector``."""
        return kind_of(self._first)

    @property
    def preprocessing(self) -> Preprocessing:
        """How new images, texts and rows become inputs like those in training."""
        data, kind = self._reading, self.kind
        text = (data.text or TextOptions()) if kind == "text" else None
        return Preprocessing(tuple(self.raw_shape), text, self._rows, data.range, data.label if kind == "vector" else None)

    @property
    def _rows(self) -> Rows | None:
        return self._first.rows

    @cached_property
    def dealt(self) -> list[str]:
        """The architectures dealt to the clients in turn: those named, or the default for the kind of inputs."""
        return self.config.model.dealt(lambda: USUAL[self.kind])

    @property
    def complete(self) -> Config:
        """The configuration with the values that depend on the data filled in, as it is saved."""
        model = self.config.model
        if model.name is not None or model.clients:
            return self.config
        return self.config.model_copy(update={"model": model.model_copy(update={"name": self.dealt[0]})})

    @property
    def notes(self) -> list[str]:
        """Messages about the data for the user, such as images that were left out."""
        return [note for domain in self.raw_domains.values() for note in domain.notes]

    def _part(self, name: str, part: Literal["validation", "pool", "clients"]) -> np.ndarray:
        """Indices of a client domain's training set that go to validation, to the pool or to the clients."""
        data, n = self.config.data, len(self.raw_domains[name].train)
        order = numpy_stream(self.seed, "split", name).permutation(n)
        validation, pool = round(n * data.validation), round(n * data.holdout)
        parts = {
            "validation": slice(validation),
            "pool": slice(validation, validation + pool),
            "clients": slice(validation + pool, None),
        }
        return np.sort(order[parts[part]])

    @cached_property
    def clients(self) -> Mapping[str, ClientInfo]:
        """Every client, in order of domain and number."""
        shares = {name: self._shares(name) for name in self.client_domains}
        return ClientTable(shares, self.dealt, self.config.model.by == "domain")

    def _shares(self, name: str) -> Shares:
        """Which of a domain's training samples each of its clients holds."""
        data, clients, labels = self.config.data, self.config.clients, self.raw_domains[name].train.y
        if labels is None:
            raise FedstillError(f"domain '{name}' has no labels, so no client can learn from it")
        rng = numpy_stream(self.seed, "partition", name)
        if not (data.validation or data.holdout):  # all samples are the clients', and nothing is copied
            return partition(labels, clients.per_domain, clients.partition, rng)
        mine = self._part(name, "clients")
        found = partition(labels[torch.from_numpy(mine)], clients.per_domain, clients.partition, rng)
        return Shares(mine[found.positions], found.ends)

    @property
    def client_ids(self) -> Sequence[str]:
        """The clients' ids by number, to draw from."""
        clients = self.clients
        return clients.ids if isinstance(clients, ClientTable) else list(clients)

    @cached_property
    def poisoned(self) -> frozenset[str]:
        """The ids of clients that misbehave on purpose."""
        poison = self.config.data.poison
        if poison is None:
            return frozenset()
        ids = self.client_ids
        for name in poison.clients:
            if name not in self.clients and name not in self.client_domains:
                raise FedstillError(f"data.poison.clients: no client or domain '{name}'; clients: {', '.join(ids[:10])}")
        named = {i for i, info in self.clients.items() if i in poison.clients or info.domain in poison.clients}
        count = round(poison.fraction * len(ids))
        drawn = numpy_stream(self.seed, "poison").permutation(len(ids))[:count]
        return frozenset(named | {ids[i] for i in drawn})

    def counts(self) -> Iterator[list[int]] | None:
        """How many samples of each class every client holds, one client after the other; None if the server does not know."""
        return self._counted()

    def _counted(self) -> Iterator[list[int]]:
        clients = iter(self.clients.values())
        for _, of_domain in groupby(clients, lambda info: info.domain):
            while together := list(islice(of_domain, COUNTED)):
                labels = self.raw_domains[together[0].domain].train.y
                assert labels is not None
                yield from class_counts(labels, [info.indices for info in together], len(self.classes)).tolist()

    def data_of(self, client: str) -> Samples:
        """A client's training samples (with false labels if it is poisoned)."""
        info = self.clients[client]
        samples = self.domains[info.domain].train.take(torch.from_numpy(info.indices))
        poison = self.config.data.poison
        if poison is not None and client in self.poisoned:
            rng = numpy_stream(self.seed, "poison", client)
            if poison.kind == "shift-labels":
                samples = shift_labels(samples, poison.level, len(self.classes), rng)
            elif poison.kind == "flip-labels":
                samples = flip_labels(samples, poison.level, len(self.classes), rng)
        return samples

    def split_of(self, client: str, share: float, round: int) -> tuple[Samples, Samples]:
        """A client's training samples, split into those it trains on in this round and those it holds out to judge models.

        Others of the same classes take the place of those that are held out, so that a round has as many steps as without a
        judge."""
        drawn = (round,) if self.config.clients.validation_drawn == "round" else ()
        rng = numpy_stream(self.seed, "validation", client, *drawn)
        kept, held = hold_out(self.data_of(client), share, rng)
        assert kept.y is not None
        return kept.take(np.concatenate([np.arange(len(kept)), stratified(kept.y, len(held), rng)])), held

    @cached_property
    def pool(self) -> Pool | None:
        """The server's unlabelled samples, or None if it has none."""
        data = self.config.data
        parts: list[tuple[str, Samples]] = []
        for name in self.server_domains:
            parts.append((name, self.domains[name].train))
        if not parts and data.holdout:
            for name in self.client_domains:
                parts.append((name, self.domains[name].train.take(torch.from_numpy(self._part(name, "pool")))))
        if not parts:
            return None
        if data.pool_classes is not None:
            parts = [
                (name, s.take(torch.nonzero(s.y < data.pool_classes).flatten()) if s.y is not None else s) for name, s in parts
            ]
        origin = torch.cat([torch.full((len(s),), i) for i, (_, s) in enumerate(parts)])
        x = torch.cat([s.x for _, s in parts]) if len(parts) > 1 else parts[0][1].x
        wanted = round(len(x) * data.pool_fraction)
        wanted = min(wanted, data.pool_limit or wanted)
        if wanted < len(x):
            chosen = torch.from_numpy(np.sort(numpy_stream(self.seed, "pool").permutation(len(x))[:wanted]))
            x, origin = x[chosen], origin[chosen]
        if len(x) == 0:
            raise FedstillError("the server's pool is empty; loosen data.pool_classes, pool_fraction or pool_limit")
        return Pool(Samples(x), tuple(name for name, _ in parts), origin)

    @cached_property
    def validation(self) -> Samples | None:
        """Labelled samples on the server, for early stopping and warnings; None if data.validation is 0."""
        if not self.config.data.validation:
            return None
        parts = [self.domains[n].train.take(torch.from_numpy(self._part(n, "validation"))) for n in self.client_domains]
        if not any(len(part) for part in parts):
            share = self.config.data.validation
            raise FedstillError(f"the validation set is empty: data.validation = {share} of so few samples is less than one")
        return Samples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts if p.y is not None]))

    @property
    def statistics_data(self) -> Samples:
        """Inputs on the server from which BatchNorm statistics can be estimated: the pool, else the validation data."""
        found = self.pool.samples if self.pool is not None else self.validation
        if found is None:
            raise FedstillError(
                f"model.buffers = '{self.config.model.buffers}' needs data on the server: set data.server, holdout or validation"
            )
        return found

    @cached_property
    def tests(self) -> dict[str, Samples]:
        """The test sets by domain: the target's in adaptation, else those of the clients' domains."""
        return {name: self.domains[name].test for name in ([self.target] if self.target else self.client_domains)}


def kind_of(domain: Domain) -> str:
    """The kind of a domain's inputs, by their type: bytes are images, whole numbers token ids, floats vectors."""
    x = domain.train.x
    return "image" if x.dtype == torch.uint8 else "vector" if x.is_floating_point() else "text"


def short_name(source: str) -> str:
    """A domain's short name: the last part of its source, without a file's extension.

    >>> short_name("embedded:mnist"), short_name("pacs/photo"), short_name("/data/site_a/"), short_name("wards/north.csv")
    ('mnist', 'photo', 'site_a', 'north')
    """
    last = source.rstrip("/").rsplit("/", 1)[-1].rsplit(":", 1)[-1]
    return next((last[: -len(end)] for end in FILES if last.lower().endswith(end) and last.lower() != end), last)
