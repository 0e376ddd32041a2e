"""False sources among honest ones: recognised by their weights and by what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstill.core.options import laid_over
from fedstill.fusion.ensemble import SpooledLogits
from fedstill.fusion.outliers import median_scores, near, sketch
from fedstill.reproduce.poisoning import setting
from fedstill.run.configuration import parse
from fedstill.run.loop import run


def test_a_sketch_is_linear_and_keeps_distances():
    rng = torch.Generator().manual_seed(0)
    one, other = torch.randn(5, 4000, generator=rng), torch.randn(5, 4000, generator=rng)
    torch.testing.assert_close(sketch([one + 2 * other]), sketch([one]) + 2 * sketch([other]), atol=1e-4, rtol=1e-4)
    assert abs(float((sketch([one]) - sketch([other])).norm() / (one - other).norm()) - 1) < 0.05
    assert len(sketch([torch.ones(3)])) == len(sketch([torch.ones(9000)]))  # whatever the size of the model


def test_who_is_far_by_hand():
    # the median is 1; distances 0, 0.5, 0.5, 1 and 3 have median 0.5: twice that is near enough, more is not
    points = torch.tensor([[1.0], [0.5], [1.5], [2.0], [4.0]])
    assert near(points, 2.0).tolist() == [True, True, True, True, False]
    assert near(points, 6.5).all()
    assert near(torch.tensor([[0.0], [0.0], [9.0]]), 2.0).all()  # of three nobody can say who is odd


def test_scores_are_the_share_of_medians():
    logits = torch.tensor([[[1.0, 5.0]], [[2.0, 4.0]], [[9.0, 0.0]]])  # medians: 2 is the second's, 4 the second's
    spooled = SpooledLogits(np.asarray(logits), torch.device("cpu"))  # type: ignore[arg-type]
    assert median_scores(spooled).tolist() == [0.0, 1.0, 0.0]


def test_mirrored_updates_are_withstood(tmp_path: Path):
    mirrored = {"poison": {"kind": "sign-flip", "scale": 3.0, "fraction": 0.2}}

    def accuracy(name: str, data: dict[str, Any], **options: Any) -> float:
        changes = {"rounds": 3, "engine": {"threads": 1}, "data": data, "algorithm": {"name": "kdcl", **options}}
        done = run(parse(laid_over(setting("small"), changes)), tmp_path / name)
        left.append(sum(len(line.get("outliers", [])) for line in done.history))
        return float(done.history[-1]["accuracy"])

    left: list[int] = []
    honest = accuracy("honest", {}, outliers={})
    assert accuracy("guarded", mirrored, outliers={}) > honest - 0.1
    assert accuracy("plain", mirrored) < honest - 0.1
    assert left == [0, 6, 0]  # the two liars in each of three rounds, and nobody else
