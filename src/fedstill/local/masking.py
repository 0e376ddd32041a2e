"""Masks for secure sums: every pair of clients agrees on a mask that one adds and the other subtracts.

Numbers become integers modulo 2^64 (or 2^32), so masks cancel exactly and a masked number is uniform whatever it hides. The
masks come from an X25519 key exchange, HKDF-SHA256 and ChaCha20, all of the package ``cryptography`` (the extra ``secure``).
docs/privacy.md and docs/dafkd.md say who can learn what.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.core.message import State

__all__ = [
    "FixedPoint",
    "derived",
    "expanded",
    "is_key",
    "key_pair",
    "masked",
    "pair_key",
    "pair_mask",
    "public_key",
    "unmasked_state",
    "unmasked_sum",
]


@dataclass(frozen=True)
class FixedPoint:
    """How numbers become words: ``round(x * scale)`` modulo ``2^bits``, for ``|x| < largest``. A sum of ``K`` numbers is off by
    at most ``K / (2 scale)``, as long as it is below ``2 largest``.

    >>> FixedPoint().scale == 2.0**40, FixedPoint(bits=32, largest=32.0).error(10)
    (True, 1.4901161193847656e-07)
    """

    bits: int = 64
    largest: float = 2.0**22

    @property
    def scale(self) -> float:
        """Words per unit."""
        return 2.0 ** (self.bits - 2 - math.ceil(math.log2(self.largest)))

    @property
    def dtype(self) -> torch.dtype:
        """The type of the words; integers wrap, which is arithmetic modulo ``2^bits``."""
        return torch.int64 if self.bits == 64 else torch.int32

    def error(self, count: int) -> float:
        """The largest error of a sum of ``count`` numbers."""
        return count / (2 * self.scale)

    def words(self, values: Tensor) -> Tensor:
        """``values`` as words."""
        values = values.detach().double().cpu()
        if not bool((values.abs() < self.largest).all()):  # also what is no number
            raise FedstillError(f"a number to be masked is not finite or not below {self.largest:g}")
        return (values * self.scale).round().to(torch.int64).to(self.dtype)

    def numbers(self, words: Tensor) -> Tensor:
        """The numbers that ``words`` stand for."""
        return words.double() / self.scale


DEFAULT = FixedPoint()  # sums of a million numbers below 8 fit, each exact to 1e-12


def derived(material: bytes, context: str, length: int = 32) -> bytes:
    """A key for one purpose (HKDF-SHA256)."""
    try:
        from cryptography.hazmat.primitives.hashes import SHA256  # optional: extra secure
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # optional: extra secure
    except ImportError as error:
        raise FedstillError("secure sums need cryptography: pip install 'fedstill[secure]'") from error
    return HKDF(SHA256(), length, salt=None, info=b"fedstill " + context.encode()).derive(material)


def public_key(secret: int) -> int:
    """The X25519 public key of a secret."""
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # optional: extra secure
    except ImportError as error:
        raise FedstillError("secure sums need cryptography: pip install 'fedstill[secure]'") from error
    private = X25519PrivateKey.from_private_bytes(secret.to_bytes(32, "little"))
    return int.from_bytes(private.public_key().public_bytes_raw(), "little")


def key_pair() -> tuple[int, int]:
    """A secret and its public key. The secret comes from the system's randomness, never from a seed; results do not depend on it,
    because masks cancel."""
    secret = secrets.randbits(256)
    return secret, public_key(secret)


def is_key(text: str) -> bool:
    """Whether ``text`` is a public key, in hexadecimal; points of low order, such as 0 and 1, would give a mask away.

    >>> is_key(f"{key_pair()[1]:x}"), is_key("1"), is_key("no")
    (True, False, False)
    """
    try:
        return bool(pair_key(1, int(text, 16), "a test"))
    except (ValueError, OverflowError, FedstillError):
        return False


def pair_key(secret: int, public: int, context: str) -> bytes:
    """The key that two clients share for one purpose, the same from either side."""
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey  # optional: extra secure
    except ImportError as error:
        raise FedstillError("secure sums need cryptography: pip install 'fedstill[secure]'") from error
    other = X25519PublicKey.from_public_bytes(public.to_bytes(32, "little"))
    common = X25519PrivateKey.from_private_bytes(secret.to_bytes(32, "little")).exchange(other)  # refuses points of low order
    return derived(common, context)


def expanded(key: bytes, shape: Sequence[int], point: FixedPoint = DEFAULT) -> Tensor:
    """Uniform words from a key (the key stream of ChaCha20). A key serves once: its context names the purpose."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # optional: the extra secure

    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    stream = encryptor.update(bytes(point.bits // 8 * math.prod(shape)))
    return torch.from_numpy(np.frombuffer(stream, dtype=f"<i{point.bits // 8}").copy()).view(tuple(shape))


def pair_mask(secret: int, public: int, context: str, shape: tuple[int, ...], point: FixedPoint = DEFAULT) -> Tensor:
    """The mask that two clients share: uniform integers, the same from either side.

    >>> (a, A), (b, B) = key_pair(), key_pair()
    >>> torch.equal(pair_mask(a, B, "round 1", (4,)), pair_mask(b, A, "round 1", (4,)))
    True
    """
    return expanded(pair_key(secret, public, context), shape, point)


def masked(values: Tensor, me: str, secret: int, publics: Mapping[str, int], context: str, point: FixedPoint = DEFAULT) -> Tensor:
    """``values`` in fixed point plus the masks shared with all others in ``publics``: of each pair, the client whose name comes
    first adds the mask and the other subtracts it."""
    total = point.words(values)
    for other, public in publics.items():
        if other != me:
            mask = pair_mask(secret, public, context, tuple(values.shape), point)
            total = total + mask if me < other else total - mask
    return total


def unmasked_state(parts: Sequence[State], like: State) -> State:
    """The sum of states that were masked tensor by tensor, in the types of ``like``; counters are rounded."""
    sums = {name: unmasked_sum(part[name] for part in parts) for name in like}
    return {name: (sums[name] if tensor.is_floating_point() else sums[name].round()).to(tensor) for name, tensor in like.items()}


def unmasked_sum(parts: Iterable[Tensor], point: FixedPoint = DEFAULT) -> Tensor:
    """The sum of the hidden values; noise if any client's part is missing.

    >>> (a, A), (b, B) = key_pair(), key_pair()
    >>> publics = {"a": A, "b": B}
    >>> x, y = torch.tensor([0.25, 0.5]), torch.tensor([1.0, -0.5])
    >>> unmasked_sum([masked(x, "a", a, publics, "r"), masked(y, "b", b, publics, "r")]).tolist()
    [1.25, 0.0]
    """
    return point.numbers(torch.stack(list(parts)).sum(0, dtype=point.dtype))
