"""Partitions: the training samples of a domain divided among its clients.

Every split terminates: a request that cannot be met is refused at once, and an unlucky draw is repeated a bounded number of
times and then repaired by moving single samples.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedstill.core.errors import FedstillError

__all__ = ["Partition", "Shares", "class_counts", "partition"]


class Partition(BaseModel):
    """How a domain is divided among its clients."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: Literal["iid", "dirichlet", "classes", "shards", "linear", "square", "exponential"] = "iid"
    """``iid``: equal random shares. ``dirichlet``: classes are spread unevenly, by ``alpha`` and ``variant``. ``classes``: every
    client holds ``classes_per_client`` classes and no other (the "pathological" split). ``shards``: samples are sorted by label
    and cut into equal shards, of which every client gets ``shards_per_client`` random ones (McMahan et al. 2017); a remainder
    that fills no shard is left out. ``linear``, ``square``, ``exponential``: the same classes everywhere, in sizes that grow with
    the client's number."""

    alpha: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    """Concentration of the Dirichlet split: the smaller, the more clients differ."""

    variant: Literal["balanced", "plain", "equal", "client-prior"] = "balanced"
    """Which variant of the Dirichlet split. ``balanced`` (DaFKD, MOON, FedGen, FedMA): each class in turn is divided by
    shares from Dir(alpha) over the clients, and a client that holds N/K samples or more gets nothing further. ``plain``: without
    that rule, so that sizes differ widely. ``equal`` (FedDF): clients in groups of ten, each with an equal random part of the
    data divided as in ``balanced``; the groups are then joined, each share in the order of its classes, and cut into equal
    parts, so that a client's last classes spill over to its neighbour.
    ``client-prior`` (FedFTG): each client draws its class distribution from Dir(alpha), and sizes are equal."""

    classes_per_client: int = Field(default=2, ge=1)
    """Classes that each client holds (classes)."""

    shards_per_client: int = Field(default=2, ge=1)
    """Shards that each client gets (shards)."""

    min_samples: int | None = Field(default=None, ge=0)
    """The fewest samples that a client may hold. If not set, 10, or half the mean if that is less."""

    redraws: int = Field(default=20, ge=1)
    """The most draws until every client has ``min_samples`` (dirichlet, classes). After the last, the best Dirichlet split is
    repaired by moving single samples, and a split by classes is refused."""


@dataclass(frozen=True)
class Shares:
    """What every client holds: one array of positions, cut where each share ends. An array object for each of a hundred thousand
    clients would take more memory than the positions.

    >>> shares = Shares(np.array([4, 0, 2]), np.array([1, 3]))
    >>> [share.tolist() for share in shares], shares.sizes.tolist()
    ([[4], [0, 2]], [1, 2])
    """

    positions: np.ndarray
    ends: np.ndarray

    @classmethod
    def even(cls, positions: np.ndarray, clients: int) -> Shares:
        """Consecutive shares of equal size; the first have one more if the clients do not divide the positions."""
        return cls(positions, np.cumsum(_even(len(positions), clients)))

    @classmethod
    def by_owner(cls, positions: np.ndarray, owners: np.ndarray, clients: int) -> Shares:
        """The positions of each owner, in the order in which they are given."""
        return cls(positions[np.argsort(owners, kind="stable")], np.cumsum(np.bincount(owners, minlength=clients)))

    @property
    def sizes(self) -> np.ndarray:
        """How many positions each share has."""
        return np.diff(self.ends, prepend=0)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, client: int) -> np.ndarray:
        """One share: a view, not a copy."""
        client = range(len(self))[client]
        return self.positions[self.ends[client - 1] if client else 0 : self.ends[client]]

    def __iter__(self) -> Iterator[np.ndarray]:
        begin = 0
        for end in self.ends:
            yield self.positions[begin:end]
            begin = end


