"""The quality of a generator's samples, as far as the server can measure it without data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedstill.data.samples import Samples
from fedstill.models.generator import Generator

__all__ = ["deviations", "effective_classes", "generator_quality"]

EACH = 16  # samples per class


def deviations(images: Tensor, labels: Tensor, classes: int) -> tuple[float, float]:
    """How much a pixel (0 to 1) of images in [-1, 1] varies within a class and between the classes' means, as root mean squares.
    A generator that makes one image per class has 0 within; one that ignores its label has 0 between.

    >>> x = torch.tensor([-1.0, 1.0, -1.0, 1.0]).view(4, 1, 1, 1)
    >>> deviations(x, torch.tensor([0, 0, 1, 1]), 2), deviations(x, torch.tensor([0, 1, 0, 1]), 2)
    ((0.5, 0.0), (0.0, 0.5))
    """
    x = (images.flatten(1).double() + 1) / 2
    groups = [x[labels == c] for c in range(classes) if bool((labels == c).any())]
    within = torch.stack([group.var(0, unbiased=False).mean() for group in groups]).mean().sqrt()
    between = torch.stack([group.mean(0) for group in groups]).var(0, unbiased=False).mean().sqrt()
    return float(within), float(between)


def effective_classes(said: Tensor) -> float:
    """The effective number of classes among predictions (n, classes): the exponential of the entropy of their mean.

    >>> effective_classes(torch.eye(4, dtype=torch.float64))
    4.0
    """
    mean = said.mean(0)
    return float((-(mean * mean.clamp_min(1e-12).log()).sum()).exp())


def generator_quality(
    generator: Generator, rng: torch.Generator, say: Callable[[Samples], Tensor] | None = None
) -> dict[str, float]:
    """``within`` and ``between`` (:func:`deviations`) of a generator's images. If ``say`` gives their class probabilities, also
    ``classes``, the effective number of classes among them, and for a conditional generator ``label_agreement``, the share of
    its samples that are predicted as the class they were generated for."""
    labels = torch.arange(generator.classes).repeat(EACH)
    generator.eval()
    with torch.no_grad():
        made, _ = generator.sample(len(labels), rng, labels)
    made = made.cpu()
    found: dict[str, float] = {}
    if say is not None:
        said = say(Samples(made)).cpu().double()
        found["classes"] = effective_classes(said)
        if generator.conditional:
            found["label_agreement"] = float((said.argmax(1) == labels).double().mean())
        else:
            labels = said.argmax(1)  # without labels, the classes are the predicted ones
    if generator.conditional or say is not None:
        within, between = deviations(made, labels, generator.classes)
        found = {"within": within, "between": between, **found}
    return {name: float(f"{value:.4g}") for name, value in found.items()}
