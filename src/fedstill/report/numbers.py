"""Numbers as text: signs, points, ratios, and the interval of a mean; never a negative zero."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["LEVEL", "count", "fixed", "half_interval", "points", "sequence", "times"]

MINUS = "−"
LEVEL = 0.95  # of the intervals


def fixed(value: float, digits: int) -> str:
    """``value`` with ``digits`` decimals, without a negative zero.

    >>> fixed(-0.001, 2), fixed(-1.5, 1)
    ('0.00', '-1.5')
    """
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def points(fraction: float, digits: int = 2) -> str:
    """A difference of accuracies in points, with its sign.

    >>> points(0.0123), points(-0.0123), points(-0.000001)
    ('+1.23', '−1.23', '0.00')
    """
    text = fixed(100 * fraction, digits)
    if float(text) == 0:
        return text
    return text.replace("-", MINUS) if text.startswith("-") else f"+{text}"


def times(ratio: float) -> str:
    """A ratio to be followed by 'as much'; empty if it is about 1.

    >>> times(2.04), times(1.01), times(0.5), times(0.001), times(120.0)
    ('2.0 times ', '', '0.50 times ', '0.001 times ', '120 times ')
    """
    if 0.975 < ratio < 1.025:
        return ""
    text = (
        f"{ratio:.0f}"
        if ratio >= 10
        else f"{ratio:.1f}"
        if ratio >= 1.05
        else f"{ratio:.2f}"
        if ratio >= 0.01
        else f"{ratio:.1g}"
    )
    return f"{text} times "


def count(n: int, noun: str) -> str:
    """A number with its noun, in the plural if needed.

    >>> count(1, "seed"), count(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def sequence(words: Sequence[str]) -> str:
    """Words as a list in a sentence.

    >>> sequence(["a"]), sequence(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def half_interval(values: Sequence[float]) -> float | None:
    """Half of the width of the confidence interval of the mean (Student's t); None for a single value.

    >>> round(half_interval([1.0, 2.0, 3.0]), 3), half_interval([1.0])
    (2.484, None)
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # slow, and most callers do not need it

    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * error
