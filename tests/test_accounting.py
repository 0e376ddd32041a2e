"""The ledger of what was spent, against Opacus' and dp-accounting's own accountants."""

from __future__ import annotations

import builtins
import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import RDPAccountant
from scipy.special import logsumexp

from fedstill.core import accounting
from fedstill.core.accounting import ORDERS, Ledger, need_privacy, noise_for
from fedstill.core.errors import FedstillError
from fedstill.core.message import Message

GRID = list(itertools.product((0.5, 0.8, 1.1, 2.0, 6.0), (0.001, 0.02, 0.25, 1.0)))
WHOLE = [order for order in ORDERS if order == int(order)]


def whole(ledger: Ledger) -> Ledger:
    """The bounds at whole orders alone."""
    return Ledger(tuple(bound if order in WHOLE else math.inf for order, bound in zip(ORDERS, ledger.rdp, strict=True)))


@pytest.mark.parametrize(("noise", "rate"), GRID)
def test_epsilon_is_that_of_opacus(noise: float, rate: float) -> None:
    for steps, delta in itertools.product((1, 50, 2000), (1e-5, 1e-3)):
        opacus = RDPAccountant()
        opacus.history = [(noise, rate, steps)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "optimal order is the largest alpha"
            expected = max(0.0, opacus.get_epsilon(delta))
        assert Ledger().gaussian(noise, rate, steps).epsilon(delta) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("noise", "rate"), GRID)
def test_epsilon_is_that_of_dp_accounting(noise: float, rate: float) -> None:
    """Equal at whole orders. At others dp-accounting adds the absolute values of an alternating series, so that its own bound is
    higher than the divergence; the test below checks ours there."""
    mechanism = GaussianDpEvent(noise)
    event = PoissonSampledDpEvent(rate, mechanism) if rate < 1 else mechanism
    for steps, delta in itertools.product((1, 50, 2000), (1e-5, 1e-3)):
        theirs = RdpAccountant(WHOLE).compose(SelfComposedDpEvent(event, steps)).get_epsilon(delta)
        mine = whole(Ledger().gaussian(noise, rate, steps)).epsilon(delta)
        if theirs > 0:  # it calls a divergence below delta^2 no divergence at all
            assert mine == pytest.approx(theirs, rel=1e-6)
        assert mine >= theirs * (1 - 1e-9)


@pytest.mark.parametrize(("noise", "rate"), [case for case in GRID if case[1] < 1])
def test_the_bounds_are_never_below_the_divergence(noise: float, rate: float) -> None:
    """Against the integral: log E[((1 - q) + q exp((2 z - 1) / (2 sigma^2)))^alpha] / (alpha - 1) for z ~ N(0, sigma^2)."""
    ledger = Ledger().gaussian(noise, rate)
    for order in (1.1, 1.5, 2.0, 2.7, 4.4, 9.3, 12.0):
        z = np.linspace(-40 * noise, 40 * noise + order, 400_001)
        ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * z - 1) / (2 * noise**2))
        logs = order * ratio - z**2 / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
        moment = logsumexp(logs) + math.log(z[1] - z[0])
        bound = ledger.rdp[ORDERS.index(order)]
        assert bound == pytest.approx(moment / (order - 1), rel=1e-5, abs=1e-9)


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
    assert Ledger().gaussian(2.0).epsilon(1e-5) > 0  # without sampling it is a closed form


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(-1.0, 0.1, 1), (1.0, 1.1, 1), (1.0, -0.1, 1), (1.0, 0.1, -1), (math.nan, 0.1, 1)]
)
def test_nonsense_is_refused(noise: float, rate: float, steps: int) -> None:
    with pytest.raises(ValueError, match="Gaussian mechanism"):
        Ledger().gaussian(noise, rate, steps)
