"""Where and how a network computes: its device, its precision, and whether it is compiled."""

from __future__ import annotations

import torch

from fedstill.config.tables import Engine
from fedstill.core.errors import FedstillError, first_line
from fedstill.models.compiled import compiled
from fedstill.models.network import Network

__all__ = ["placed"]

LOWER = {"bfloat16": torch.bfloat16}


def placed(network: Network, engine: Engine, device: torch.device) -> Network:
    """The network on ``device``, in the precision that the options name, compiled if they say so.

    >>> from fedstill.models import build
    >>> net = placed(build("mlp", classes=3, shape=(1, 4, 4)), Engine(precision="bfloat16"), torch.device("cpu"))
    >>> net.precision, next(net.parameters()).dtype
    (torch.bfloat16, torch.float32)
    """
    try:
        network = network.to(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch was built without it, or it is not there
        raise FedstillError(f"engine.device = '{engine.device}' cannot be used: {first_line(error)}") from error
    network.precision = LOWER.get(engine.precision)
    if network.precision is not None and not torch.amp.is_autocast_available(device.type):
        raise FedstillError(f"engine.precision = '{engine.precision}' is not possible on {device.type}")
    return compiled(network) if engine.compile else network
