"""A sum that survives drop-outs, in four steps: keys, shares of secrets, masked numbers, shares again.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, without signatures (its version
for a server that follows the protocol). Each client masks its numbers twice: with a mask for every pair of clients, which cancels
in the sum, and with one of its own, so that a client called lost although its numbers arrived is still hidden. The seeds of both
are divided among all clients (Shamir). Afterwards the clients reveal, of each client, the shares of one seed only: of its own
mask if its numbers arrived, of its pairwise masks if they did not.

Shamir's scheme comes from pycryptodome, X25519, HKDF, ChaCha20 and ChaCha20-Poly1305 from cryptography (the extra ``secure``).
Secrets come from the operating system and do not affect the result.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.local.masking import FixedPoint, derived, expanded, masked, pair_key, pair_mask, public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

__all__ = ["Secrets", "hidden", "new_secrets", "opened", "recovered_sum", "revealed", "sealed", "threshold_of"]

SEED = 16  # bytes, the block of pycryptodome's Shamir scheme
NONCE = 12  # bytes, of ChaCha20-Poly1305
Shares = dict[str, str]  # by client: the share of its pairwise seed, then of its own, in hexadecimal


@dataclass(frozen=True)
class Secrets:
    """What a client keeps during a round, and the two public keys that follow from it."""

    sealing: bytes  # seed of the key under which shares travel
    pairs: bytes  # seed of the key of the pairwise masks
    own: bytes  # seed of the client's own mask

    @property
    def keys(self) -> tuple[int, int]:
        """The public keys: for sealed shares, and for masks."""
        return public_key(secret_key(self.sealing)), public_key(secret_key(self.pairs))

    def to_text(self) -> str:
        """The secrets as text, for the client's own memory."""
        return (self.sealing + self.pairs + self.own).hex()

    @classmethod
    def from_text(cls, text: str) -> Secrets:
        """The secrets that :meth:`to_text` wrote."""
        data = bytes.fromhex(text)
        return cls(data[:SEED], data[SEED : 2 * SEED], data[2 * SEED :])


def secret_key(seed: bytes) -> int:
    """The X25519 secret that follows from a seed."""
    return int.from_bytes(derived(seed, "secret key"), "little")


def threshold_of(fraction: float, count: int) -> int:
    """How many of ``count`` clients must remain: more than ``fraction`` of them, and at least two.

    >>> [threshold_of(0.6, count) for count in (2, 3, 5, 10)]
    [2, 2, 4, 7]
    """
    return min(count, max(2, floor(fraction * count) + 1))


# -- step 1 and 2, in each client --------------------------------------------------------------------------------------------


def new_secrets() -> Secrets:
    """Fresh secrets of a round, from the system's randomness."""
    return Secrets(*(secrets.token_bytes(SEED) for _ in range(3)))


def sealed(me: str, mine: Secrets, keys: Mapping[str, int], threshold: int, context: str) -> Shares:
    """One share of both seeds for every client in ``keys`` (sealing keys), readable by that client alone."""
    names = sorted(keys)
    parts = zip(split(mine.pairs, threshold, len(names)), split(mine.own, threshold, len(names)), strict=True)
    shares = {name: pair + own for name, (pair, own) in zip(names, parts, strict=True)}
    boxes = {}
    for name, share in shares.items():
        nonce = secrets.token_bytes(NONCE)
        boxes[name] = (nonce + cipher(mine, keys[name], me, name, context).encrypt(nonce, share, None)).hex()
    return boxes


def opened(me: str, mine: Secrets, keys: Mapping[str, int], boxes: Mapping[str, str], context: str) -> Shares:
    """The shares that the others sealed for me, by their names."""
    found = {}
    for name, box in boxes.items():
        try:
            data = bytes.fromhex(box)
            share = cipher(mine, keys[name], name, me, context).decrypt(data[:NONCE], data[NONCE:], None)
        except Exception as error:  # InvalidTag is no subclass of anything narrower
            raise FedstillError(f"the share that {name} sent to {me} was changed on its way") from error
        found[name] = share.hex()
    return found


# -- step 3 and 4, in each client --------------------------------------------------------------------------------------------


def hidden(values: Tensor, me: str, mine: Secrets, keys: Mapping[str, int], context: str, point: FixedPoint) -> Tensor:
    """``values`` under both masks. ``keys`` are the masking keys of all clients that divided their seeds."""
    own = expanded(derived(mine.own, f"own mask {context}"), tuple(values.shape), point)
    return masked(values, me, secret_key(mine.pairs), keys, context, point) + own


def revealed(held: Mapping[str, str], arrived: set[str]) -> Shares:
    """Of each client one share: of its own mask's seed if its numbers arrived, else of its pairwise seed. Never both."""
    return {name: share[len(share) // 2 :] if name in arrived else share[: len(share) // 2] for name, share in held.items()}


# -- in the server -----------------------------------------------------------------------------------------------------------


def recovered_sum(
    total: Tensor,
    arrived: set[str],
    keys: Mapping[str, int],
    told: Mapping[str, Mapping[str, str]],
    order: list[str],
    threshold: int,
    context: str,
    point: FixedPoint,
) -> Tensor:
    """The sum of the hidden values of ``arrived``, from the sum ``total`` of their words and the shares that clients told.

    ``keys`` are the masking keys of all clients that divided their seeds; ``order`` are the clients among whom they did."""
    place = {name: number for number, name in enumerate(sorted(order), 1)}
    for name in sorted(keys):
        shares = {place[teller]: bytes.fromhex(shares[name]) for teller, shares in told.items() if name in shares}
        if len(shares) < threshold:
            raise FedstillError(f"{len(shares)} clients revealed their shares of {name}'s masks, {threshold} are needed")
        seed = combine(dict(sorted(shares.items())[:threshold]))
        if name in arrived:
            total = total - expanded(derived(seed, f"own mask {context}"), tuple(total.shape), point)
            continue
        secret = secret_key(seed)
        if public_key(secret) != keys[name]:
            raise FedstillError(f"the shares of {name}'s masks are wrong")
        for other in sorted(arrived):  # undo what each of the others did with its mask
            mask = pair_mask(secret, keys[other], context, tuple(total.shape), point)
            total = total - mask if other < name else total + mask
    return point.numbers(total)


# -- the primitives ----------------------------------------------------------------------------------------------------------


def split(seed: bytes, threshold: int, count: int) -> list[bytes]:
    """``count`` shares, any ``threshold`` of which give the seed.

    >>> seed = bytes(range(16))
    >>> shares = split(seed, 2, 3)
    >>> combine({1: shares[0], 3: shares[2]}) == seed, shares[0] == seed
    (True, False)
    """
    try:
        from Crypto.Protocol.SecretSharing import Shamir  # optional: the extra secure
    except ImportError as error:
        raise FedstillError("secure sums need pycryptodome: pip install 'fedstill[secure]'") from error
    return [share for _, share in Shamir.split(threshold, count, seed, False)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The seed behind enough shares, by their holders' places (from 1)."""
    from Crypto.Protocol.SecretSharing import Shamir  # optional: the extra secure

    return Shamir.combine(list(shares.items()), False)


def cipher(mine: Secrets, other: int, sender: str, receiver: str, context: str) -> ChaCha20Poly1305:
    """The cipher of what ``sender`` seals for ``receiver`` in a round."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # optional: the extra secure

    return ChaCha20Poly1305(pair_key(secret_key(mine.sealing), other, f"shares {context} {sender!r} to {receiver!r}"))
