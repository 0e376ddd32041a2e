"""FedProx: FedAvg with clients that stay near the global model.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. The local objective becomes

    before:  F_k(w)
    after:   F_k(w) + mu/2 * ||w - w_global||^2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from fedstill.algorithm import Client, algorithm
from fedstill.algorithms.fedavg import FedAvg, FedAvgOptions
from fedstill.core.message import Message
from fedstill.local.terms import proximal
from fedstill.training.fit import Term

__all__ = ["FedProx"]


class FedProxOptions(FedAvgOptions):
    """The proximal term."""

    mu: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the proximal term. FedDF searches 0.001, 0.01, 0.1 and 1; FedD3A uses 0.1, FedFTG 1e-4."""


@algorithm
class FedProx(FedAvg[FedProxOptions]):
    """FedAvg with a proximal term."""

    name = "fedprox"
    title = "FedProx"
    paper = "Li et al., MLSys 2020"
    parts = {"local term": "proximal", "merge": "average by examples"}
    Options = FedProxOptions

    def terms(self, message: Message, client: Client) -> Sequence[Term]:
        """``mu/2 ||w - w_global||^2``."""
        return (proximal(message.group("model"), self.options.mu),)
