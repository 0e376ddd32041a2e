"""The server's work in other processes: what an engine with worker processes offers to the code below it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from fedstill.core.message import Message, Value

__all__ = ["Jobs"]


class Jobs(Protocol):
    """Runs functions of fedstill in worker processes that otherwise wait."""

    processes: int

    def submit(
        self, function: str, message: Message, shared: Mapping[str, Tensor], calls: Sequence[Mapping[str, Value]] = ({},)
    ) -> list[Callable[[], Message]]:
        """Start ``function``, named ``module:name``, once for each of ``calls``, with the arguments (task, message with the
        call's values, shared tensors). Returns functions that wait for the answers, in order. Shared tensors are written once for
        all jobs that use them, and mapped; they must not be changed in place."""
        ...
