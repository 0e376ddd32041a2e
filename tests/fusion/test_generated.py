"""The quality of what a generator makes, as the server sees it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedstill.data.samples import Samples
from fedstill.fusion.generated import generator_quality
from fedstill.models.generator import Generator


class Painter(Generator):
    """Grey images: a share of the label's, and of the noise's."""

    def __init__(self, label: float, noise: float):
        super().__init__(2, (1, 2, 2), 1)
        self.weights = torch.nn.Parameter(torch.tensor([label, noise]))

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        assert y is not None
        grey = self.weights[0] * (2.0 * y - 1) + self.weights[1] * z[:, 0].sign()
        return grey[:, None, None, None].expand(-1, 1, 2, 2)


def seen(samples: Samples) -> Tensor:
    """Light images are of class 1."""
    light = (samples.x.flatten(1).mean(1) > 0).long()
    return torch.nn.functional.one_hot(light, 2).float()


def test_quality_by_hand():
    rng = torch.Generator().manual_seed(0)
    # one image a class, -1 or 1: pixels 0 and 1, nothing within, half between
    assert generator_quality(Painter(1.0, 0.0), rng, seen) == {
        "within": 0.0,
        "between": 0.5,
        "classes": 2.0,
        "label_agreement": 1.0,
    }
    # the label is not looked at: all is within, and it is right as often as not
    blind = generator_quality(Painter(0.0, 1.0), rng, seen)
    assert blind["within"] == pytest.approx(0.5, abs=0.05)
    assert blind["between"] < 0.15
    assert 0.2 < blind["label_agreement"] < 0.8
    # everything is taken for one class
    assert generator_quality(Painter(0.0, 0.0), rng, seen)["classes"] == 1.0


def test_without_an_ensemble_only_the_images_speak():
    assert set(generator_quality(Painter(1.0, 0.0), torch.Generator().manual_seed(0))) == {"within", "between"}
