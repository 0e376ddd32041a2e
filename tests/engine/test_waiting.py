"""The order in which clients get a worker: the longest first, and nobody waits at the end because another took too much."""

from __future__ import annotations

import heapq

import pytest

from fedstill.engine.waiting import Waiting


def ends(costs: list[float], workers: int) -> list[float]:
    """When each worker of a simulated exchange ends."""
    waiting = Waiting([{"cost": cost} for cost in costs], workers)
    first = [(0.0, number, waiting.take(), None) for number in range(workers)]
    queue = []
    for clock, number, job, _ in first:
        queue.append((clock + (job["cost"] if job else 0.0), number, waiting.ahead(job) if job else None))
    heapq.heapify(queue)
    done = [0.0] * workers
    while queue:
        clock, number, job = heapq.heappop(queue)
        done[number] = clock
        job = job or waiting.take()
        if job is not None:
            heapq.heappush(queue, (clock + job["cost"], number, waiting.ahead(job)))
    assert sum(done) == pytest.approx(sum(costs)), "every turn was taken once, and nobody paused"
    return done


@pytest.mark.parametrize(
    ("costs", "workers", "last"),
    [
        ([1.0] * 8, 2, 4.0),
        ([10.0, 9.0, 1.0, 1.0], 2, 11.0),  # the second long turn is not taken ahead by the worker that has the first
        ([1.0, 1.0, 9.0, 10.0, 1.0], 2, 11.0),
        ([3.0, 3.0, 2.0, 2.0, 2.0], 2, 7.0),  # as the longest first always gives; 6 would be possible
        ([1.0], 3, 1.0),
        ([5.0, 1.0, 1.0, 1.0, 1.0, 1.0], 3, 5.0),
    ],
)
def test_workers_end_together(costs: list[float], workers: int, last: float) -> None:
    assert max(ends(costs, workers)) == pytest.approx(last)


def test_what_a_lost_worker_had_got_ahead_is_next_unless_the_exchange_is_over() -> None:
    waiting = Waiting([{"client": name, "cost": 1.0} for name in "abcdef"], 2)
    now = waiting.take()
    assert now is not None
    ahead = waiting.ahead(now)
    assert ahead is not None
    waiting.give_back(ahead)
    assert waiting.take() is ahead
    waiting.close()
    waiting.give_back(ahead)
    assert waiting.take() is None
