"""The confusion matrix, and the figures that follow from it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Confusion", "confused", "confusion"]


@dataclass(frozen=True)
class Confusion:
    """How many samples of each class (row) were predicted as which class (column).

    >>> found = confusion(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]), ["cat", "dog"])
    >>> found.matrix.tolist(), found.accuracy
    ([[1, 1], [0, 2]], 0.75)
    >>> found.recall, found.precision
    ([0.5, 1.0], [1.0, 0.6666666666666666])
    """

    classes: tuple[str, ...]
    matrix: Tensor  # int64, (truth, predicted)

    @property
    def samples(self) -> int:
        """How many samples there were."""
        return int(self.matrix.sum())

    @property
    def accuracy(self) -> float | None:
        """The share of correct predictions; None without samples."""
        return int(self.matrix.trace()) / self.samples if self.samples else None

    @property
    def support(self) -> list[int]:
        """How many samples there were of each class."""
        return [int(n) for n in self.matrix.sum(1)]

    @property
    def recall(self) -> list[float | None]:
        """The share of each class's samples that was predicted as that class; None for a class without samples."""
        return _shares(self.matrix.diagonal(), self.matrix.sum(1))

    @property
    def precision(self) -> list[float | None]:
        """The share of the predictions of each class that was correct; None for a class that was never predicted."""
        return _shares(self.matrix.diagonal(), self.matrix.sum(0))

    @property
    def f1(self) -> list[float | None]:
        """The harmonic mean of precision and recall, for each class that has samples."""
        both = _shares(2 * self.matrix.diagonal(), self.matrix.sum(0) + self.matrix.sum(1))
        return [value if n else None for value, n in zip(both, self.support, strict=True)]

    @property
    def worst(self) -> list[tuple[str, str, int]]:
        """The mistakes, as true class, predicted class and count, most frequent first."""
        found = [(self.classes[i], self.classes[j], int(self.matrix[i, j])) for i, j in self.matrix.nonzero().tolist() if i != j]
        return sorted(found, key=lambda one: -one[2])

    def to_json(self) -> dict[str, Any]:
        """All figures as plain values."""
        columns = zip(self.classes, self.support, self.precision, self.recall, self.f1, strict=True)
        return {
            "accuracy": self.accuracy,
            "samples": self.samples,
            "classes": {
                name: {"samples": n, "precision": precision, "recall": recall, "f1": f1}
                for name, n, precision, recall, f1 in columns
            },
            "confusion": {"rows": "truth", "columns": "predicted", "matrix": self.matrix.tolist()},
        }

    def rows(self) -> list[list[str]]:
        """A line for each class as text: name, samples, precision, recall and F1 in per cent."""
        columns = zip(self.classes, self.support, self.precision, self.recall, self.f1, strict=True)
        return [[name, f"{n:,}", *map(_per_cent, figures)] for name, n, *figures in columns]

    def __str__(self) -> str:
        head = ["class", "samples", "precision %", "recall %", "F1 %"]
        rows = [head, *self.rows()]
        wide = [max(len(row[place]) for row in rows) for place in range(len(head))]
        lines = ["  ".join([name.ljust(wide[0]), *map(str.rjust, figures, wide[1:])]) for name, *figures in rows]
        return "\n".join([f"accuracy {_per_cent(self.accuracy)} % of {self.samples:,} samples", *lines])

    def _repr_html_(self) -> str:
        """As notebooks show it."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("truth \\ predicted", *self.classes))
        body = "".join(
            f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{n}</td>' for n in row)}</tr>"
            for name, row in zip(self.classes, self.matrix.tolist(), strict=True)
        )
        return f"<p>accuracy {_per_cent(self.accuracy)} %</p><table><tr>{head}</tr>{body}</table>"


def confused(truth: Tensor, said: Tensor, classes: int) -> Tensor:
    """How many samples of each class (row) were predicted as each class (column).

    >>> confused(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return torch.bincount(truth.long().cpu() * classes + said.long().cpu(), minlength=classes**2).reshape(classes, classes)


def confusion(truth: Tensor, said: Tensor, classes: Sequence[str]) -> Confusion:
    """The confusion of labels and predictions, both as indices into ``classes``."""
    return Confusion(tuple(classes), confused(truth, said, len(classes)))


def _shares(part: Tensor, whole: Tensor) -> list[float | None]:
    return [int(a) / int(b) if int(b) else None for a, b in zip(part, whole, strict=True)]


def _per_cent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
