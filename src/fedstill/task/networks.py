"""The networks of a task: one per architecture and role in every process; weights are replaced in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedstill.config.tables import Config
from fedstill.core.message import State, clone
from fedstill.core.streams import subseed
from fedstill.models import build
from fedstill.models.binary import FULL_PRECISION
from fedstill.models.network import Network
from fedstill.models.trunk import Top, cut_of, is_cut, same_trunk
from fedstill.task.placing import placed

__all__ = ["Networks"]

SERVED = ("student", "sampled")  # roles that only the server has


class Networks:
    """Builds each architecture once. ``inputs`` returns the number of classes and the shape of an input when they are first
    needed, so that naming architectures loads no data.

    >>> networks = Networks(Config(data={"domains": []}), torch.device("cpu"), lambda: (3, (1, 4, 4)), lambda: ["mlp"])
    >>> networks.prototypes, networks.get("mlp").classes
    (['mlp'], 3)
    """

    def __init__(
        self,
        config: Config,
        device: torch.device,
        inputs: Callable[[], tuple[int, tuple[int, ...]]],
        prototypes: Callable[[], Sequence[str]],
    ):
        self.config, self.device, self._inputs, self._prototypes = config, device, inputs, prototypes
        self._networks: dict[tuple[str, str], Network] = {}
        self._live: dict[tuple[str, str], State] = {}
        self._initial: dict[tuple[object, ...], State] = {}

    @cached_property
    def prototypes(self) -> list[str]:
        """The architectures that clients have, each once."""
        return list(dict.fromkeys(self._prototypes()))

    @property
    def student(self) -> str:
        """The architecture of the server's own model."""
        return self.config.model.student or self.prototypes[0]

    def served(self, prototype: str) -> str:
        """The architecture of the server's own copy: in full precision if the clients' has 1-bit weights."""
        return FULL_PRECISION.get(prototype, prototype)

    def get(self, prototype: str, role: str = "") -> Network:
        """The process's only network of this architecture and ``role``, with the weights it last had.

        The role ``student`` is the server's own copy: the one that is merged, distilled into and evaluated; ``sampled`` is for
        models that the server made from the clients'.
        """
        key = (prototype, role)
        if key not in self._networks:
            served = role in SERVED and self.served(prototype) != prototype
            network = self._build(prototype, name=self.served(prototype) if served else None)
            self._networks[key] = placed(network, self.config.engine, self.device)
        return self._networks[key]

    def load(self, prototype: str, state: Mapping[str, Tensor], role: str = "") -> Network:
        """That network with ``state`` copied into it, in place."""
        network = self.get(prototype, role)
        with torch.no_grad():
            for name, tensor in self._tensors(prototype, role).items():
                tensor.copy_(state[name])
        return network

    def named(self, network: Network) -> tuple[str, str] | None:
        """The architecture and role of one of these networks; None if it is not one of them."""
        return next((key for key, one in self._networks.items() if one is network), None)

    def snapshot(self, prototype: str, role: str = "") -> State:
        """An independent copy of that network's present weights."""
        return clone(self._tensors(prototype, role))

    def initial(self, prototype: str, *purpose: object) -> State:
        """The initial weights of an architecture: a function of the seed alone, and of ``purpose`` for further ones."""
        key = (prototype, *purpose)
        if key not in self._initial:
            self._initial[key] = clone(self._build(prototype, *purpose).state_dict())
        return clone(self._initial[key])

    def _tensors(self, prototype: str, role: str) -> State:
        """The network's own tensors. They are changed in place, so they are looked up only once."""
        key = (prototype, role)
        if key not in self._live:
            self._live[key] = self.get(prototype, role).state_dict()
        return self._live[key]

    def whole(self, prototype: str, state: Mapping[str, Tensor]) -> State:
        """``state`` plus the frozen tensors, if a part of the network is frozen: all tensors of the network."""
        network = self.get(prototype, "student")
        return {**network.trunk_state, **state} if isinstance(network, Top) else dict(state)

    @cached_property
    def trunk(self) -> Top | None:
        """The network whose frozen trunk all architectures share; None if they share none, or nothing is frozen."""
        if not is_cut(self.config.model.train):
            return None
        tops = [self.get(name) for name in dict.fromkeys([*self.prototypes, self.student])]
        first = tops[0]
        assert isinstance(first, Top)
        alike = all(isinstance(top, Top) and same_trunk(first, top) for top in tops)
        return first if alike else None

    def _build(self, prototype: str, *purpose: object, name: str | None = None) -> Network:
        """A network of this architecture, or of its twin called ``name``, whose tensors have the same names and shapes."""
        classes, shape = self._inputs()
        made, model, data = self.architecture(prototype, name), self.config.model, self.config.data
        network = build(
            made["name"],
            classes=classes,
            shape=shape,
            norm=made["norm"],
            seed=subseed(self.config.seed, "init", prototype, *purpose),
            weights=model.weights,
            **made["options"],
        )
        network.mean = network.mean if data.mean is None else data.mean
        network.std = network.std if data.std is None else data.std
        return Top(network, cut_of(network, model.train)) if is_cut(model.train) else network

    def architecture(self, prototype: str, name: str | None = None) -> dict[str, Any]:
        """The name, norm and options with which an architecture is built, or its twin called ``name``."""
        model, text = self.config.model, self.config.data.text
        variant = model.variants.get(prototype)
        options = dict(model.options if variant is None else variant.options)
        named = prototype if variant is None else variant.name
        if name not in (None, prototype):
            options.pop("activations", None)  # of the bits that the twin does not have
            named = name
        if named == "text-small" and text is not None:
            options.setdefault("vocab", text.vocab)
        return {"name": named, "norm": model.norm, "options": options}
