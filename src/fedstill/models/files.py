"""Files of weights as fedstill writes them: safetensors with a description of the network and a digest of both."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from fedstill.core.digests import digest
from fedstill.core.errors import FedstillError
from fedstill.core.message import State

__all__ = ["read_state", "state_bytes"]

log = logging.getLogger("fedstill")
KEY = "fedstill"


def state_bytes(state: State, about: Mapping[str, Any]) -> bytes:
    """The content of a file of weights. Equal weights with equal metadata give equal bytes.

    >>> import tempfile, torch
    >>> path = Path(tempfile.mkdtemp()) / "a.safetensors"
    >>> _ = path.write_bytes(state_bytes({"w": torch.ones(2)}, {"classes": ["cat", "dog"]}))
    >>> state, about = read_state(path)
    >>> state["w"].tolist(), about["classes"]
    ([1.0, 1.0], ['cat', 'dog'])
    """
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    said = json.dumps(dict(about), sort_keys=True)
    # one entry: safetensors writes several in no fixed order, and equal models should be equal files
    return safetensors.torch.save(plain, {KEY: json.dumps({**about, "digest": digest(plain, said)}, sort_keys=True)})


def read_state(path: str | Path) -> tuple[State, dict[str, Any]]:
    """The tensors of a safetensors file and its description. A file that was changed after it was written is refused; one with a
    description but no digest is accepted with a warning."""
    with safetensors.safe_open(path, framework="pt") as file:
        said = file.metadata() or {}
        state: State = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    about = _about(said, path)
    mark = about.pop("digest", None)
    whole = json.dumps(about, sort_keys=True) if KEY in said else ""
    if mark is None:
        if said.keys() - {"format"}:
            log.warning("warning: %s has no digest, like files of older versions: it cannot be checked for damage", path)
    elif digest(state, whole) != mark:
        raise FedstillError(f"{path} was changed or damaged after it was written: its digest does not match")
    return state, about


def _about(said: Mapping[str, str], path: str | Path) -> dict[str, Any]:
    """The file's description, including the digest."""
    about: dict[str, Any] = _table(said[KEY]) if KEY in said else dict(said)
    # the file holds a digest, but not under its name: the name or the description around it is damaged
    stray = any(re.search("[0-9a-f]{30}", text) for text in said.values()) and "digest" not in about
    if stray or (KEY in said and not about):
        raise FedstillError(f"{path} was changed or damaged after it was written: its description cannot be read")
    return about


def _table(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
