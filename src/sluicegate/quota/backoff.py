"""`Backoff`: the delay before the next attempt to connect to a central. Times are seconds; no I/O.

Doubles from 0.1 to 2 with each failure, with a jitter of half, so that a fleet does not come
back in step. No more than 2: a restarted central can give each user its full limit only when all
nodes are back. A permanent failure, like a wrong token, waits 5 at once. A
connection that has held for a minute makes the next wait the shortest again; a shorter one does
not, or a central that takes each connection and drops it would get ten connections a second.
"""

import random
from collections.abc import Callable

__all__ = ["Backoff"]

SHORTEST = 0.1
LONGEST = 2.0
PERMANENT = 5.0
HEALTHY = 60.0


class Backoff:
    """`jitter` returns numbers from 0 to 1: where in its range a delay lies."""

    def __init__(
        self,
        *,
        shortest: float = SHORTEST,
        longest: float = LONGEST,
        permanent: float = PERMANENT,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._shortest = self._next = shortest
        self._longest = longest
        self._permanent = permanent
        self._jitter = jitter

    def next_delay(self, *, lasted: float = 0.0, is_permanent: bool = False) -> float:
        """The delay after a failure, or after a connection that `lasted` some seconds."""
        if lasted >= HEALTHY:
            self._next = self._shortest
        wait = self._permanent if is_permanent else self._next
        self._next = min(wait * 2.0, self._longest)
        return wait * (0.5 + 0.5 * self._jitter())

    def __repr__(self) -> str:
        return f"Backoff(next={self._next:g})"