def partition(labels: Tensor | np.ndarray, clients: int, spec: Partition, rng: np.random.Generator) -> Shares:
    """Divide samples among ``clients``: sorted positions for each, no position twice.

    Every sample goes to some client, except under ``classes`` if the clients together hold fewer classes than there are, and
    under ``shards`` if the last samples fill no shard.

    A draw that leaves a client with fewer than ``min_samples`` is repeated up to ``redraws`` times; after that the best
    draw is repaired by moving single random samples from the largest clients to those that are short. (A ``classes``
    split cannot be repaired without breaking its promise, so it is refused.)

    >>> labels = np.repeat(np.arange(10), 20)
    >>> shares = partition(labels, 5, Partition(kind="classes", classes_per_client=2), np.random.default_rng(0))
    >>> [len(np.unique(labels[share])) for share in shares], sum(len(share) for share in shares)
    ([2, 2, 2, 2, 2], 200)
    """
    values = np.asarray(labels)
    least = _checked(values, clients, spec)
    draw = _drawer(values, clients, spec, rng)
    # Only these two have random sizes.
    best = _best(draw, least, spec.redraws if spec.kind in ("dirichlet", "classes") else 1)
    if _smallest(best) < least:
        if spec.kind == "classes":
            raise FedstillError(
                f"{clients} clients of {spec.classes_per_client} classes cannot all have {least} samples; "
                "use fewer clients, more classes_per_client or a smaller min_samples"
            )
        if least * clients > len(best.positions):  # under shards some samples may go to nobody
            held = f"'{spec.kind}' hands out only {len(best.positions)} of {len(values)}"
            raise FedstillError(f"cannot give {clients} clients at least {least} samples each: {held}")
        best = _level(best, least, rng)
    for share in best:
        share.sort()
    return best


