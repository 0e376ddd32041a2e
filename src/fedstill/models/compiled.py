"""Networks compiled by ``torch.compile``, which go on uncompiled if that fails."""

from __future__ import annotations

import warnings
from typing import Any

from fedstill.core.errors import first_line
from fedstill.models.network import Network

__all__ = ["compiled"]

BACKEND = "inductor"


def compiled(network: Network) -> Network:
    """The same network, whose calls are compiled from the first one on. A failure is one warning, and calls are made as before.

    Only whole calls are compiled: terms of an objective that look at the features call the parts by themselves.
    """
    from torch._dynamo.exc import TorchDynamoException  # slow: torch's compiler takes as long to import as torch

    def give_up(error: Exception) -> None:
        network._compiled_call_impl = None
        warnings.warn(f"engine.compile: {first_line(error)}; going on without", stacklevel=3)

    try:
        network.compile(backend=BACKEND)
    except TorchDynamoException as error:
        give_up(error)
        return network
    call = network._compiled_call_impl
    assert call is not None

    def careful(*args: Any, **named: Any) -> Any:
        try:
            return call(*args, **named)
        except TorchDynamoException as error:
            give_up(error)
            return network(*args, **named)

    network._compiled_call_impl = careful
    return network
