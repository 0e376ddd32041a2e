"""Rows of numbers and words as a network's inputs: the same arithmetic when a model is trained and when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import FedstillError

__all__ = ["MISSING", "Plan", "Rows", "encoded", "prepared"]

MISSING = "(missing)"


@dataclass(frozen=True)
class Plan:
    """The meaning of each coordinate, the same for every domain: the numbers, those that need a second coordinate for missing
    values, and the categories of each column of words."""

    numbers: tuple[str, ...]
    missing: tuple[int, ...] = ()  # positions among the numbers
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each coordinate.

        >>> Plan(("age", "dose"), (1,), (("sex", ("f", "m")),)).names
        ('age', 'dose', 'dose missing', 'sex = f', 'sex = m')
        """
        absent = (f"{self.numbers[i]} missing" for i in self.missing)
        return (*self.numbers, *absent, *(f"{name} = {word}" for name, words in self.categories for word in words))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table."""
        return (*self.numbers, *(name for name, _ in self.categories))


def encoded(columns: Mapping[str, np.ndarray], plan: Plan) -> Tensor:
    """Rows as float64: the numbers, NaN where one is missing, then a 1 for each row's category among the zeros of the others.

    >>> held = {"age": np.array([30.0, np.nan]), "sex": np.array(["f", "m"], dtype=object)}
    >>> encoded(held, Plan(("age",), (), (("sex", ("f", "m")),)))
    tensor([[30.,  1.,  0.],
            [nan,  0.,  1.]], dtype=torch.float64)
    """
    parts = [columns[name].astype(np.float64)[:, None] for name in plan.numbers]
    for name, words in plan.categories:
        place = {word: i for i, word in enumerate(words)}
        hot = np.zeros((len(columns[name]), len(words)))
        own = [MISSING if word is None or word != word else word for word in columns[name].tolist()]
        odd = next((word for word in own if word not in place), None)
        if odd is not None:
            raise FedstillError(f"column '{name}' holds '{odd}', which is none of its categories: {', '.join(words[:10])}")
        hot[np.arange(len(hot)), [place[word] for word in own]] = 1.0
        parts.append(hot)
    return torch.from_numpy(np.concatenate(parts, axis=1))


def prepared(x: Tensor, missing: Tensor | list[int], mean: Tensor, deviation: Tensor, standardise: bool) -> Tensor:
    """Rows whose first coordinates are numbers, as many as there are means: filled, standardised, in float32.

    >>> prepared(torch.tensor([[1.0], [float("nan")]]), [0], torch.tensor([3.0]), torch.tensor([2.0]), True).tolist()
    [[-1.0, 0.0], [0.0, 1.0]]
    """
    own, rest = x[:, : len(mean)], x[:, len(mean) :]
    absent = own.isnan()
    if bool(absent.any()):
        own = torch.where(absent, mean.to(own.dtype), own)
    if standardise:
        own = (own.double() - mean) / deviation
    parts = [part.float() for part in (own, absent[:, missing], rest) if part.shape[1]]
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class Rows:
    """How rows became inputs in training: the plan of their columns, and the means and deviations used to standardise them.

    ``mean`` is empty if every domain had its own: then raw rows cannot be made into inputs elsewhere.

    >>> rows = Rows(Plan(("age",)), "shared", (40.0,), (10.0,))
    >>> Rows.from_json(rows.to_json()) == rows, rows.inputs({"age": [30, 60]}).tolist()
    (True, [[-1.0], [2.0]])
    """

    plan: Plan
    standardise: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    named: bool = True  # a table's columns have names, an array's have none

    @property
    def width(self) -> int:
        """The numbers of an input."""
        return len(self.plan.names)

    def inputs(self, given: Any) -> Tensor:
        """Rows as inputs of the network: from a table (columns by name, rows as dictionaries, a data frame) or an array whose
        columns are the numbers, in order."""
        if not self.mean:
            raise FedstillError(
                "in training every domain had means and deviations of its own: "
                "standardise these rows by their own, fill missing values, and pass standardised = True"
            )
        x = encoded(_columns(given, self.plan), self.plan) if _is_table(given) else self._array(given)
        mean, deviation = (torch.tensor(value, dtype=torch.float64) for value in (self.mean, self.std))
        return prepared(x, list(self.plan.missing), mean, deviation, self.standardise != "none")

    def _array(self, given: Any) -> Tensor:
        try:
            x = torch.as_tensor(np.asarray(given) if not isinstance(given, Tensor) else given.cpu())
        except (TypeError, ValueError):
            x = torch.empty(0)
        x = x[None] if x.ndim == 1 and len(x) else x
        if self.plan.categories:
            names = ", ".join(name for name, _ in self.plan.categories)
            raise FedstillError(f"the model takes words too ({names}): give rows as dictionaries, a data frame or a file")
        if x.ndim != 2 or x.shape[1] != len(self.plan.numbers):
            what = f" ({', '.join(self.plan.numbers[:10])})" if self.named else ""
            raise FedstillError(f"the model takes rows of {len(self.plan.numbers)} numbers{what}, not {tuple(x.shape)}")
        return x if x.is_floating_point() else x.double()

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        plan = self.plan
        categories = [[name, list(words)] for name, words in plan.categories]
        return {
            "numbers": list(plan.numbers),
            "missing": list(plan.missing),
            "categories": categories,
            "standardise": self.standardise,
            "mean": list(self.mean),
            "std": list(self.std),
            "named": self.named,
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Rows:
        """Read what :meth:`to_json` wrote."""
        try:
            categories = tuple((str(name), tuple(map(str, words))) for name, words in said["categories"])
            plan = Plan(tuple(map(str, said["numbers"])), tuple(map(int, said["missing"])), categories)
            mean, std = (tuple(map(float, said[key])) for key in ("mean", "std"))
            sound = len(mean) == len(std) and len(mean) in (0, len(plan.numbers)) and all(value > 0 for value in std)
            if sound and all(0 <= place < len(plan.numbers) for place in plan.missing):
                return cls(plan, str(said["standardise"]), mean, std, bool(said["named"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FedstillError(f"the preprocessing of its rows cannot be read: {error}") from None
        raise FedstillError("the preprocessing of its rows cannot be read")


def _is_table(given: Any) -> bool:
    """Whether columns have names: a mapping, a data frame, or a list of dictionaries."""
    listed = isinstance(given, list | tuple) and len(given) > 0 and isinstance(given[0], Mapping)
    return isinstance(given, Mapping) or hasattr(given, "columns") or listed


def _columns(given: Any, plan: Plan) -> dict[str, np.ndarray]:
    """The columns that the plan needs, as :func:`encoded` takes them."""
    if isinstance(given, list | tuple):
        given = {name: [row[name] for row in given] for name in plan.columns if all(name in row for row in given)}
    lacking = [name for name in plan.columns if name not in given]
    if lacking:
        raise FedstillError(f"there is no column '{lacking[0]}', which the model needs (it takes {', '.join(plan.columns[:10])})")
    found = {}
    for name in plan.columns:
        values = given[name]
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        missing = [value is None or value != value or value == "" for value in values]
        if name in plan.numbers:
            try:
                found[name] = np.array(
                    [np.nan if lost else float(value) for value, lost in zip(values, missing, strict=True)], dtype=np.float64
                )
            except (TypeError, ValueError) as error:
                raise FedstillError(f"column '{name}' holds numbers, but some of these values are not: {error}") from None
        else:
            words = [None if lost else _word(value) for value, lost in zip(values, missing, strict=True)]
            found[name] = np.array(words, dtype=object)
    return found


def _word(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
