"""Fused models may keep their ensemble: written beside the student, loaded like any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedstill.bundles.fuse import fuse
from fedstill.bundles.fuse.ensemble import chosen_weighting, weighting_of
from fedstill.bundles.fuse.options import FuseOptions
from fedstill.bundles.fuse.teachers import opened, team_of
from fedstill.bundles.loading import load
from fedstill.bundles.pack import pack
from fedstill.core.errors import FedstillError
from fedstill.data.loading import load_domain
from fedstill.fusion.ensemble import ensemble_table

SITE: dict[str, Any] = {"model": "mlp", "data": "embedded:mnist", "image_size": 16, "channels": 1, "epochs": 1}


def sites(tmp_path: Path) -> list[Path]:
    found = []
    for name, model in (("mnist", "mlp"), ("optdigits", "cnn-small")):
        made = pack(tmp_path / f"{name}.fed", model=model, data=f"embedded:{name}", image_size=16, channels=1, epochs=1)
        found.append(made.bundle.path)
    return found


@pytest.mark.parametrize("weighting", ["uniform", "projection"])
def test_what_is_kept_says_what_the_teachers_said(tmp_path: Path, weighting: str) -> None:
    bundles = sites(tmp_path)
    pool = load_domain("embedded:rotated", image_size=16, channels=1, limit=60).train
    fused = fuse(bundles, pool, weighting=weighting, keep_ensemble=True, distillation={"steps": 2})
    fused.save(tmp_path / "fused")
    found = load(tmp_path / "fused", model="ensemble")
    options = FuseOptions(weighting=weighting)
    team = team_of(opened(bundles, False), (1, 16, 16), options, torch.device("cpu"))
    wanted = ensemble_table(team.teachers, pool, weighting_of(team, options, torch.device("cpu")), space="probabilities").targets
    assert torch.allclose(found.predict(pool.x, probabilities=True), wanted, atol=1e-5)
    assert found.classes == fused.classes
    assert load(tmp_path / "fused").classes == fused.classes  # the student as ever
    plain = fuse(bundles, pool, distillation={"steps": 1})
    assert plain.settings["weighting"] == "projection"  # both describe their domains
    plain.save(tmp_path / "fused")
    assert not (tmp_path / "fused" / "ensemble").exists()  # of another fusion


def test_one_teacher_without_a_projection_means_equal_weights(tmp_path: Path) -> None:
    described, other = (
        pack(tmp_path / f"{len(describe)}.fed", describe=describe, **SITE).bundle for describe in (["projection"], [])
    )
    pool = load_domain("embedded:rotated", image_size=16, channels=1, limit=60).train
    found = [fuse(team, pool, distillation={"steps": 1}).settings["weighting"] for team in ([described], [described, other])]
    assert found == ["projection", "uniform"]
    assert chosen_weighting("auto", [described], statistics=True) == "uniform"
    assert chosen_weighting("vote", [described], statistics=False) == "vote"


def test_modules_of_ones_own_cannot_be_kept() -> None:
    with pytest.raises(FedstillError, match="cannot be kept"):
        fuse([nn.Linear(4, 3)], torch.randn(8, 4), student=nn.Linear(4, 3), keep_ensemble=True)
