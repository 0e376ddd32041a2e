"""The clients of an exchange that wait for a worker process, and the order in which they get one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Job", "Paces", "Waiting"]

Job = Mapping[str, Any]


class Paces:
    """Seconds per sample of each kind of turn, as last measured. They set the order of turns, never their results.

    >>> paces = Paces()
    >>> paces.cost("mlp", 10)  # nothing is known: only samples count
    10.0
    >>> paces.note("mlp", 10, 0.5)
    >>> paces.cost("mlp", 20), paces.cost("resnet8", 20)
    (1.0, 1.0)
    """

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def note(self, kind: str, samples: int, seconds: float) -> None:
        """A turn of this kind took so long."""
        self._known[kind] = seconds / max(1, samples)

    def cost(self, kind: str, samples: int) -> float:
        """How long a turn will take; one of an unknown kind as long as others on average."""
        known = self._known or {kind: 1.0}
        return samples * known.get(kind, sum(known.values()) / len(known))


class Waiting:
    """Hands out the longest turns first, so that all workers end at about the same time. A worker can get its next turn before
    the present one ends, and then need not wait for its parent in between; the last turns go to whoever is free.

    >>> waiting = Waiting([{"client": name, "cost": 1.0} for name in "abcde"], workers=2)
    >>> now = waiting.take()
    >>> now["client"], waiting.ahead(now)["client"], waiting.take()["client"]
    ('a', 'b', 'c')
    >>> waiting.ahead({"cost": 1.0}) is None  # two wait: if another worker took one of them, it would end as late
    True
    """

    def __init__(self, jobs: Sequence[Job], workers: int):
        self._jobs = deque(sorted(jobs, key=lambda job: -job["cost"]))  # stable: equal ones stay in order
        self._others = workers - 1
        self._left = sum(job["cost"] for job in jobs)
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Job | None:
        """The next turn, for a worker that is free; None if there is none."""
        with self._lock:
            return self._pop()

    def ahead(self, present: Job) -> Job | None:
        """The next turn for a worker that has just begun ``present``, if the others have enough to do until it would end."""
        with self._lock:
            if not self._jobs:
                return None
            following = self._jobs[0]["cost"]
            busy = self._left - following >= self._others * (present["cost"] + following)
            return self._pop() if busy else None

    def _pop(self) -> Job | None:
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        self._left -= job["cost"]
        return job

    def give_back(self, job: Job) -> None:
        """A worker ended before it began this turn, which is the next one again."""
        with self._lock:
            if not self._closed:
                self._jobs.appendleft(job)
                self._left += job["cost"]

    def close(self) -> None:
        """Nobody gets a further turn."""
        with self._lock:
            self._closed = True
            self._jobs.clear()
