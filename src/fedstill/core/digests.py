"""Digests, by which damage to a file is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["digest"]


def digest(tensors: Mapping[str, Tensor], said: str = "") -> str:
    """A fingerprint of tensors and their metadata, in hexadecimal (SHA-256), whatever the order of the tensors.

    >>> one = {"a": torch.zeros(2), "b": torch.ones(1)}
    >>> digest(one) == digest(dict(reversed(one.items()))) != digest({**one, "b": torch.zeros(1)})
    True
    """
    mark = hashlib.sha256(said.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        mark.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():
            mark.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return mark.hexdigest()
