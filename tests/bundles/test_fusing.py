"""What fuse refuses, and what it warns of: a student that is no model is never handed over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from fedstill.bundles.bundle import About, Architecture, Subspace, write_bundle
from fedstill.bundles.fuse import fuse
from fedstill.bundles.reference import load_reference, reference_id
from fedstill.core.errors import FedstillError
from fedstill.models import build

SHAPE = (1, 8, 8)


def linear(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, 3)


def spoilt(value: float) -> nn.Module:
    network = linear(1)
    with torch.no_grad():
        network.bias[0] = value
    return network


@pytest.mark.parametrize("scale", [1.0, 1e20])  # values that overflow in the student's words, and in its weights
@pytest.mark.parametrize("steps", [1, 5])  # the loss before the first step is still finite
def test_a_student_that_diverged_is_refused(steps: int, scale: float) -> None:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    wild = {"steps": steps, "clip": 0, "optimizer": {"name": "sgd", "lr": 1e30}}
    with pytest.raises(FedstillError, match=f"distillation diverged .* after {steps} steps") as caught:
        fuse([linear(1)], scale * torch.randn(64, 4), student, distillation=wild)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_teacher_that_is_not_finite_is_refused_by_name(value: float) -> None:
    with pytest.raises(FedstillError, match="site b predicts values that are not finite"):
        fuse({"site a": linear(1), "site b": spoilt(value)}, torch.randn(64, 4), linear(2), distillation={"steps": 2})


@pytest.mark.parametrize("scale", [{"mean": torch.nan}, {"std": torch.inf}, {"std": [0.5, 0.0, 0.5]}])
def test_a_normalisation_that_is_none_is_refused(scale: dict) -> None:
    with pytest.raises(FedstillError, match="finite"):
        fuse([linear(1)], torch.randn(64, 4), linear(2), **scale)


def site(folder: Path, name: str, classes: list[str], width: int | None = None) -> Path:
    """An untrained bundle; with ``width`` it describes its domain by a projection of so many features."""
    about = About(name=name, model=Architecture(name="mlp", options={"hidden": [4]}), classes=classes, shape=list(SHAPE))
    parts = {"model": build("mlp", classes=len(classes), shape=SHAPE, hidden=[4], seed=0).state_dict()}
    if width is not None:
        said: Subspace = reference_id("cnn-small", load_reference("cnn-small"))
        about, parts["projection"] = about.model_copy(update={"subspace": said}), {"matrix": torch.eye(width)}
    return write_bundle(folder / f"{name}.fed", about, **parts).path


def pool() -> torch.Tensor:
    return torch.randint(0, 256, (8, *SHAPE), dtype=torch.uint8)


def test_a_projection_of_other_features_is_refused(tmp_path: Path) -> None:
    paths = [site(tmp_path, "a", ["cat", "dog"], 64), site(tmp_path, "b", ["cat", "dog"], 3)]
    with pytest.raises(FedstillError, match=r"b: the projection does not fit .* \(3, 3\), expected \(64, 64\)"):
        fuse(paths, pool(), weighting="projection", distillation={"steps": 1})


def test_teachers_that_share_no_class_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small, large, more = (
        site(tmp_path, name, classes) for name, classes in (("a", ["cat", "dog"]), ("b", ["Cat", "Dog"]), ("c", ["dog", "owl"]))
    )
    with caplog.at_level(logging.WARNING, "fedstill"):
        fuse([small, large], pool(), distillation={"steps": 1})
        assert [r.getMessage() for r in caplog.records] == [
            "warning: teachers that share no class with any other: a (cat, dog); b (Cat, Dog); are the class names spelled the "
            "same?"
        ]
        caplog.clear()
        fuse([small, more], pool(), distillation={"steps": 1})
        fuse([small], pool(), distillation={"steps": 1})
        assert not caplog.records
        fuse([small, large, more], pool(), distillation={"steps": 1})
        assert "other: b (Cat, Dog); are" in caplog.text
