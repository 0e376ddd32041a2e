"""Which system to take, by how much, with what confidence, at what cost, and why: the rule and its wording.

Two systems are compared over the seeds that both finished. The differences of their final accuracies, seed by seed, have a mean
and a confidence interval (Student's t). The leading system is the winner if its interval against *each* of the others is above
zero. Because it must beat them all, the error stays at the interval's level for any number of systems, without a correction.

Seeds share the test set, so they do not show how much of a difference is due to the choice of test samples. Systems whose
accuracies differ by d on n samples disagree on at least d n of them. An interval is therefore never narrower than the deviation
of that number (McNemar's test at its most favourable). One patient of 84 does not make a winner, however many seeds agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedstill.report.distilled import distilled
from fedstill.report.numbers import LEVEL, count, fixed, half_interval, points, sequence, times
from fedstill.report.runs import Run
from fedstill.report.tables import Row

__all__ = ["LEVEL", "Difference", "Verdict", "paired", "verdict"]

ENOUGH = 5  # seeds; with fewer, more seeds may narrow the interval


@dataclass(frozen=True)
class Difference:
    """How much more accurate a system is than ``over``, on the seeds of both; a single seed has no interval."""

    over: str
    seeds: list[int]
    mean: float
    half: float | None  # of the interval's width
    coarse: bool = False  # the number of test samples, not of seeds, limits the interval

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.half is not None and abs(self.mean) > self.half

    @property
    def interval(self) -> str:
        """The interval as text, in points."""
        return f"{points(self.mean - (self.half or 0))} to {points(self.mean + (self.half or 0))}"


@dataclass(frozen=True)
class Verdict:
    """The recommendation; texts are empty if there is nothing to say."""

    kind: Literal["winner", "tie", "one seed", "nothing"]
    headline: str = ""
    sure: str = ""
    cost: str = ""
    why: str = ""
    line: str = ""  # everything in one line, for a terminal
    leader: str = ""
    differences: list[Difference] = field(default_factory=list)  # of the leader, the next best first


def paired(row: Row, other: Row) -> Difference | None:
    """``row`` against ``other``, seed by seed; None if they have no finished seed in common."""
    mine, its = _by_seed(row), _by_seed(other)
    seeds = sorted(mine.keys() & its.keys())
    if not seeds:
        return None
    differences = [mine[seed] - its[seed] for seed in seeds]
    mean, half = statistics.fmean(differences), half_interval(differences)
    least = _least(mean, row)
    if half is None or least <= half:
        return Difference(other.label, seeds, mean, half)
    return Difference(other.label, seeds, mean, least, coarse=True)


def _least(difference: float, row: Row) -> float:
    """Half of the narrowest interval that the test samples allow; 0 if no run says how many there are."""
    table = next((run.confusion for run in row.runs if run.confusion is not None), None)
    sizes = [sum(map(sum, matrix)) for matrix in table["domains"].values()] if table is not None else []
    if not sizes or not all(sizes):
        return 0.0
    samples = len(sizes) ** 2 / sum(1 / size for size in sizes)  # domains count equally, so samples of a small one count more
    return statistics.NormalDist().inv_cdf((1 + LEVEL) / 2) * math.sqrt(abs(difference) / samples)


def _by_seed(row: Row) -> dict[int, float]:
    """The final accuracies of the finished runs; the mean if a seed was run more than once."""
    found: dict[int, list[float]] = {}
    for run in _finished(row):
        if run.seed is not None and run.final_accuracy is not None:
            found.setdefault(run.seed, []).append(run.final_accuracy)
    return {seed: statistics.fmean(accuracies) for seed, accuracies in found.items()}


def _finished(row: Row) -> list[Run]:
    return [run for run in row.runs if run.finished]


def verdict(rows: Sequence[Row]) -> Verdict:
    """The verdict on systems, one per row."""
    if len(rows) < 2:
        return Verdict("nothing")
    able = [row for row in rows if _by_seed(row)]
    if len(able) < 2:
        return _said("nothing", "No verdict yet: fewer than two systems have finished a run.")
    if len({frozenset(row.domains) for row in able if row.domains}) > 1:
        return _said("nothing", "Not a comparison: the systems were not tested on the same domains.")
    pairs = {(a.label, b.label): paired(a, b) for a in able for b in able if a is not b}
    compared = [row for row in able if any((d := pairs[row.label, b.label]) and d.half is not None for b in able if b is not row)]
    if not compared:
        return _too_few(able, pairs)

    def ahead(row: Row) -> tuple[int, float]:
        """With missing seeds, means are over different seeds; so the leader is the system ahead of most others, seed by seed."""
        wins = sum((d := pairs[row.label, b.label]) is not None and d.mean > 0 for b in compared if b is not row)
        return wins, statistics.fmean(_by_seed(row).values())

    leader = max(compared, key=ahead)
    found = [pairs[leader.label, row.label] for row in able if row is not leader]
    differences = sorted((d for d in found if d is not None and d.half is not None), key=lambda d: d.mean)
    by_label = {row.label: row for row in rows}
    next_best = by_label[differences[0].over]
    equal = [d for d in differences if not (d.clear and d.mean > 0)]
    left_out = _left_out(rows, leader, differences)
    words = _tie(leader, equal, differences, by_label) if equal else _winner(leader, differences, next_best)
    return Verdict(
        kind="tie" if equal else "winner",
        headline=words.headline,
        sure=" ".join([words.sure, *left_out]),
        cost=words.cost,
        why=_why(leader, by_label[equal[0].over] if equal else next_best),
        line=words.line,
        leader=leader.label,
        differences=differences,
    )


@dataclass(frozen=True)
class _Words:
    headline: str
    sure: str
    cost: str
    line: str


def _winner(leader: Row, differences: Sequence[Difference], next_best: Row) -> _Words:
    least = differences[0]
    behind = "; all others are clearly behind too" if len(differences) > 1 else ""
    interval = f"{LEVEL:.0%} interval {least.interval}".replace("%", " %")
    seeds = count(len(least.seeds), "seed")
    cost = _cost(leader, next_best)
    return _Words(
        f"Take {leader.label}: {fixed(100 * least.mean, 2)} points more accurate than {least.over}, the next best.",
        f"Confidence: {interval} points, {seeds}, paired{behind}.",
        _sentence(cost, leader.label),
        f"take {leader.label}: {points(least.mean)} points over {least.over} ({interval}, {seeds})"
        + (f"; {' and '.join(cost)}" if cost else ""),
    )


def _tie(leader: Row, equal: Sequence[Difference], differences: Sequence[Difference], rows: dict[str, Row]) -> _Words:
    labels = [leader.label, *(d.over for d in equal)]
    behind = [d.over for d in differences if d.clear]
    first = equal[0]
    interval = f"{LEVEL:.0%} interval {first.interval}".replace("%", " %")
    seeds = count(len(first.seeds), "seed")
    clear = f" {sequence(behind)} {'is' if len(behind) == 1 else 'are'} clearly behind {leader.label}." if behind else ""
    few = " More seeds may separate them." if len(first.seeds) < ENOUGH else ""
    few = " The test samples are too few to separate them." if first.coarse else few
    # A system behind even a beaten one is equal only because its own seeds differ strongly: it is not recommended.
    beaten = min((d.mean for d in differences if d.clear), default=math.inf)
    good = [leader, *(rows[d.over] for d in equal if d.mean <= beaten)]
    cheapest, cost = _cheapest(good) if len(good) > 1 else ("", _sentence(_cost(leader, rows[first.over]), leader.label))
    return _Words(
        f"No clear winner between {sequence(labels)}.",
        f"Confidence: {leader.label} is {fixed(100 * first.mean, 2)} points ahead of {first.over}, {interval} points, {seeds}, "
        f"paired.{few}{clear}",
        cost,
        f"no clear winner between {sequence(labels)}: {points(first.mean)} points over {first.over} ({interval}, {seeds})"
        + (f"; the cheapest is {cheapest}" if cheapest else ""),
    )


def _too_few(able: Sequence[Row], pairs: dict[tuple[str, str], Difference | None]) -> Verdict:
    shared = any(pairs.values())
    best = max(able, key=lambda row: statistics.fmean(_by_seed(row).values()))
    figures = [f"{row.label} {fixed(100 * statistics.fmean(_by_seed(row).values()), 2)} %" for row in able]
    headline = "One seed: not a comparison." if shared else "No seed in common: not a comparison."
    done = distilled(_finished(best))
    return Verdict(
        "one seed",
        headline,
        sure=f"The result of one seed may be chance: {sequence(figures)}. Run several, e.g. --seeds 0,1,2.",
        why=_why(best, next(row for row in able if row is not best)) if done is not None and done.harm else "",
        line=f"{headline[0].lower()}{headline[1:-1]} ({', '.join(figures)})",
        leader=best.label,
    )


def _said(kind: Literal["nothing"], headline: str) -> Verdict:
    return Verdict(kind, headline, line=f"{headline[0].lower()}{headline[1:-1]}")


def _left_out(rows: Sequence[Row], leader: Row, differences: Sequence[Difference]) -> list[str]:
    """The systems that are not compared, or are compared on fewer seeds than the leader has."""
    compared = {leader.label} | {d.over for d in differences}
    alone = [row.label for row in rows if row.label not in compared]
    seeds = sorted(_by_seed(leader))
    fewer = [f"{d.over} (seeds {', '.join(map(str, d.seeds))})" for d in differences if len(d.seeds) < len(seeds)]
    unfinished = sum(row.unfinished for row in rows)
    said = []
    if alone:
        said.append(f"Not compared, because fewer than two seeds are shared with {leader.label}: {sequence(alone)}.")
    if fewer:
        said.append(f"{leader.label} has {count(len(seeds), 'seed')}, of which only some are shared with {sequence(fewer)}.")
    if unfinished:
        said.append(f"{count(unfinished, 'unfinished run')} left out.")
    return said


def _spent(row: Row) -> tuple[float | None, float | None]:
    """The mean bytes and seconds of the finished runs."""
    runs = _finished(row)
    sent = [run.bytes_total for run in runs if run.bytes_total is not None]
    seconds = [run.seconds for run in runs if run.seconds is not None]
    return statistics.fmean(sent) if sent else None, statistics.fmean(seconds) if seconds else None


def _cost(row: Row, other: Row) -> list[str]:
    """Traffic and time of ``row`` compared with ``other``."""
    (sent, seconds), (its_bytes, its_seconds) = _spent(row), _spent(other)
    said = []
    if sent is not None and its_bytes:
        said.append(
            f"sends {times(sent / its_bytes)}as much as {other.label} ({_megabytes(sent)} against {_megabytes(its_bytes)} MB)"
        )
    if seconds is not None and its_seconds:
        said.append(f"takes {times(seconds / its_seconds)}as long ({_seconds(seconds)} against {_seconds(its_seconds)} s)")
    return said


def _cheapest(rows: Sequence[Row]) -> tuple[str, str]:
    """Of equally accurate systems, the one that sends least, or the fastest within a fortieth of that; and what it saves."""
    spent = {row.label: _spent(row) for row in rows}
    if any(sent is None for sent, _ in spent.values()):
        return "", ""
    least = min(sent for sent, _ in spent.values() if sent is not None)
    alike = [row for row in rows if (spent[row.label][0] or 0.0) <= 1.025 * least]
    best = min(alike, key=lambda row: math.inf if (seconds := spent[row.label][1]) is None else seconds)
    other = next(row for row in rows if row is not best)
    return best.label, f"The cheapest of them is {best.label}: it {' and '.join(_cost(best, other))}."


def _sentence(cost: Sequence[str], label: str) -> str:
    return f"{label} {' and '.join(cost)}." if cost else ""


def _megabytes(size: float) -> str:
    return fixed(size / 1e6, 0 if size >= 1e8 else 1 if size >= 1e6 else 3)


def _seconds(seconds: float) -> str:
    return fixed(seconds, 0 if seconds >= 100 else 1)


def _figure(fraction: float) -> str:
    """Points in prose, with one decimal from a full point on and two below."""
    return fixed(100 * fraction, 1 if abs(fraction) >= 0.01 else 2)


def _why(leader: Row, other: Row) -> str:
    """One sentence from the histories on why the leader leads, possibly although its distillation costs points."""
    own, its = distilled(_finished(leader)), distilled(_finished(other))
    name = leader.label
    if own is not None and own.delivered:
        got = statistics.fmean(own.delivered)
        up = statistics.fmean(own.ensemble) if own.ensemble else None
        if own.harm or got < 0:
            return _although(leader, other)
        if up is not None and up > 0 and got > 0:
            kept = "all of them" if got >= up else f"{_figure(got)} of them"
            above = f"{_figure(up)} points above the average of the clients' models"
            return f"The ensemble of {name} is {above}, and the delivered model keeps {kept}."
        if got > 0:
            return f"Distillation adds {_figure(got)} points per round to the average of the clients' models in {name}."
    if own is None and its is not None and its.delivered:
        got = statistics.fmean(its.delivered)
        if got < 0 or its.harm:
            cost = min(got, statistics.fmean(its.carried))
            return f"{name} does not distil, and the distillation of {other.label} costs {_figure(-cost)} points per round."
        return f"{name} does not distil; {other.label} gains {_figure(got)} points per round by it, from a lower average."
    return _where(leader, other)


def _although(leader: Row, other: Row) -> str:
    """A system that is ahead although distillation costs it points."""
    own = distilled(_finished(leader))
    assert own is not None, "something was distilled"
    name, got, carried = leader.label, statistics.fmean(own.delivered), statistics.fmean(own.carried)
    if got >= 0:
        return (
            f"{name} leads although the model that it carries on is {_figure(-carried)} points worse than the average, by its "
            f"judge: it delivers another point of the line, {_figure(got)} points above the average."
        )
    merged = [
        next((line["merged_accuracy"] for line in reversed(run.history) if line.get("merged_accuracy") is not None), None)
        for run in _finished(leader)
    ]
    there = [value for value in merged if value is not None]
    above = statistics.fmean(there) - statistics.fmean(_by_seed(other).values()) if there else 0.0
    start = f"{name} leads although distillation costs it {_figure(-got)} points per round: "
    if above > 0:
        return start + (
            f"the average of its clients, which start from the distilled model, ends {_figure(above)} points above {other.label}."
        )
    return start + f"the last round's model is better than the rounds were on average, and {other.label} is behind it."


def _where(leader: Row, other: Row) -> str:
    """The domain on which the two differ most."""
    gaps = {d: leader.domains[d].mean - other.domains[d].mean for d in leader.domains if d in other.domains}
    if len(gaps) < 2:
        return ""
    domain = max(gaps, key=lambda d: gaps[d])
    return (
        f"{leader.label} is furthest ahead of {other.label} on {domain}: {points(gaps[domain], 1)} points."
        if gaps[domain] > 0
        else ""
    )
