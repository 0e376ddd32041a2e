"""The privacy that was spent: Rényi differential privacy at fixed orders, composed by adding (Mironov, 2017).

A `Ledger` holds an upper bound of the Rényi divergence for each order in `ORDERS`. The Gaussian mechanism with sensitivity s and
noise of standard deviation sigma has ``alpha s^2 / (2 sigma^2)`` at order alpha. If each sample takes part with probability q
(Poisson sampling), the bound is that of Mironov, Talwar and Zhang (2019). Epsilon follows by Balle et al. (2020, Theorem 21):

    epsilon = min over alpha of  r(alpha) + log((alpha - 1) / alpha) - (log(delta) + log(alpha)) / (alpha - 1).

At fractional orders the bound is an alternating series. Opacus sums it as it is, Google's dp-accounting sums absolute values. We
do the latter, at orders that both use, so that epsilon is never below the figure of either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedstill.core.errors import FedstillError

__all__ = ["ORDERS", "SPENT", "Ledger", "charged", "exceeds", "gaussian_cost", "need_privacy", "noise_for"]

# the orders that Opacus' accountant uses; dp-accounting's has others besides
ORDERS: tuple[float, ...] = tuple(1 + x / 10 for x in range(1, 100)) + tuple(float(x) for x in range(12, 64))
TERMS = 1000  # of the series at fractional orders; one that has not converged by then says nothing
LEAST = 1e-15  # about what a bound can be wrong by in floating point
UP = 1 + 1e-10  # epsilon is rounded up, so that the order of sums in floating point does not put it below another accountant's
LARGEST_NOISE = 1e6
PRECISION = 1e-4  # of the noise that a budget needs, relative
SLACK = 1 + 1e-9  # of a budget, for rounding
SPENT = "its privacy budget is spent"  # the reason of a client that stopped


def need_privacy(what: str = "this") -> None:
    """Refuse in one line if the extra is missing."""
    try:
        import opacus  # noqa: F401  # optional, and slow to import
    except ImportError as error:
        raise FedstillError(f"{what} needs Opacus: pip install 'fedstill[privacy]'") from error


def gaussian_cost(sensitivity: float, sigma: float) -> float:
    """The Rényi privacy of one Gaussian mechanism without sampling, divided by the order: ``s^2 / (2 sigma^2)``.

    >>> gaussian_cost(1.0, 2.0), round(gaussian_cost(math.sqrt(2.0), 2.0), 12)
    (0.125, 0.25)
    """
    return sensitivity**2 / (2 * sigma**2)


@lru_cache(1024)
def _gaussian(noise: float, rate: float) -> tuple[float, ...]:
    """The bound of one mechanism at every order."""
    if noise == 0:
        return (math.inf,) * len(ORDERS)
    if rate == 1:
        return tuple(order * gaussian_cost(1.0, noise) for order in ORDERS)
    return tuple(max(bound, LEAST) for bound in sampled_gaussian(noise, rate).tolist())


def sampled_gaussian(noise: float, rate: float) -> Tensor:
    """The bound at every order for Poisson samples with 0 < ``rate`` < 1: ``log A(alpha) / (alpha - 1)`` (Mironov, Talwar and
    Zhang, 2019, section 3.3). Infinite where the series does not converge."""
    orders = torch.tensor(ORDERS, dtype=torch.float64)
    whole = orders == orders.round()
    logs = torch.empty_like(orders)
    logs[whole] = _whole(orders[whole], noise, rate)
    logs[~whole] = _fractional(orders[~whole], noise, rate)
    return logs / (orders - 1)


def _whole(orders: Tensor, noise: float, rate: float) -> Tensor:
    """``log sum_k (alpha over k) q^k (1 - q)^(alpha - k) exp((k^2 - k) / (2 sigma^2))``."""
    k = torch.arange(int(orders.max()) + 1, dtype=torch.float64)
    rest = orders[:, None] - k
    terms = _log_binomial(orders, k.clamp(max=orders[:, None])) + k * math.log(rate) + rest * math.log1p(-rate)
    return (terms + (k * k - k) / (2 * noise**2)).masked_fill(rest < 0, -math.inf).logsumexp(1)


def _fractional(orders: Tensor, noise: float, rate: float) -> Tensor:
    """Two series, for either side of the point z0 where both densities are equal, with absolute values of their terms."""
    z0 = noise**2 * math.log(1 / rate - 1) + 0.5
    i = torch.arange(TERMS, dtype=torch.float64)
    j = orders[:, None] - i
    binomial = _log_binomial(orders, i)
    # log(erfc(x) / 2) is log_ndtr(-sqrt(2) x)
    below = i * math.log(rate) + j * math.log1p(-rate) + (i * i - i) / (2 * noise**2) + torch.special.log_ndtr((z0 - i) / noise)
    above = j * math.log(rate) + i * math.log1p(-rate) + (j * j - j) / (2 * noise**2) + torch.special.log_ndtr((j - z0) / noise)
    terms = torch.stack([binomial + below, binomial + above])
    total = terms.logsumexp((0, 2))
    last, before = terms[:, :, -1], terms[:, :, -2]
    converged = ((last < before) & (last < total - 30)).all(0)
    return torch.where(converged, total, math.inf)


def _log_binomial(orders: Tensor, k: Tensor) -> Tensor:
    """The logarithm of the absolute value of a binomial coefficient, (orders, k)."""
    return torch.lgamma(orders + 1)[:, None] - torch.lgamma(k + 1) - torch.lgamma(orders[:, None] - k + 1)


@dataclass(frozen=True)
class Ledger:
    """What was spent so far, as Rényi differential privacy at `ORDERS`. Ledgers are composed by adding.

    >>> spent = Ledger().gaussian(noise=2.0, steps=4)
    >>> round(spent.epsilon(1e-5), 4)
    4.7285
    >>> spent == Ledger().gaussian(2.0, steps=3).plus(Ledger().gaussian(2.0))
    True
    >>> Ledger.from_state(spent.state()) == spent, Ledger.from_values(spent.values()) == spent
    (True, True)
    >>> Ledger().epsilon(1e-5)
    0.0
    """

    rdp: tuple[float, ...] = (0.0,) * len(ORDERS)

    def gaussian(self, noise: float, rate: float = 1.0, steps: int = 1) -> Ledger:
        """After ``steps`` Gaussian mechanisms with ``noise`` = sigma / sensitivity, each on a Poisson sample with ``rate``."""
        if not (noise >= 0 and 0 <= rate <= 1 and steps >= 0):
            raise ValueError(f"noise {noise}, rate {rate} and steps {steps} are not those of a Gaussian mechanism")
        if rate == 0 or steps == 0:
            return self
        return self.plus(Ledger(tuple(steps * bound for bound in _gaussian(float(noise), float(rate)))))

    def plus(self, other: Ledger) -> Ledger:
        """Both, one after the other on the same data."""
        return Ledger(tuple(mine + its for mine, its in zip(self.rdp, other.rdp, strict=True)))

    def epsilon(self, delta: float) -> float:
        """The epsilon at this delta: 0 if nothing was spent, infinite if there was no noise."""
        if not any(self.rdp):
            return 0.0
        log = math.log(delta)
        found = min(
            bound + math.log1p(-1 / order) - (log + math.log(order)) / (order - 1)
            for order, bound in zip(ORDERS, self.rdp, strict=True)
        )
        return max(0.0, UP * found)

    def state(self) -> dict[str, Tensor]:
        """As tensors, for a message's group."""
        return {"rdp": torch.tensor(self.rdp, dtype=torch.float64)}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Ledger:
        """The ledger of `state`; an empty one if there is none."""
        return cls.from_values(state["rdp"].tolist()) if "rdp" in state else cls()

    def values(self) -> list[float]:
        """As plain numbers, for JSON."""
        return list(self.rdp)

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Ledger:
        """The ledger of `values`; an empty one if there are none."""
        if len(values) not in (0, len(ORDERS)):
            raise FedstillError(f"a privacy ledger has {len(values)} orders, expected {len(ORDERS)}")
        return cls(tuple(float(value) for value in values)) if len(values) else cls()


