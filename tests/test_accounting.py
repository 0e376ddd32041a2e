"""The ledger of what was spent, against Opacus' and dp-accounting's own accountants."""

from __future__ import annotations

import builtins
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from scipy.special import logsumexp

from fedstill.core import accounting
from fedstill.core.accounting import ORDERS, Ledger, need_privacy, noise_for
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message

GRID = list(itertools.product((0.5, 0.8, 1.1, 2.0, 6.0), (0.001, 0.02, 0.064, 0.25, 0.7, 1.0)))
WHOLE = [order for order in ORDERS if order == int(order)]
STEPS, DELTAS = (1, 50, 2000), (1e-3, 1e-5, 1e-7)


def of_opacus(noise: float, rate: float) -> Callable[[int, float], float]:
    """Epsilon after steps at delta, by Opacus' functions for its accountant's orders."""
    orders = RDPAccountant.DEFAULT_ALPHAS
    one = compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)

    def epsilon(steps: int, delta: float) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "optimal order is the largest alpha"
            return max(0.0, float(get_privacy_spent(orders=orders, rdp=one * steps, delta=delta)[0]))

    return epsilon


def of_dp_accounting(noise: float, rate: float) -> Callable[[int, float], float]:
    """The same by dp-accounting at its default orders."""
    mechanism = GaussianDpEvent(noise)
    one = RdpAccountant().compose(PoissonSampledDpEvent(rate, mechanism) if rate < 1 else mechanism)

    def epsilon(steps: int, delta: float) -> float:
        return float(compute_epsilon(one._orders, one._rdp * steps, delta)[0])

    return epsilon


@pytest.mark.parametrize(("noise", "rate"), GRID)
def test_epsilon_is_the_larger_of_opacus_and_dp_accounting(noise: float, rate: float) -> None:
    """Literally never below either, never more than a thousandth above both, and above Opacus' by at most a hundredth for epsilon
    up to 12, and half of that up to 8."""
    opacus, google = of_opacus(noise, rate), of_dp_accounting(noise, rate)
    for steps, delta in itertools.product(STEPS, DELTAS):
        mine, theirs = Ledger().gaussian(noise, rate, steps).epsilon(delta), (opacus(steps, delta), google(steps, delta))
        assert mine >= max(theirs)
        assert mine == pytest.approx(max(theirs), rel=1e-3, abs=1e-12)
        if mine <= 12:
            assert mine <= (1.005 if mine <= 8 else 1.01) * theirs[0] + 1e-12


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.001), (1.1, 0.02)])
def test_the_functions_used_here_are_those_of_the_accountants(noise: float, rate: float) -> None:
    opacus = RDPAccountant()
    opacus.history = [(noise, rate, 50)]
    assert of_opacus(noise, rate)(50, 1e-5) == pytest.approx(opacus.get_epsilon(1e-5), rel=1e-12)
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), 50)
    theirs = RdpAccountant().compose(event).get_epsilon(1e-5)
    assert of_dp_accounting(noise, rate)(50, 1e-5) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(("noise", "rate"), [case for case in GRID if case[1] < 1])
def test_the_bounds_are_never_below_the_divergence(noise: float, rate: float) -> None:
    """Against the integral: log E[((1 - q) + q exp((2 z - 1) / (2 sigma^2)))^alpha] / (alpha - 1) for z ~ N(0, sigma^2). Equal at
    whole orders; at others absolute values are summed."""
    ledger = Ledger().gaussian(noise, rate)
    for order in (1.1, 1.5, 2.0, 2.7, 4.4, 9.3, 12.0):
        z = np.linspace(-40 * noise, 40 * noise + order, 400_001)
        ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * z - 1) / (2 * noise**2))
        logs = order * ratio - z**2 / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
        moment = (logsumexp(logs) + math.log(z[1] - z[0])) / (order - 1)
        bound = ledger.rdp[ORDERS.index(order)]
        assert bound >= moment * (1 - 1e-5) - 1e-9
        if order in WHOLE:
            assert bound == pytest.approx(moment, rel=1e-5, abs=1e-9)


