"""Which models go with which inputs."""

from __future__ import annotations

from fedstill.core.errors import FedstillError
from fedstill.models import MODELS
from fedstill.models.text import is_encoder

__all__ = ["USUAL", "check_model"]

USUAL = {"image": "cnn", "text": "text-small", "vector": "mlp"}  # the network where none is named
PLURAL = {"image": "images", "text": "text", "vector": "vectors"}


def check_model(name: str, kind: str) -> None:
    """Refuse a built-in model that is for other kinds of inputs; models from elsewhere are not checked here.

    >>> check_model("mlp", "text")
    Traceback (most recent call last):
    fedstill.core.errors.FedstillError: model 'mlp' is for images and vectors, and the data is text: leave model.name out, or \
set it to 'text-small'
    """
    if not is_encoder(name) and (name not in MODELS or MODELS.get(name).foreign):
        return
    reads = name == USUAL["text"] or is_encoder(name)
    takes = ("text",) if reads else ("image", "vector") if name == USUAL["vector"] else ("image",)
    if kind not in takes:
        wanted = " and ".join(PLURAL[one] for one in takes)
        raise FedstillError(
            f"model '{name}' is for {wanted}, and the data is {PLURAL[kind]}: leave model.name out, or set it to '{USUAL[kind]}'"
        )