def exceeds(epsilon: float, budget: float | None) -> bool:
    """Whether a budget, if there is one, is too small for ``epsilon``, except for rounding.

    >>> exceeds(1.1, 1.0), exceeds(1.0 + 1e-12, 1.0), exceeds(9.0, None)
    (True, False, False)
    """
    return budget is not None and epsilon > budget * SLACK


def charged(before: Ledger, after: Ledger, budget: float | None, delta: float, what: str) -> Ledger:
    """``after``, the ledger of a client that spends on another ``what``; an error with the reason if its budget is too small."""
    if exceeds(after.epsilon(delta), budget):
        spent = before.epsilon(delta)
        raise FedstillError(f"{SPENT}: {spent:.3g} of epsilon {budget:g}, and another {what} would exceed it")
    return after


def noise_for(epsilon: float, delta: float, rate: float = 1.0, steps: int = 1, before: Ledger | None = None) -> float:
    """The smallest noise, rounded up by at most 1 in 10,000, that keeps ``steps`` mechanisms after ``before`` within a budget.

    >>> noise = noise_for(2.0, 1e-5, steps=10)
    >>> Ledger().gaussian(noise, steps=10).epsilon(1e-5) <= 2.0 < Ledger().gaussian(noise * 0.999, steps=10).epsilon(1e-5)
    True
    """

    spent = before or Ledger()

    def enough(noise: float) -> bool:
        return spent.gaussian(noise, rate, steps).epsilon(delta) <= epsilon

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, high * 2
        if high > LARGEST_NOISE:
            raise FedstillError(f"no noise keeps {steps} steps within epsilon = {epsilon:g} at delta = {delta:g}")
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
