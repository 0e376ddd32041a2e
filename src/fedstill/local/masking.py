"""Secure sums by pairwise masks: every pair of clients agrees on a mask that one adds and the other subtracts.

Numbers become integers modulo 2^64, so masks cancel exactly and a masked number is uniform whatever it hides. The masks come
from a Diffie-Hellman exchange (the 2048-bit group of RFC 3526) expanded by SHAKE-256. docs/dafkd.md says who can learn what.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.core.message import State

__all__ = ["PRIME", "is_key", "key_pair", "masked", "pair_mask", "unmasked_state", "unmasked_sum"]

PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74"
    "020BBEA63B139B22514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F1437"
    "4FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF05"
    "98DA48361C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB"
    "9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B"
    "E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF695581718"
    "3995497CEA956AE515D2261898FA051015728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)
GENERATOR = 2
SCALE = 2.0**40  # fixed point: sums of a million numbers below 8 fit, each exact to 1e-12
LARGEST = 2.0**22  # of one number


def key_pair() -> tuple[int, int]:
    """A secret and its public key. The secret comes from the system's randomness, never from a seed; results do not depend on it,
    because masks cancel."""
    secret = secrets.randbits(256) | 1 << 255
    return secret, pow(GENERATOR, secret, PRIME)


def is_key(text: str) -> bool:
    """Whether ``text`` is a public key, in hexadecimal; 0, 1 and -1 would give a mask away.

    >>> is_key(f"{key_pair()[1]:x}"), is_key("1"), is_key("no")
    (True, False, False)
    """
    try:
        return 1 < int(text, 16) < PRIME - 1
    except ValueError:
        return False


def pair_mask(secret: int, public: int, context: str, shape: tuple[int, ...]) -> Tensor:
    """The mask that two clients share: uniform integers, the same from either side.

    >>> (a, A), (b, B) = key_pair(), key_pair()
    >>> torch.equal(pair_mask(a, B, "round 1", (4,)), pair_mask(b, A, "round 1", (4,)))
    True
    """
    common = pow(public, secret, PRIME).to_bytes(256, "big")
    stream = hashlib.shake_256(common + context.encode()).digest(8 * int(np.prod(shape)))
    return torch.from_numpy(np.frombuffer(stream, dtype="<i8").copy()).view(shape)


def masked(values: Tensor, me: str, secret: int, publics: Mapping[str, int], context: str) -> Tensor:
    """``values`` in fixed point plus the masks shared with all others in ``publics``: of each pair, the client whose name comes
    first adds the mask and the other subtracts it. Integers wrap, which is arithmetic modulo 2^64."""
    values = values.detach().double().cpu()
    if not bool((values.abs() < LARGEST).all()):  # also what is no number
        raise FedstillError("a number to be masked is not finite or too large")
    total = (values * SCALE).round().to(torch.int64)
    for other, public in publics.items():
        if other != me:
            mask = pair_mask(secret, public, context, tuple(values.shape))
            total = total + mask if me < other else total - mask
    return total


def unmasked_state(parts: Sequence[State], like: State) -> State:
    """The sum of states that were masked tensor by tensor, in the types of ``like``; counters are rounded."""
    sums = {name: unmasked_sum(part[name] for part in parts) for name in like}
    return {name: (sums[name] if tensor.is_floating_point() else sums[name].round()).to(tensor) for name, tensor in like.items()}


def unmasked_sum(parts: Iterable[Tensor]) -> Tensor:
    """The sum of the hidden values; noise if any client's part is missing.

    >>> (a, A), (b, B) = key_pair(), key_pair()
    >>> publics = {"a": A, "b": B}
    >>> x, y = torch.tensor([0.25, 0.5]), torch.tensor([1.0, -0.5])
    >>> unmasked_sum([masked(x, "a", a, publics, "r"), masked(y, "b", b, publics, "r")]).tolist()
    [1.25, 0.0]
    """
    total = torch.stack(list(parts)).sum(0)
    return total.double() / SCALE
