"""The papers' claims as data, and the rule that decides whether a study's figures show them.

A claim says that some rows (or columns) of a table are better than others, or equal within a margin. For each pair the
differences are taken seed by seed, as the mean over the other axis. Their mean has a 95% interval (Student's t over seeds). The
claim is *shown* if every interval is above zero (within the margin, for equality), *not shown* if one is below zero (outside the
margin), and *undecided* otherwise, also with a single seed. It is *not comparable* if figures are missing, if neither system
reached its target, or if the claim names a reason why a smaller scale cannot test it. Rounds are better if they are fewer; a
target that one of the two never reached counts as one round more than the table's largest figure.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from fedstill.report.numbers import half_interval

__all__ = ["Claim", "Verdict", "claims", "judge", "verdicts"]

Kind = Literal["shown", "not shown", "undecided", "not comparable"]


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper, and the comparison that tests it."""

    paper: str
    words: str
    study: str
    pairs: tuple[tuple[str, str], ...]  # (better, worse) or, with a margin, (one, other)
    axis: Literal["row", "column"] = "row"  # what the pairs name
    at: tuple[str, ...] = ()  # the places on the other axis; all that both have if empty
    margin: float | None = None  # equal within this, instead of better
    lower: bool = False  # smaller figures are better
    only_paper: str = ""  # why scales below the paper's cannot test it


@dataclass(frozen=True)
class Verdict:
    """What a study's figures say of a claim."""

    claim: Claim
    kind: Kind
    why: str


@cache
def claims() -> tuple[Claim, ...]:
    """All claims, paper by paper.

    >>> claims()[0].paper
    'FedDF'
    """
    found = tomllib.loads((Path(__file__).parent / "claims.toml").read_text())["claim"]
    papers = list(dict.fromkeys(one["paper"] for one in found))
    return tuple(_claim(one) for one in sorted(found, key=lambda one: papers.index(one["paper"])))


def _claim(one: Mapping[str, Any]) -> Claim:
    pairs = tuple((str(a), str(b)) for a, b in one["pairs"])
    return Claim(**{**one, "pairs": pairs, "at": tuple(one.get("at", ()))})


def judge(claim: Claim, record: Mapping[str, Any] | None) -> Verdict:
    """The verdict on a claim from a study's record (``cells.json``), or without one.

    >>> claim = Claim("P", "A is better than B", "s", (("A", "B"),))
    >>> cells = [{"row": "A", "column": "x", "ours": [0.9, 0.92]}, {"row": "B", "column": "x", "ours": [0.8, 0.81]}]
    >>> judge(claim, {"scale": "tiny", "cells": cells}).kind
    'shown'
    """
    if record is None:
        return Verdict(claim, "not comparable", "the study was not run")
    if claim.only_paper and record["scale"] != "paper":
        return Verdict(claim, "not comparable", claim.only_paper)
    found = [_compare(claim, pair, record["cells"]) for pair in claim.pairs]
    known = [one for one in found if one is not None]
    if not known:
        return Verdict(claim, "not comparable", "figures are missing, or no target was reached")
    texts = "; ".join(text for _, text in known)
    kinds = {kind for kind, _ in known}
    kind: Kind = "not shown" if "not shown" in kinds else "shown" if kinds == {"shown"} and None not in found else "undecided"
    return Verdict(claim, kind, texts)


def _compare(claim: Claim, pair: tuple[str, str], cells: Sequence[Mapping[str, Any]]) -> tuple[Kind, str] | None:
    """One pair's verdict and its words; None if there is nothing to compare."""
    other = "column" if claim.axis == "row" else "row"
    by_place = {(cell[claim.axis], cell[other]): cell["ours"] for cell in cells if cell["ours"]}
    first, second = pair
    wanted = claim.at or tuple(dict.fromkeys(cell[other] for cell in cells))
    places = [place for place in wanted if (first, place) in by_place and (second, place) in by_place]
    if not places or (claim.at and len(places) < len(claim.at)):
        return None
    never = 1 + max((v for values in by_place.values() for v in values if v is not None), default=0.0)
    differences = []
    for seed in range(min(len(by_place[name, place]) for place in places for name in pair)):
        one = [(by_place[first, place][seed], by_place[second, place][seed]) for place in places]
        reached = [(a, b) for a, b in one if a is not None or b is not None]
        if not claim.lower and any(a is None or b is None for a, b in one):
            continue  # a run failed
        if reached:
            sign = -1 if claim.lower else 1
            differences.append(sign * fmean(_number(a, never) - _number(b, never) for a, b in reached))
    if not differences:
        return None
    mean, half = fmean(differences), half_interval(differences)
    gain = -mean if claim.lower else mean
    said = f"{first} - {second} = {gain:+.3f}"
    if half is None:
        return "undecided", f"{said} (one seed)"
    text = f"{said} ± {half:.3f} ({len(differences)} seeds)"
    low, high = mean - half, mean + half
    if claim.margin is None:
        return ("shown" if low > 0 else "not shown" if high < 0 else "undecided"), text
    inside, outside = low >= -claim.margin and high <= claim.margin, low > claim.margin or high < -claim.margin
    return ("shown" if inside else "not shown" if outside else "undecided"), f"{text}, margin {claim.margin:g}"


def _number(value: float | None, never: float) -> float:
    return never if value is None else value


def verdicts(records: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """The verdicts on all claims, from the records of the studies that were run."""
    return [judge(claim, records.get(claim.study)) for claim in claims()]
