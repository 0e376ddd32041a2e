"""The folder of a fused model: its weights, the facts in ``fused.json``, and a model card."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from pydantic import ValidationError

from fedstill.bundles.bundle import About, build_network
from fedstill.core.digests import digest
from fedstill.core.errors import FedstillError, first_line
from fedstill.core.message import State
from fedstill.models.network import Network

__all__ = ["FACTS", "WEIGHTS", "FusedFolder", "check_target", "read_fused"]

WEIGHTS, FACTS, CARD, ONNX = "model.safetensors", "fused.json", "MODEL_CARD.md", "model.onnx"


@dataclass(frozen=True)
class FusedFolder:
    """A fused model, as read from its folder."""

    folder: Path
    about: About
    facts: dict[str, Any]

    @property
    def digest(self) -> str:
        """The fingerprint of its weights."""
        return str(self.facts["digest"])

    def state(self) -> State:
        """Its weights."""
        return safetensors.torch.load_file(self.folder / WEIGHTS)

    def network(self) -> Network:
        """The network, ready to predict images of any size."""
        return build_network(self.about, self.state(), str(self.folder))


def read_fused(folder: str | Path) -> FusedFolder:
    """Open a folder that ``fedstill fuse`` wrote and check that its weights are unchanged."""
    folder = Path(folder)
    facts_file, weights_file = folder / FACTS, folder / WEIGHTS
    if not facts_file.is_file() or not weights_file.is_file():
        raise FedstillError(f"{folder} is not the folder of a fused model: it has no {FACTS} and {WEIGHTS}")
    try:
        facts = json.loads(facts_file.read_text())
        if facts["about"] is None:
            raise FedstillError(f"{folder}: the student was a module from Python, which cannot be rebuilt by name")
        about = About.model_validate(facts["about"])
        fused = FusedFolder(folder, about, facts)
        if digest(fused.state()) != facts["digest"]:
            raise FedstillError(f"{weights_file} was changed or damaged after fusing: its digest does not match")
    except (ValueError, KeyError, TypeError, ValidationError, OSError, safetensors.SafetensorError) as error:
        raise FedstillError(f"{folder} is not a complete fused model: {first_line(error)}") from error
    return fused


def check_target(folder: Path) -> None:
    """Refuse to write into a folder that holds something else."""
    if folder.is_file():
        raise FedstillError(f"{folder} is a file; give a folder to write to")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FACTS).exists():
        raise FedstillError(f"{folder} holds other files; give a new folder to write to")
