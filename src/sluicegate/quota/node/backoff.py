"""`Backoff`: how long to wait before the next try to reach a central. Pure; times are seconds.

Doubles from 0.1 to 2 with each failure, with a jitter of half, so that a fleet does not come
back in step. No more than 2: a central that was started anew gives each user what it can only
when his nodes are back. A refusal that no try will change (a wrong token) waits 5 at once. A
connection that has held for a minute makes the next wait the shortest again; a shorter one does
not, or a central that takes each connection and drops it would be asked ten times a second.
"""

import random
from collections.abc import Callable

__all__ = ["Backoff"]

SHORTEST = 0.1
LONGEST = 2.0
REFUSED = 5.0
HEALTHY = 60.0


class Backoff:
    """`chance` gives numbers from 0 to 1: where in its range a wait lies."""

    def __init__(
        self,
        *,
        shortest: float = SHORTEST,
        longest: float = LONGEST,
        refused: float = REFUSED,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._shortest = self._next = shortest
        self._longest = longest
        self._refused = refused
        self._chance = chance

    def failed(self, *, lasted: float = 0.0, is_refused: bool = False) -> float:
        """The wait after a failure, or after the end of a connection that has `lasted` so long."""
        if lasted >= HEALTHY:
            self._next = self._shortest
        wait = self._refused if is_refused else self._next
        self._next = min(wait * 2.0, self._longest)
        return wait * (0.5 + 0.5 * self._chance())

    def __repr__(self) -> str:
        return f"Backoff(next={self._next:g})"
