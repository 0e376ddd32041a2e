"""A trained network ready for use, with the names of its classes and its preprocessing of images, texts and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.data.inputs import Inputs, Preprocessing
from fedstill.data.samples import Samples
from fedstill.models.confusion import Confusion, confusion
from fedstill.models.network import Network
from fedstill.models.predict import BATCH, predict_logits

__all__ = ["Classifier"]


@dataclass(frozen=True)
class Classifier:
    """What :func:`fedstill.load` and a run return.

    >>> from fedstill.models import build
    >>> net = build("mlp", classes=2, shape=(1, 4, 4), seed=0).eval()
    >>> model = Classifier(net, ("cat", "dog"), Preprocessing((1, 4, 4)))
    >>> images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    >>> len(model.predict(images)), set(model.predict(images)) <= {"cat", "dog"}, model.predict(images, probabilities=True).shape
    (3, True, torch.Size([3, 2]))
    """

    network: Network  # in eval mode
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    about: Mapping[str, Any] = field(default_factory=dict, repr=False)  # where it comes from, and how good it was

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width), or the length of a row."""
        return self.preprocessing.shape

    @overload
    def predict(
        self,
        inputs: Inputs,
        *,
        probabilities: Literal[False] = False,
        standardised: bool = False,
        batch_size: int = BATCH,
        skipped: dict[int, str] | None = None,
    ) -> list[str]: ...

    @overload
    def predict(
        self,
        inputs: Inputs,
        *,
        probabilities: Literal[True],
        standardised: bool = False,
        batch_size: int = BATCH,
        skipped: dict[int, str] | None = None,
    ) -> Tensor: ...

    def predict(
        self,
        inputs: Inputs,
        *,
        probabilities: bool = False,
        standardised: bool = False,
        batch_size: int = BATCH,
        skipped: dict[int, str] | None = None,
    ) -> list[str] | Tensor:
        """The class of each input, or with ``probabilities`` a tensor (n, classes) in the order of ``classes``.

        Images are paths (a folder stands for all images in it), PIL images, or uint8 arrays (n, channels, height, width) or (n,
        height, width, channels) of any size; they are turned upright, resized and normalised as in training. Float images are
        inputs as the network takes them, normalised already. Texts are strings. Rows are an array (n, columns), dictionaries, a
        data frame or the path of a table; they are standardised as in training, unless they are ``standardised`` already.

        An image that cannot be decoded is an error. If a dictionary ``skipped`` is given, such images go there, position -> name,
        and have no prediction.
        """
        shares = self.logits(inputs, standardised=standardised, batch_size=batch_size, skipped=skipped).softmax(1)
        return shares if probabilities else [self.classes[i] for i in shares.argmax(1).tolist()]

    def logits(
        self, inputs: Inputs, *, standardised: bool = False, batch_size: int = BATCH, skipped: dict[int, str] | None = None
    ) -> Tensor:
        """The network's outputs (n, classes), on the CPU."""
        batches = self.preprocessing.batches(inputs, batch_size, standardised=standardised, skipped=skipped)
        parts = [predict_logits(self.network, Samples(x)).cpu() for x in batches]
        return torch.cat(parts) if parts else torch.empty(0, len(self.classes))

    def evaluate(
        self, data: str | Path | Samples, *, label: str | None = None, unreadable: Literal["error", "skip"] = "error"
    ) -> Confusion:
        """The confusion matrix on labelled data. ``data`` is anything that ``data.domains`` may name, or samples whose labels are
        indices into ``classes``; ``label`` is the column of a table that holds the classes. Images that cannot be decoded are an
        error, or left out with a warning (``unreadable = "skip"``)."""
        samples = data if isinstance(data, Samples) else self.preprocessing.labelled(data, self.classes, label, unreadable)
        if samples.y is None:
            raise FedstillError("there are no labels to compare with")
        return confusion(samples.y, predict_logits(self.network, samples).argmax(1), self.classes)
