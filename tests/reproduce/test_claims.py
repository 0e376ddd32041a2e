"""The rule that decides about a paper's claims, on figures whose verdict is known."""

from __future__ import annotations

import pytest

from fedstill.reproduce import studies
from fedstill.reproduce.claims import Claim, claims, judge

BETTER = Claim("P", "A is better than B", "s", (("A", "B"),))


def record(scale="tiny", **rows):
    return {"scale": scale, "cells": [{"row": row, "column": "x", "ours": list(ours)} for row, ours in rows.items()]}


@pytest.mark.parametrize(
    ("mine", "its", "kind"),
    [
        ((0.90, 0.91, 0.92), (0.80, 0.82, 0.81), "shown"),
        ((0.80, 0.82, 0.81), (0.90, 0.91, 0.92), "not shown"),
        ((0.90, 0.80, 0.85), (0.85, 0.86, 0.80), "undecided"),  # differences 0.05, -0.06, 0.05
        ((0.90,), (0.10,), "undecided"),  # one seed has no interval
        ((None, None), (0.8, 0.8), "not comparable"),  # its runs failed
    ],
)
def test_better_is_decided_by_the_paired_interval(mine, its, kind):
    assert judge(BETTER, record(A=mine, B=its)).kind == kind


def test_differences_are_paired_by_seed():
    """Seeds that differ by 0.3 do not hide a difference of 0.01 in each of them."""
    verdict = judge(BETTER, record(A=(0.51, 0.81, 0.662), B=(0.50, 0.80, 0.65)))
    assert verdict.kind == "shown"
    assert "+0.011 ± 0.003 (3 seeds)" in verdict.why  # 0.01, 0.01, 0.012: deviation 0.00115, t 4.303


def test_all_pairs_must_hold_and_one_against_decides():
    claim = Claim("P", "A is better than B and C", "s", (("A", "B"), ("A", "C")))
    rows = {"A": (0.9, 0.91), "B": (0.8, 0.81)}
    assert judge(claim, record(**rows, C=(0.7, 0.71))).kind == "shown"
    assert judge(claim, record(**rows, C=(0.95, 0.96))).kind == "not shown"
    assert judge(claim, record(**rows)).kind == "undecided"  # nothing is known of C


def test_equal_within_a_margin():
    claim = Claim("P", "A is like B", "s", (("A", "B"),), margin=0.02)
    assert judge(claim, record(A=(0.90, 0.91, 0.90), B=(0.90, 0.905, 0.90))).kind == "shown"
    assert judge(claim, record(A=(0.90, 0.91, 0.90), B=(0.80, 0.81, 0.80))).kind == "not shown"
    assert judge(claim, record(A=(0.90, 0.80, 0.90), B=(0.80, 0.90, 0.90))).kind == "undecided"


def test_rounds_are_better_if_fewer_and_a_target_never_reached_is_worst():
    claim = Claim("P", "A is faster", "s", (("A", "B"),), lower=True)
    assert judge(claim, record(A=(5, 6), B=(9, 10))).kind == "shown"
    assert judge(claim, record(A=(5, 6), B=(None, None))).kind == "undecided"  # 7 - 5 and 7 - 6: too near
    assert judge(claim, record(A=(2, 2), B=(None, 9))).kind == "shown"
    assert judge(claim, record(A=(None, None), B=(None, None))).kind == "not comparable"


def test_pairs_of_columns_and_scales_that_cannot_test():
    claim = Claim("P", "x is better than y", "s", (("x", "y"),), axis="column", only_paper="needs DomainNet")
    cells = [{"row": "A", "column": c, "ours": ours} for c, ours in (("x", [0.9, 0.91]), ("y", [0.8, 0.81]))]
    assert judge(claim, {"scale": "paper", "cells": cells}).kind == "shown"
    assert judge(claim, {"scale": "small", "cells": cells}).kind == "not comparable"
    assert judge(claim, None).kind == "not comparable"


def test_every_claim_names_a_study():
    assert {claim.study for claim in claims()} <= studies().keys()
    assert {"FedDF", "FedD3A", "DaFKD", "KDCL"} <= {claim.paper for claim in claims()}
