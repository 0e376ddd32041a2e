"""Named parts: one registry per kind, open to everybody.

A member of a kind (a weighting, a merge, a model, ...) is found by name in three ways, wherever the name is used:

* it comes with fedstill, or an imported module has registered it: ``soft``;
* an installed package offers it as an entry point of the kind's group, such as ``fedstill.weightings``: ``loudest``;
* it is named by its import path, ``module.path:thing``; the current folder is searched too.

Names are never overwritten. A run tells the processes that it starts which modules to import (:func:`plugged_modules`), so a part
that works here also works in a worker and on a node.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedstill.core.errors import FedstillError, first_line, unknown

__all__ = ["Registry", "import_plugged", "plugged_modules", "resolve"]

T = TypeVar("T")
Thing = TypeVar("Thing")


def resolve(spec: str, what: str) -> Any:
    """The object that ``module.path:name`` names; the current folder is searched as well. ``what`` begins the error's line.

    >>> resolve("math:pi", "number")
    3.141592653589793
    >>> resolve("math:tau.nothing", "number")
    Traceback (most recent call last):
    fedstill.core.errors.FedstillError: number 'math:tau.nothing': 'float' object has no attribute 'nothing'
    """
    path, _, attribute = spec.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # the console script, unlike python -m, does not look where it is started
    try:
        found: Any = importlib.import_module(path)
        for name in attribute.split("."):
            found = getattr(found, name)
    except FedstillError:
        raise
    except Exception as error:  # a foreign module may raise anything while it is imported
        raise FedstillError(f"{what} '{spec}': {first_line(error)}") from error
    return found


class Registry(Generic[T]):
    """The members of one kind.

    ``home`` is the package whose modules register the built-in members when they are imported. ``adopt`` turns an object that was
    found by its import path and has not registered itself into a member; without it such an object is refused.

    >>> shapes = Registry("shape", group="doctest.shapes")
    >>> @shapes.register("square")
    ... def square(): ...
    >>> shapes.names(), shapes.get("square") is square
    (['square'], True)
    >>> shapes.get("sqare")
    Traceback (most recent call last):
    fedstill.core.errors.FedstillError: unknown shape 'sqare'; did you mean 'square'?
    >>> shapes.add("square", print)
    Traceback (most recent call last):
    fedstill.core.errors.FedstillError: there is a shape 'square' already (from fedstill.core.registry)
    """

    everywhere: list[Registry[Any]] = []  # every registry that was made

    def __init__(
        self,
        kind: str,
        *,
        group: str,
        home: str | None = None,
        adopt: Callable[[str, Any], T] | None = None,
    ):
        self.kind, self.group, self.home, self.adopt = kind, group, home, adopt
        self._members: dict[str, T] = {}
        self._modules: dict[str, str] = {}  # name -> the module that registered it
        self._things: dict[int, str] = {}  # what was decorated -> name
        self._filled = home is None
        Registry.everywhere.append(self)

    # -- adding ------------------------------------------------------------------------------------------------------------

    def add(self, name: str, member: T, thing: Any = None) -> None:
        """Add a member; ``thing`` is the object that it was made from, if that is another object."""
        made_of = thing if thing is not None else member
        while isinstance(made_of, partial):  # whose module is functools
            made_of = made_of.func
        module = getattr(made_of, "__module__", None) or __name__
        if name in self._members:
            raise FedstillError(f"there is a {self.kind} '{name}' already (from {self._modules[name]})")
        self._members[name], self._modules[name] = member, module
        self._things[id(thing if thing is not None else member)] = name

    def register(self, name: str, wrap: Callable[[Any], T] | None = None) -> Callable[[Thing], Thing]:
        """A decorator that adds the decorated object, or what ``wrap`` makes of it, and returns the object unchanged."""

        def decorate(thing: Thing) -> Thing:
            self.add(name, wrap(thing) if wrap is not None else thing, thing)  # type: ignore[arg-type]
            return thing

        return decorate

    # -- finding -----------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> T:
        """The member called ``name``; the error for an unknown name suggests the nearest one."""
        if not self._in_module_of_its_name(name):
            self._fill()
        offered = _offered(self.group).get(name, ())
        if name in self._members and self._modules[name] not in {point.module for point in offered}:
            if offered:
                others = ", ".join(_distribution(point) for point in offered)
                raise FedstillError(f"{self.kind} '{name}' is offered twice: by {self._modules[name]} and by {others}")
            return self._members[name]
        if len(offered) > 1:
            raise FedstillError(f"{self.kind} '{name}' is offered twice: by {', '.join(map(_distribution, offered))}")
        if offered and name not in self._members:
            self._take(name, self._load(offered[0]))
        elif ":" in name and name not in self._members:
            self._take(name, resolve(name, self.kind))
        if name not in self._members:
            raise unknown(self.kind, name, self.names())
        return self._members[name]

    def _load(self, point: EntryPoint) -> Any:
        try:
            return point.load()
        except Exception as error:  # a foreign package may raise anything while it is imported
            raise FedstillError(f"{self.kind} '{point.name}' of {_distribution(point)}: {first_line(error)}") from error

    def _take(self, name: str, thing: Any) -> None:
        """Add an object that was found by its import path, under the name that was asked for."""
        if name in self._members:
            return  # it registered itself under this very name
        own = self._things.get(id(thing))
        if own is not None:
            member = self._members[own]
        elif self.adopt is not None:
            member = self.adopt(name, thing)
        else:
            raise FedstillError(f"{self.kind} '{name}' has not been registered: decorate it (docs/extending.md)")
        self._members[name], self._modules[name] = member, getattr(thing, "__module__", None) or name.partition(":")[0]

    def names(self) -> list[str]:
        """Every name: the built-in ones by the names of their modules, the others in the order in which they were added. Parts
        named by an import path are not listed."""
        self._fill()
        own = sorted((name for name, module in self._modules.items() if self._at_home(module)), key=self._modules.__getitem__)
        others = (name for name in self._members if ":" not in name)
        return list(dict.fromkeys([*own, *others, *sorted(_offered(self.group))]))

    def items(self) -> Iterator[tuple[str, T]]:
        """Every name and its member."""
        return ((name, self.get(name)) for name in self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def origin(self, name: str) -> str:
        """Where a member comes from: ``fedstill``, an installed package with its version, or a module."""
        offered = _offered(self.group).get(name)
        if offered:
            return _distribution(offered[0])
        module = self._modules.get(name, "")
        return "fedstill" if module.split(".")[0] == "fedstill" else module

    def _at_home(self, module: str) -> bool:
        return self.home is not None and module.startswith(f"{self.home}.")

    def _in_module_of_its_name(self, name: str) -> bool:
        """Whether ``name`` comes from the built-in module of that name, which is imported if need be. A run that names one member
        then need not import all of them, which would take a tenth of its start."""
        module = f"{self.home}.{name}"
        if self.home is not None and name.isidentifier() and name not in self._members and find_spec(module) is not None:
            importlib.import_module(module)
        return self._modules.get(name) == module

    def _fill(self) -> None:
        if self._filled:
            return
        self._filled = True
        assert self.home is not None
        home = importlib.import_module(self.home)
        for module in pkgutil.iter_modules(home.__path__):
            importlib.import_module(f"{self.home}.{module.name}")

    @property
    def foreign(self) -> dict[str, str]:
        """Members that imported modules added, with their modules. Entry points are not among them: every process finds those."""
        named = {name: module for name, module in self._modules.items() if ":" not in name and name not in _offered(self.group)}
        return {name: module for name, module in named.items() if module.split(".")[0] != "fedstill"}


def plugged_modules() -> list[str]:
    """The modules that added parts to any registry: another process must import them to know the same names."""
    found: dict[str, None] = {}
    for registry in Registry.everywhere:
        for name, module in registry.foreign.items():
            if module == "__main__":
                raise FedstillError(
                    f"{registry.kind} '{name}' is defined in the script that was started, which other processes cannot import: "
                    "put it into a module of its own, or set engine.workers = 0"
                )
            found[module] = None
    return list(found)


def import_plugged(modules: list[str]) -> None:
    """Import what :func:`plugged_modules` named."""
    for module in modules:
        importlib.import_module(module)


@cache
def _offered(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """What installed packages offer under ``group``; nothing is imported yet. An editable install may be listed twice."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, {})[point.value] = point
    return {name: tuple(points.values()) for name, points in found.items()}


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
