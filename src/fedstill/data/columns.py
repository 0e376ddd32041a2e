"""Columns of numbers and words as vectors: one plan for all domains, missing values filled, numbers standardised.

A number is one coordinate. A word is one of a list of categories that all domains share, with one coordinate per category. If any
domain lacks some numbers of a column, every domain has one more coordinate that marks missing values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.data.raw import Column
from fedstill.data.rows import MISSING, Plan, Rows, prepared
from fedstill.data.samples import Domain, Samples

__all__ = ["MOST_CATEGORIES", "columns_of", "described", "plan_of", "settled"]

MOST_CATEGORIES = 100


def columns_of(source: str, split: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of a split of `datasets`: float64 with NaN for numbers, objects with None for words."""
    import pyarrow  # slow

    lacking = [name for name in names if name not in split.column_names]
    if lacking:
        raise FedstillError(f"the test set of '{source}' lacks the column '{lacking[0]}'")
    table = split.select_columns(list(names)).with_format("arrow")[:]
    found: dict[str, np.ndarray] = {}
    for name in names:
        kind, values = table.schema.field(name).type, table[name]
        labels = getattr(split.features[name], "names", None)
        if labels is not None:
            found[name] = np.array([None if i is None or i < 0 else labels[i] for i in values.to_pylist()], dtype=object)
        elif pyarrow.types.is_boolean(kind) or pyarrow.types.is_null(kind):
            found[name] = np.array([np.nan if item is None else float(item) for item in values.to_pylist()])
        elif pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_decimal(kind):
            found[name] = values.cast(pyarrow.float64(), safe=False).to_numpy().astype(np.float64)
            if np.isinf(found[name]).any():
                row = int(np.flatnonzero(np.isinf(found[name]))[0])
                raise FedstillError(f"column '{name}' of '{source}' holds an infinite number in row {row}")
        elif "string" in str(kind) or pyarrow.types.is_dictionary(kind):
            found[name] = np.array([None if item in (None, "") else str(item) for item in values.to_pylist()], dtype=object)
        else:
            raise FedstillError(f"column '{name}' of '{source}' holds {kind}, neither numbers nor words: name it in data.ignore")
    return found


def described(source: str, splits: Sequence[Any], names: Sequence[str]) -> tuple[Column, ...]:
    """A description of each column, over all splits."""
    parts = [columns_of(source, split, names) for split in splits]
    return tuple(_described(name, np.concatenate([part[name] for part in parts])) for name in names)


def _described(name: str, values: np.ndarray) -> Column:
    missing = np.array([item is None for item in values]) if values.dtype == object else np.isnan(values)
    if missing.all():
        return Column(name, "empty", missing=True)
    if values.dtype != object:
        return Column(name, "number", missing=bool(missing.any()))
    words = sorted(set(values[~missing].tolist()))
    return Column(name, "category", tuple(words[: MOST_CATEGORIES + 1]), bool(missing.any()))


def plan_of(held: Mapping[str, Sequence[Column]]) -> Plan:
    """One plan for domains that hold these columns, in the order of the first domain.

    >>> plan_of({"a": [Column("age", "number")], "b": [Column("age", "number", missing=True)]}).names
    ('age', 'age missing')
    """
    first = next(iter(held))
    columns = {name: {column.name: column for column in own} for name, own in held.items()}
    order = list(dict.fromkeys(column.name for own in held.values() for column in own))
    for name in held:
        for wanted in order:
            if wanted not in columns[name]:
                other = next(domain for domain in held if wanted in columns[domain])
                raise FedstillError(
                    f"domain '{name}' lacks the column '{wanted}' that '{other}' has (data.ignore leaves a column out everywhere)"
                )
    numbers: list[str] = []
    absent: list[int] = []
    categories: list[tuple[str, tuple[str, ...]]] = []
    for wanted in (column.name for column in held[first]):
        own = {name: columns[name][wanted] for name in held}
        words, numeric = ([name for name, c in own.items() if c.kind == kind] for kind in ("category", "number"))
        if words and numeric:
            some = own[words[0]].values[0]
            raise FedstillError(f"column '{wanted}' holds numbers in '{numeric[0]}' and words in '{words[0]}', such as '{some}'")
        missing = any(column.missing for column in own.values())
        if words:
            categories.append((wanted, _categories(wanted, own, missing)))
        else:
            absent += [len(numbers)] if missing else []
            numbers.append(wanted)
    return Plan(tuple(numbers), tuple(absent), tuple(categories))


def _categories(name: str, own: Mapping[str, Column], missing: bool) -> tuple[str, ...]:
    words = sorted({word for column in own.values() for word in column.values})
    if len(words) > MOST_CATEGORIES:
        raise FedstillError(
            f"column '{name}' has more than {MOST_CATEGORIES} different words, such as '{words[0]}' and '{words[1]}': too many "
            f"for categories; leave it out with data.ignore = ['{name}'], or set data.kind = 'text' if it is what is to be read"
        )
    return (*words, MISSING) if missing else tuple(words)


def settled(
    domains: Mapping[str, Domain],
    numbers: int,
    missing: Sequence[int],
    standardise: str,
    measured: Collection[str],
    plan: Plan | None = None,
) -> dict[str, Domain]:
    """Domains of vectors whose first ``numbers`` coordinates are numbers, ready for a network: float32, standardised, filled.

    A missing number becomes the mean. Means and variances that are ``shared`` are computed from the training samples of the
    domains in ``measured``; otherwise each domain has its own.

    >>> x = torch.tensor([[1.0], [3.0], [float("nan")]])
    >>> one = Domain("a", Samples(x), Samples(x[:1]), ())
    >>> settled({"a": one}, 1, [0], "shared", ["a"])["a"].train.x.tolist()
    [[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    shared = [domains[name].train.x[:, :numbers] for name in measured] if standardise == "shared" else None
    own = plan or Plan(tuple(str(i) for i in range(numbers)), tuple(missing))
    found = {}
    for name, domain in domains.items():
        mean, deviation = _moments(shared or [domain.train.x[:, :numbers]])

        def ready(samples: Samples, mean: Tensor = mean, deviation: Tensor = deviation) -> Samples:
            return Samples(prepared(samples.x, list(missing), mean, deviation, standardise != "none"), samples.y)

        common = standardise != "local" and (standardise == "shared" or not missing)
        moments = (tuple(mean.tolist()), tuple(deviation.tolist())) if common else ((), ())
        rows = Rows(own, standardise, *moments, named=plan is not None)
        found[name] = replace(domain, train=ready(domain.train), test=ready(domain.test), standardised=standardise, rows=rows)
    return found


def _moments(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each coordinate's present values, from counts, sums and sums of squares."""
    held = [part.double() for part in parts]
    count = sum((~part.isnan()).sum(0) for part in held)
    assert isinstance(count, Tensor)
    mean = torch.stack([part.nansum(0) for part in held]).sum(0) / count.clamp_min(1)
    variance = torch.stack([(part - mean).square().nansum(0) for part in held]).sum(0) / count.clamp_min(1)
    deviation = variance.sqrt()
    # a constant coordinate is not scaled; rounding alone may make a constant differ from its mean
    return mean, torch.where(deviation > 1e-9 * mean.abs(), deviation, torch.ones_like(deviation))
