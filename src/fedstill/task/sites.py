"""A federation of several machines: a node's description of itself, its own task, and the server's task without clients' data.

On one machine a :class:`~fedstill.task.task.Task` builds everything from the configuration. Across machines, a node has its own
folder and what the server sends (:class:`NodeTask`), and the server has its pool and the nodes' descriptions
(:class:`RosterTask`). The algorithms see the same interface in all three.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from fedstill.config.tables import Config
from fedstill.core.errors import FedstillError
from fedstill.data.loading import aligned, common_classes
from fedstill.data.samples import Domain, Samples
from fedstill.models import names as architectures
from fedstill.task.networks import Networks
from fedstill.task.task import USUAL, ClientInfo, Pool, Task, kind_of

PUBLIC = "public"

__all__ = ["NodeTask", "RosterTask", "Site"]


@dataclass(frozen=True)
class Site:
    """A node's description of itself: its name, the number and shape of its samples, its classes, but none of the data.

    >>> site = Site("site-a", "site-a", 120, ("cat", "dog"), (3, 32, 32))
    >>> Site.from_json(site.to_json()) == site
    True
    """

    client: str
    domain: str
    samples: int
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    prototype: str | None = None  # the node's own architecture, if it requires one
    own: bool = True  # its own data, or a share of the configured partition
    kind: str = "image"  # what its inputs are: image, text or vector
    columns: tuple[str, ...] = ()  # what the coordinates of its vectors are, where they come from a table

    def to_json(self) -> str:
        """The site as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Site:
        """The site that :meth:`to_json` wrote; anything else is refused, since it comes from another machine."""
        try:
            fields = json.loads(text)
            lists = {"classes": tuple(map(str, fields["classes"])), "shape": tuple(map(int, fields["shape"]))}
            site = cls(**{**fields, **lists, "columns": tuple(map(str, fields.get("columns", ())))})
            sound = all(isinstance(name, str) and name for name in (site.client, site.domain)) and site.kind in USUAL
            if sound and isinstance(site.samples, int) and isinstance(site.prototype, str | None):
                return site
        except (ValueError, TypeError, KeyError) as error:
            raise FedstillError(f"a node's description of itself cannot be read: {error}") from None
        raise FedstillError("a node's description of itself cannot be read")


class NodeTask(Task):
    """The task as one node knows it: its own folder or data set, and no other data at all."""

    def __init__(
        self,
        config: Config,
        source: str,
        domain: str,
        client: str,
        *,
        classes: Sequence[str] = (),
        prototype: str | None = None,
        public: str | None = None,
    ):
        super().__init__(config)
        self.public = public  # this node's copy of the server's pool, for systems whose clients predict on public data
        self.source, self.domain, self.name = source, domain, client
        self.agreed = tuple(classes)  # the federation's list, once there is one
        self.prototype = prototype

    @cached_property
    def _names(self) -> dict[str, str]:
        return {self.domain: self.source, **({PUBLIC: self.public} if self.public else {})}

    @cached_property
    def _all(self) -> dict[str, Domain]:
        return self._loaded()

    @cached_property
    def raw_domains(self) -> dict[str, Domain]:
        """The node's own domain, its labels as indices into the federation's classes."""
        own = self._all[self.domain]
        if own.train.y is None:
            raise FedstillError(f"'{self.source}' has no labels, so nothing can be learned from it")
        named = self.agreed and self.config.data.classes != "position"
        odd = set(own.classes) - set(self.agreed) if named else set()
        if odd:
            raise FedstillError(f"'{self.source}' has classes that the federation lacks: {', '.join(sorted(odd)[:5])}")
        return {**self._all, self.domain: aligned(own, self.agreed or own.classes, self.config.data.classes)}

    @cached_property
    def client_domains(self) -> list[str]:
        """The node's own domain."""
        return [self.domain]

    @cached_property
    def server_domains(self) -> list[str]:
        """The node's copy of the public data, if it has one; otherwise only the server has the pool."""
        return [PUBLIC] if self.public else []

    @cached_property
    def pool(self) -> Pool | None:
        """The public data that this node shares with the server; the node has none of the configuration's other pools."""
        if self.public is None:
            raise FedstillError("this system's clients need the public data too: --node-config 'public=\"/path\"'")
        return super().pool

    @property
    def target(self) -> None:
        """None: only the server has the target."""
        return

    @cached_property
    def clients(self) -> Mapping[str, ClientInfo]:
        """The node itself, with all of its training data."""
        held = np.arange(len(self.raw_domains[self.domain].train))
        return {self.name: ClientInfo(self.name, self.domain, self.prototype or self.networks.student, held)}

    @property
    def test(self) -> Samples:
        """The node's own test data, on which it judges the models that it is sent."""
        return self.domains[self.domain].test

    def site(self) -> Site:
        """This node's description of itself."""
        own = self.raw_domains[self.domain]
        shape, prototype = tuple(own.train.x.shape[1:]), self.prototype
        if own.standardised == "shared":
            raise FedstillError(
                f"'{self.source}' holds numbers, but nodes share no means and variances: set data.standardise = 'local' or 'none'"
            )
        return Site(self.name, self.domain, len(own.train), own.classes, shape, prototype, True, kind_of(own), own.columns)


