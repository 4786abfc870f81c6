"""The time of a simulation: what happens next, and the random numbers.

`World` is a queue of acts in virtual time. Of two acts at the same moment the one that was
planned first comes first, so a run does not depend on how anything compares. There are four
rng, for the network, the traffic, the faults and the election: each has its own random stream, so
that one more message does not change who sends what.

Times are seconds since the simulation began.
"""

import math
import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

__all__ = ["World"]


class World:
    """A virtual clock and what is planned on it."""

    __slots__ = ("_planned", "_queue", "election", "faults", "network", "now", "seed", "traffic")

    def __init__(self, seed: int = 0) -> None:
        self.now = 0.0
        self.seed = seed
        # A string is hashed with SHA-512 here, the same in every process.
        self.network = random.Random(f"network {seed}")
        self.traffic = random.Random(f"traffic {seed}")
        self.faults = random.Random(f"faults {seed}")
        self.election = random.Random(f"election {seed}")
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, time: float, act: Callable[..., object], *arguments: Any) -> None:
        """Plan `act(*arguments)` for `time`; what is late already comes next."""
        self._planned = number = self._planned + 1
        heappush(self._queue, (time if time > self.now else self.now, number, act, arguments))

    @property
    def next_time(self) -> float:
        """When the next act is planned; infinite if none is."""
        return self._queue[0][0] if self._queue else math.inf

    def run(self, end: float) -> None:
        """Do all that is planned before `end`, in order, and then set the clock to it."""
        queue = self._queue
        while queue and queue[0][0] < end:
            self.now, _, act, arguments = heappop(queue)
            act(*arguments)
        self.now = max(self.now, end)

    def __repr__(self) -> str:
        return f"World(now={self.now:.3f} s, seed={self.seed}, planned={len(self._queue)})"
