"""Spent privacy budgets: the field ``privacy`` of a round's line and of the summary, and the same in words.

The field has an entry for each mechanism: ``client`` (the server noises the clients' updates), ``sample`` (clients train with
noise) and ``reports`` (clients noise what they send besides weights). Every entry has ``epsilon`` and ``delta``, spent over all
rounds so far, and ``covers``, what they hold for, in words.

With ``sample`` and ``reports`` each client keeps its own ledger and sends the value ``epsilon``, what it has spent so far. Then
``clients`` has the epsilon of each, and ``epsilon`` is the largest. A client has one ledger: with both, ``sample`` has the entry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # slow: imports pydantic and torch
    from fedstill.config.tables import Privacy

__all__ = ["NAMES", "budget_words", "client_budgets", "kept_by_clients", "said_epsilon"]

NAMES = {
    "client": "client-level differential privacy",
    "sample": "sample-level differential privacy",
    "reports": "sample-level differential privacy of reports",
}

COVERS = {
    "sample": "it covers the weights that each client sent, for each of its samples, against everyone, also the server",
    "reports": "it covers what each client sent besides weights, for each of its samples; weights, losses and numbers of samples "
    "have no noise",
    "sample and reports": "it covers the weights and reports that each client sent, for each of its samples, against everyone, "
    "also the server; the mean loss is withheld, and numbers of samples are public",
}
SEEDED = "; those who know the seed can subtract the noise"


def kept_by_clients(
    before: Mapping[str, Any] | None, now: Mapping[str, float], delta: float, covers: str
) -> dict[str, Any] | None:
    """The entry of a mechanism whose ledgers the clients keep: what this round's clients say that they have spent so far, and
    what others said before. None if nobody has said anything yet.

    >>> first = kept_by_clients(None, {"a": 1.0, "b": 1.5}, 1e-5, "it covers x")
    >>> kept_by_clients(first, {"a": 2.0}, 1e-5, "it covers x")
    {'epsilon': 2.0, 'delta': 1e-05, 'clients': {'a': 2.0, 'b': 1.5}, 'covers': 'it covers x'}
    """
    clients = {**((before or {}).get("clients") or {}), **now}
    if not clients:
        return None
    return {"epsilon": max(clients.values()), "delta": delta, "clients": dict(sorted(clients.items())), "covers": covers}


def client_budgets(privacy: Privacy, now: Mapping[str, float], last: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The entry of the mechanisms whose ledgers the clients keep, after a round: ``now`` is what its clients said, ``last`` the
    line before it."""
    kinds = [kind for kind in ("sample", "reports") if getattr(privacy, kind, None) is not None]
    if not kinds:
        return {}
    before = ((last or {}).get("privacy") or {}).get(kinds[0])
    covers = COVERS[" and ".join(kinds)] + ("" if all(getattr(privacy, kind).secret for kind in kinds) else SEEDED)
    entry = kept_by_clients(before, now, getattr(privacy, kinds[0]).delta, covers)
    return {kinds[0]: entry} if entry is not None else {}


def budget_words(privacy: Any) -> list[str]:
    """What was spent, one sentence for each mechanism; an entry that is damaged is left out.

    >>> budget_words({"client": {"epsilon": 2.345, "delta": 1e-05, "covers": "it covers x"}})
    ['client-level differential privacy: epsilon 2.35 at delta 1e-05; it covers x']
    >>> budget_words(kept and {"sample": kept} if (kept := kept_by_clients(None, {"a": 1.0, "b": 0.5}, 1e-5, "x")) else {})
    ['sample-level differential privacy: epsilon at most 1 for each of 2 clients at delta 1e-05; x']
    >>> budget_words(None), budget_words({"client": {"epsilon": "much"}})
    ([], [])
    """
    found = []
    for kind, entry in privacy.items() if isinstance(privacy, Mapping) else ():
        epsilon, delta = (entry.get(name) if isinstance(entry, Mapping) else None for name in ("epsilon", "delta"))
        if not (_is_number(epsilon) and _is_number(delta)):
            continue
        clients = entry.get("clients")
        each = isinstance(clients, Mapping) and len(clients) > 0
        said = f"epsilon at most {epsilon:.3g} for each of {len(clients)} clients" if each else f"epsilon {epsilon:.3g}"
        covers = f"; {entry['covers']}" if isinstance(entry.get("covers"), str) else ""
        found.append(f"{NAMES.get(str(kind), str(kind))}: {said} at delta {delta:g}{covers}")
    return found


def said_epsilon(values: Mapping[str, Any]) -> float | None:
    """What a reply's values say that its client has spent; None if they say nothing, or no number.

    >>> said_epsilon({"epsilon": 1.5}), said_epsilon({"epsilon": "much"})
    (1.5, None)
    """
    found = values.get("epsilon")
    return float(found) if found is not None and _is_number(found) and float(found) >= 0 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
