"""The options of secure sums, ``[privacy.secure]``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedstill.core.options import Part

__all__ = ["Secure"]


class Secure(Part):
    """Sums that hide single models (FedAvg, FedProx, FedAvgM, MOON) or private votes (FedDF) from the server. Needs the extra
    ``secure``.

    >>> Secure().limit, Secure(bits=32).limit
    (4194304.0, 32.0)
    """

    threshold: Annotated[float, Field(ge=0.5, lt=1)] = 0.6
    """More than this part of the clients that sent keys, and at least two, must remain to the end, or the round stops. As few as
    that can, together with the server, uncover another client."""

    bits: Literal[32, 64] = 64
    """Bits of a masked number. 32 sends as many bytes as the plain model; 64 sends twice as many and rounds less."""

    largest: Annotated[float, Field(gt=0, le=2.0**22)] | None = None
    """Weights, statistics and counters must be below this number; a client with a larger one is dropped. If not set, 4194304 with
    64 bits and 32 with 32 bits. A sum over K clients is off by at most K largest / 2^(bits - 1), if it is a power of two."""

    @property
    def limit(self) -> float:
        """The number in force."""
        return self.largest if self.largest is not None else (2.0**22 if self.bits == 64 else 32.0)