def test_orders_are_opacus_own() -> None:
    assert list(ORDERS) == RDPAccountant.DEFAULT_ALPHAS


def test_one_gaussian_mechanism_by_hand() -> None:
    """At order 2, noise 2: r = 2 / 8, and epsilon <= 1/4 + log(1/2) - log(2 delta)."""
    ledger = Ledger().gaussian(2.0)
    assert ledger.rdp[ORDERS.index(2.0)] == 0.25
    only = Ledger(tuple(0.25 if order == 2 else math.inf for order in ORDERS))
    assert only.epsilon(1e-3) == pytest.approx(0.25 + math.log(0.5) - math.log(2e-3))


def test_ledgers_add_up() -> None:
    together = Ledger().gaussian(1.5, 0.1, 30).gaussian(4.0)
    apart = Ledger().gaussian(4.0).plus(Ledger().gaussian(1.5, 0.1, 30))
    opacus = RDPAccountant()
    opacus.history = [(1.5, 0.1, 30), (4.0, 1.0, 1)]
    assert together == apart
    assert together.epsilon(1e-5) == pytest.approx(opacus.get_epsilon(1e-5))
    assert Ledger().gaussian(1.0, 0.1, 0) == Ledger().gaussian(1.0, 0.0, 5) == Ledger()
    assert Ledger().gaussian(0.0).epsilon(1e-5) == math.inf


def test_a_ledger_survives_a_message_bitwise() -> None:
    ledger = Ledger().gaussian(1.3, 0.07, 11)
    message = Message.from_bytes(Message.of(ledger=ledger.state()).to_bytes())
    assert Ledger.from_state(message.group("ledger")) == ledger == Ledger.from_values(ledger.values())
    assert Ledger.from_state({}) == Ledger.from_values([]) == Ledger()
    with pytest.raises(FedstillError, match="3 orders"):
        Ledger.from_values([0.0, 1.0, 2.0])


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(1.0, 0.05, 200), (3.0, 1.0, 10), (8.0, 0.2, 500), (0.3, 0.01, 50)])
def test_the_noise_for_a_budget_is_enough_and_hardly_more(epsilon: float, rate: float, steps: int) -> None:
    noise = noise_for(epsilon, 1e-5, rate, steps)
    assert Ledger().gaussian(noise, rate, steps).epsilon(1e-5) <= epsilon
    assert Ledger().gaussian(noise * 0.999, rate, steps).epsilon(1e-5) > epsilon


def test_what_was_spent_before_needs_more_noise_after() -> None:
    before = Ledger().gaussian(5.0, steps=4)
    noise = noise_for(3.0, 1e-5, steps=10, before=before)
    assert noise > noise_for(3.0, 1e-5, steps=10)
    assert before.gaussian(noise, steps=10).epsilon(1e-5) <= 3.0


def test_an_impossible_budget_is_one_line() -> None:
    with pytest.raises(FedstillError, match=r"no noise keeps 10 steps within epsilon = 0\.01"):
        noise_for(0.01, 1e-5, 0.1, 10)


def test_the_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("opacus"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FedstillError, match=r"pip install 'fedstill\[privacy\]'"):
        need_privacy("privacy.sample")
    accounting._gaussian.cache_clear()
    assert Ledger().gaussian(2.0, 0.1).epsilon(1e-5) > 0  # the ledger itself needs nothing


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(-1.0, 0.1, 1), (1.0, 1.1, 1), (1.0, -0.1, 1), (1.0, 0.1, -1), (math.nan, 0.1, 1)]
)
def test_nonsense_is_refused(noise: float, rate: float, steps: int) -> None:
    with pytest.raises(ValueError, match="Gaussian mechanism"):
        Ledger().gaussian(noise, rate, steps)
