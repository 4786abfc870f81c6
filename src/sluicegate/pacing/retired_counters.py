"""`RetiredCounters`: counters that were removed from a cluster.

The store has a total of each under this writer's name, and totals only grow. So a counter that is
made again goes on with what it had.
"""

import math

from sluicegate.pacing._counter import ClusterCounter
from sluicegate.stores.store import KEEP_AFTER_END

__all__ = ["RetiredCounters"]

Identity = tuple[object, ...]

_MOST_KEPT = 10_000  # counters that may still come back
_SWEEP_INTERVAL = 60.0  # seconds between two looks for those the store has forgotten


class RetiredCounters:
    """The removed counters of one writer.

    The thread that syncs and those that make and remove counters may call it at the same time:
    each step leaves every counter in one of the tables.
    """

    def __init__(self) -> None:
        self._kept: dict[Identity, ClusterCounter] = {}
        # Whose last counts are not stored yet, with the number of the removal.
        self._untold: dict[ClusterCounter, int] = {}
        self._removals = 0
        self._next_sweep = -math.inf

    def add(self, counter: ClusterCounter, now: float) -> None:
        """Keep a counter, and have its last counts told."""
        self._removals += 1
        self._untold[counter] = self._removals
        self._kept[counter._key(*counter.span).identity] = counter
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_INTERVAL
            self._sweep(now)

    def take_back(self, identity: Identity) -> ClusterCounter | None:
        """The counter that goes on if one of this identity is made, which is in use again."""
        kept = self._kept.pop(identity, None)
        if kept is not None:
            self._untold.pop(kept, None)
        return kept

    @property
    def is_full(self) -> bool:
        """Whether there are too many. Under a new name the writer may forget those it has told."""
        return len(self._kept) - len(self._untold) > _MOST_KEPT

    def forget_told(self) -> None:
        """The writer has a new name: the store has totals of nothing that was told before."""
        for identity, counter in list(self._kept.items()):
            if counter not in self._untold:
                self._kept.pop(identity, None)

    def untold(self) -> list[tuple[ClusterCounter, int]]:
        """The counters to tell of, each with the number of its removal."""
        return list(self._untold.items())

    def told(self, stored: list[tuple[ClusterCounter, int]]) -> None:
        """The store has these. One that was used and removed again since has more to tell."""
        for counter, removal in stored:
            if self._untold.get(counter) == removal:
                self._untold.pop(counter, None)

    def counters(self) -> list[ClusterCounter]:
        return [*list(self._kept.values()), *list(self._untold)]

    def clear(self) -> None:
        self._kept.clear()
        self._untold.clear()

    def _sweep(self, now: float) -> None:
        """Forget counters of periods that the store has forgotten. Those without end it keeps."""
        for identity, counter in list(self._kept.items()):
            end = counter.span[1]
            if end and end + KEEP_AFTER_END < now and counter not in self._untold:
                self._kept.pop(identity, None)
