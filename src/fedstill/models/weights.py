"""Pretrained weights from a file into a network."""

from __future__ import annotations

import pickle
import struct
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from fedstill.core.errors import FedstillError

from .files import read_state
from .network import Network

__all__ = ["load_weights"]

# what the readers raise on files of another kind: text, pictures, archives
UNREADABLE = (SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError, OSError, LookupError, TypeError, ValueError)


def load_weights(network: Network, path: str | Path, *, whole: bool = False) -> None:
    """Copy the tensors of a safetensors or PyTorch file into ``network``.

    The head may be of another size or absent, and then keeps its initial weights; the neck may be absent too. Any other
    difference is an error: a partly loaded backbone is worse than none. With ``whole`` nothing may be missing.
    """
    file, own = Path(path), network.state_dict()
    given = {network.own_name(key.removeprefix("module.")): value for key, value in _read(file).items()}
    if whole and given.get("head.weight") is not None and len(given["head.weight"]) != network.classes:
        outputs = len(given["head.weight"])
        raise FedstillError(f"weights '{file}' are for {outputs} classes, but {network.classes} are needed")
    if not whole and any(key.startswith("head.") and (key not in own or own[key].shape != given[key].shape) for key in given):
        given = {key: value for key, value in given.items() if not key.startswith("head.")}
    for key, value in given.items():
        if key not in own:
            raise FedstillError(f"weights '{file}': the network has no tensor '{key}'")
        if own[key].shape != value.shape:
            sizes = f"{tuple(value.shape)} in the file and {tuple(own[key].shape)} in the network"
            raise FedstillError(f"weights '{file}': '{key}' is {sizes}")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise FedstillError(f"weights '{file}': '{key}' has values that are not finite")
    for key in own:
        # Files written before PyTorch 0.4.1 have no batch counters.
        spare = not whole and key.startswith(("head.", "neck."))
        if key not in given and not spare and not key.endswith("num_batches_tracked"):
            raise FedstillError(f"weights '{file}': no tensor '{key}', which the network needs")
    network.load_state_dict(given, strict=False)


def _read(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise FedstillError(f"weights '{file}': no such file")
    try:
        if file.suffix == ".safetensors":
            return read_state(file)[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other pickle protocols: what matters is in the error
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (*UNREADABLE, AttributeError, struct.error) as error:
        hint = "; a pickle that could run code is never loaded: save model.state_dict() alone"
        pickled = isinstance(error, pickle.UnpicklingError)
        raise FedstillError(f"weights '{file}': not a readable file of tensors{hint if pickled else ''}") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise FedstillError(f"weights '{file}': not a dictionary of tensors")
    return state
