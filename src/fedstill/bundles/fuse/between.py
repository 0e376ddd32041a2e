"""The fused model: the student, or a point between it and the average of the teachers that it started from.

A pool is seldom like all sites' data, and a student learns what the teachers say about the pool at the cost of the rest. Half way
back to the average it has most of what it learned and most of what it had (docs/fuse.md has the figures).
"""

from __future__ import annotations

from typing import Literal

from fedstill.bundles.fuse.figures import Sets
from fedstill.core.message import State, clone
from fedstill.fusion.line import delivered_point, point
from fedstill.models.network import Network
from fedstill.models.predict import accuracy

__all__ = ["HALF", "POINTS", "settled"]

HALF = 0.5  # where nobody can judge
POINTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def settled(network: Network, start: State, line: float | Literal["auto"], sets: Sets) -> float:
    """Replace the student in ``network`` by the chosen point between ``start`` and itself, and return the point.

    ``auto`` takes the best of a few points by the mean accuracy on the labelled sets, and half way if there are none.
    """
    student = clone(network.state_dict())
    if line == "auto":
        line = HALF
        if sets:
            scores = []
            for t in POINTS:
                network.load_state_dict(point(start, student, t))
                scores.append(sum(accuracy(network, samples) for samples in sets.values()) / len(sets))
            line = delivered_point(POINTS, scores)
    network.load_state_dict(point(start, student, line))
    return line