def class_counts(labels: Tensor | np.ndarray, shares: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """How many samples of each class every share holds, all at once: (shares, classes).

    >>> class_counts(np.array([0, 1, 1, 2]), [np.array([0, 1, 2]), np.array([3])], 3).tolist()
    [[1, 2, 0], [0, 0, 1]]
    """
    held = np.asarray(labels)[np.concatenate(shares)]
    owner = np.repeat(np.arange(len(shares)), [len(share) for share in shares])
    return np.bincount(owner * classes + held, minlength=len(shares) * classes).reshape(len(shares), classes)


def _checked(labels: np.ndarray, clients: int, spec: Partition) -> int:
    """The least number of samples a client may hold, once the request is known to be possible."""
    total = len(labels)
    if clients < 1:
        raise FedstillError(f"cannot divide data among {clients} clients")
    if clients > total:
        raise FedstillError(f"cannot divide {total} samples among {clients} clients")
    least = max(1, min(10, total // (2 * clients))) if spec.min_samples is None else spec.min_samples
    if least * clients > total:
        raise FedstillError(f"cannot give {clients} clients at least {least} samples each: there are only {total}")
    classes = len(np.unique(labels))
    if spec.kind == "shards" and clients * spec.shards_per_client > total:
        raise FedstillError(f"cannot cut {total} samples into {clients} x {spec.shards_per_client} shards")
    if spec.kind == "classes" and spec.classes_per_client > classes:
        raise FedstillError(f"cannot give a client {spec.classes_per_client} classes: there are only {classes}")
    return least


def _drawer(labels: np.ndarray, clients: int, spec: Partition, rng: np.random.Generator) -> Callable[[], Shares]:
    if spec.kind == "iid":
        return lambda: Shares.even(rng.permutation(len(labels)), clients)
    if spec.kind == "classes":
        return lambda: _by_classes(labels, clients, spec.classes_per_client, rng)
    if spec.kind in _FLOWER:
        return lambda: _by_flower(labels, clients, spec, rng)
    if spec.variant == "client-prior":
        return lambda: _client_prior(labels, clients, spec.alpha, rng)
    if spec.variant == "equal":
        return lambda: _equal(labels, clients, spec, rng)
    balanced = spec.variant == "balanced"
    return lambda: _dirichlet(labels, np.arange(len(labels)), clients, spec.alpha, balanced, rng)


# flwr-datasets has a Dirichlet and a pathological partitioner too, but the first knows two of the four variants, gives
# up with an error after ten redraws and hands out each class in file order, and the second may leave classes to nobody;
# these few lines of numpy do 1,000 clients in milliseconds and end with a repair instead.
def _dirichlet(
    labels: np.ndarray, index: np.ndarray, clients: int, alpha: float, balanced: bool, rng: np.random.Generator
) -> Shares:
    drawn: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    sizes = np.zeros(clients, dtype=np.int64)
    mine = labels[index]
    for label in np.unique(mine):
        members = rng.permutation(index[mine == label])
        share = _dirichlet_draw(alpha, clients, rng)
        if balanced:
            room = sizes < len(index) / clients
            share = np.where(room, share, 0.0)
            # With a tiny alpha all of a class may fall to clients that are full: one with room takes it.
            share = share / share.sum() if share.sum() > 0 else _one_of(np.flatnonzero(room), clients, rng)
        cuts = np.floor(np.cumsum(share) * len(members) + 1e-9).astype(np.int64)[:-1]
        given = np.diff(cuts, prepend=0, append=len(members))
        drawn.append(members)
        owners.append(_owners(given))
        sizes += given
    return Shares.by_owner(np.concatenate(drawn), np.concatenate(owners), clients)


def _owners(given: np.ndarray) -> np.ndarray:
    """Who owns each of the samples of which every client is given so many, one client after the other."""
    return np.repeat(np.arange(len(given), dtype=np.int32), given)


def _even(total: int, parts: int) -> np.ndarray:
    """Sizes as equal as can be, the larger ones first.

    >>> _even(7, 3).tolist()
    [3, 2, 2]
    """
    return total // parts + (np.arange(parts) < total % parts)


def _dirichlet_draw(alpha: float, size: int, rng: np.random.Generator) -> np.ndarray:
    share = rng.dirichlet(np.full(size, alpha))
    # As alpha goes to 0 the draw becomes one-hot; where the arithmetic underflows, it is that limit.
    return share if np.isfinite(share).all() and share.sum() > 0.5 else _one_of(np.arange(size), size, rng)


def _one_of(candidates: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    share = np.zeros(size)
    share[rng.choice(candidates)] = 1.0
    return share


def _equal(labels: np.ndarray, clients: int, spec: Partition, rng: np.random.Generator) -> Shares:
    groups = _even(clients, -(-clients // 10))  # ten a group, fewer where clients do not divide
    bounds = np.cumsum(groups) * len(labels) // clients
    joined = []
    for group, part in zip(groups.tolist(), np.split(rng.permutation(len(labels)), bounds[:-1]), strict=True):
        # FedDF draws a group again until everybody holds half of the mean; here up to `redraws` times, then the best.
        draw = partial(_dirichlet, labels, part, group, spec.alpha, True, rng)
        # A share stays in the order of its classes, so what spills over to a neighbour is a client's last classes, as in FedDF.
        joined.append(_best(draw, 0.5 * len(part) / group, spec.redraws).positions)
    return Shares.even(np.concatenate(joined), clients)


def _client_prior(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> Shares:
    names, found = np.unique(labels, return_inverse=True)
    stock = np.bincount(found)
    priors = np.stack([_dirichlet_draw(alpha, len(names), rng) for _ in range(clients)])
    wanted = np.full(clients, len(labels) // clients)
    wanted[rng.permutation(clients)[: len(labels) % clients]] += 1
    given = np.zeros((clients, len(names)), dtype=np.int64)
    # All clients draw at once, without replacement. Each pass satisfies everybody or uses up a class, so there are at
    # most as many passes as classes.
    while wanted.any():
        left = priors * (stock > 0)
        spent = left.sum(axis=1) <= 0
        left[spent] = stock / stock.sum()  # a client whose classes are gone takes from what remains
        asked = rng.multinomial(wanted, left / left.sum(axis=1, keepdims=True))
        for c in np.flatnonzero(asked.sum(axis=0) > stock):
            asked[:, c] = rng.multivariate_hypergeometric(asked[:, c], int(stock[c]))
        given += asked
        stock = stock - asked.sum(axis=0)
        wanted = wanted - asked.sum(axis=1)
    return _hand_out(found, given, rng)


def _by_classes(labels: np.ndarray, clients: int, per_client: int, rng: np.random.Generator) -> Shares:
    names, found = np.unique(labels, return_inverse=True)
    holders = np.zeros((clients, len(names)), dtype=bool)
    for client in range(clients):
        # The classes held by the fewest clients so far, ties at random: all classes are held equally often.
        order = np.lexsort((rng.random(len(names)), holders.sum(axis=0)))
        holders[client, order[:per_client]] = True
    given = np.zeros((clients, len(names)), dtype=np.int64)
    for c, stock in enumerate(np.bincount(found)):
        who = rng.permutation(np.flatnonzero(holders[:, c]))
        if len(who):
            given[who, c] = _even(int(stock), len(who))
    return _hand_out(found, given, rng)


_FLOWER = {
    "shards": "ShardPartitioner",
    "linear": "LinearPartitioner",
    "square": "SquarePartitioner",
    "exponential": "ExponentialPartitioner",
}


def _by_flower(labels: np.ndarray, clients: int, spec: Partition, rng: np.random.Generator) -> Shares:
    """The splits that flwr-datasets does as we would."""
    import datasets  # slow: seconds, and most runs partition by themselves
    from flwr_datasets import partitioner as flower  # slow

    options: dict[str, object] = {"num_partitions": clients}
    if spec.kind == "shards":
        seed = int(rng.integers(2**31))
        options |= {"partition_by": "label", "num_shards_per_partition": spec.shards_per_client, "seed": seed}
    divide = getattr(flower, _FLOWER[spec.kind])(**options)
    # Shuffled first: the size-skewed ones hand out samples in the order in which they come.
    order = rng.permutation(len(labels))
    divide.dataset = datasets.Dataset.from_dict({"label": labels[order], "position": order})
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            # it sorts by a deprecated call of pyarrow; that warning is of no use to our users
            warnings.simplefilter("ignore", FutureWarning)
            found = [np.asarray(divide.load_partition(client)["position"][:], dtype=np.int64) for client in range(clients)]
    except ValueError as error:
        raise FedstillError(f"'{spec.kind}' shares of {len(labels)} samples leave some of {clients} clients none") from error
    return Shares(np.concatenate(found), np.cumsum([len(share) for share in found]))


def _hand_out(found: np.ndarray, given: np.ndarray, rng: np.random.Generator) -> Shares:
    """Random samples of each class, ``given[client, class]`` of them to every client."""
    drawn = [rng.permutation(np.flatnonzero(found == c))[: of_class.sum()] for c, of_class in enumerate(given.T)]
    return Shares.by_owner(np.concatenate(drawn), np.concatenate([_owners(of_class) for of_class in given.T]), len(given))


def _best(draw: Callable[[], Shares], least: float, redraws: int) -> Shares:
    """The first draw that gives every client ``least`` samples, else the one whose smallest client is the largest."""
    best = draw()
    for _ in range(redraws - 1):
        if _smallest(best) >= least:
            break
        best = max(best, draw(), key=_smallest)
    return best


def _smallest(shares: Shares) -> int:
    return int(shares.sizes.min())


def _level(shares: Shares, least: int, rng: np.random.Generator) -> Shares:
    """Move single random samples from the largest clients until no client holds fewer than ``least``."""
    for share in shares:
        rng.shuffle(share)
    begins, left = (shares.ends - shares.sizes).tolist(), shares.sizes.tolist()
    largest = [(-size, client) for client, size in enumerate(left) if size > least]
    heapq.heapify(largest)
    owners = _owners(shares.sizes)
    for client, size in enumerate(shares.sizes.tolist()):
        for _ in range(least - size):
            _, donor = heapq.heappop(largest)
            left[donor] -= 1
            owners[begins[donor] + left[donor]] = client  # the last that the donor still has
            if left[donor] > least:
                heapq.heappush(largest, (-left[donor], donor))
    return Shares.by_owner(shares.positions, owners, len(shares))