class RosterTask(Task):
    """The task as the server of such a federation knows it: clients from the nodes' descriptions, and only its own data.

    ``data.domains`` names the labelled sets that the server itself can test on; without any, accuracy is what the nodes
    measure on their own test data.
    """

    measurable = False

    def __init__(self, config: Config, sites: Sequence[Site]):
        if config.data.poison is not None:
            raise FedstillError("data.poison is for experiments on one machine; nodes that bring their own data are not poisoned")
        if not config.data.domains and (config.data.holdout or config.data.validation):
            raise FedstillError("data.holdout and data.validation need labelled data on the server: name it in data.domains")
        self.sites = {site.client: site for site in sorted(sites, key=lambda site: site.client)}
        for site in self.sites.values():  # a name may also be an import path, which is never taken from another machine
            if site.prototype not in (None, config.model.name, *config.model.clients, *architectures()):
                raise FedstillError(f"'{site.client}' has a model that the server does not know: '{site.prototype}'")
        super().__init__(self._settled(config))

    def _settled(self, config: Config) -> Config:
        """The configuration with one shape for all inputs, which is sent to every node."""
        first = next(iter(self.sites.values()))
        for site in self.sites.values():
            if site.kind != first.kind:
                raise FedstillError(f"'{first.client}' has inputs of the kind {first.kind}, '{site.client}' {site.kind}")
            if site.columns != first.columns or (site.kind == "vector" and site.shape != first.shape):
                odd = sorted({*site.columns} ^ {*first.columns})[:5]
                apart = f": only one has {', '.join(odd)}" if odd else ", or not in the same order"
                raise FedstillError(f"'{first.client}' and '{site.client}' do not have the same columns{apart}")
        if first.kind != "image" or any(len(site.shape) != 3 for site in self.sites.values()):
            return config
        size = config.data.image_size
        if size is None and first.shape[1] != first.shape[2]:
            raise FedstillError(f"'{first.client}' has images of {first.shape[1]}x{first.shape[2]}: set data.image_size")
        data = config.data.model_copy(update={"image_size": size or first.shape[1]})
        own = [domain.train.x.shape[1] for domain in _served(Task(config.model_copy(update={"data": data}))).values()]
        channels = data.channels or max(own + [site.shape[0] for site in self.sites.values()])
        return config.model_copy(update={"data": data.model_copy(update={"channels": channels})})

    @cached_property
    def raw_domains(self) -> dict[str, Domain]:
        """The server's own domains."""
        return {
            n: d if n in self._unlabelled else aligned(d, self.classes, self.config.data.classes) for n, d in self._own.items()
        }

    @cached_property
    def _own(self) -> dict[str, Domain]:
        found = _served(self)
        for name, domain in found.items():
            if kind_of(domain) == "vector" and tuple(domain.train.x.shape[1:]) != self.raw_shape:
                raise FedstillError(f"'{name}' has vectors of width {domain.train.x.shape[1]}, the nodes of {self.raw_shape[0]}")
        return found

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The class names that nodes and server agree on."""
        own: Mapping[str, Sequence[str]] = {n: d.classes for n, d in self._own.items() if n not in self._unlabelled}
        told = {site.client: site.classes for site in self.sites.values()}
        return common_classes({**own, **told}, self.config.data.classes)

    @cached_property
    def raw_shape(self) -> tuple[int, ...]:
        """One sample's shape."""
        data, first = self.config.data, next(iter(self.sites.values())).shape
        if len(first) != 3 or data.image_size is None or data.channels is None:
            return first
        return data.channels, data.image_size, data.image_size

    @cached_property
    def kind(self) -> str:
        """What the nodes' inputs are."""
        return next(iter(self.sites.values())).kind

    @property
    def _rows(self) -> None:
        """None: the server does not know how a node's rows became inputs."""
        return

    @cached_property
    def clients(self) -> Mapping[str, ClientInfo]:
        """The nodes, sorted by name; those without an architecture of their own are dealt one."""
        dealt = self.dealt
        return {
            site.client: ClientInfo(site.client, site.domain, site.prototype or dealt[turn % len(dealt)], np.arange(site.samples))
            for turn, site in enumerate(self.sites.values())
        }

    @cached_property
    def networks(self) -> Networks:
        """The networks of the architectures that nodes have."""
        held = lambda: [info.prototype for info in self.clients.values()]
        return Networks(self.config, self.device, self._inputs, held)

    def counts(self) -> None:
        """None: the server does not know how the nodes' labels are distributed."""
        return


def _served(task: Task) -> dict[str, Domain]:
    """The domains that the configuration names for the server, unchanged; empty if it names none."""
    return task._loaded() if task._names else {}
