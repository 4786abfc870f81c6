"""`RetiredCounters`: counters that were removed from a cluster.

The store has a total of each under this writer's name, and totals only grow. So a counter that is
made again goes on with what it had; one whose periods begin elsewhere waits until the last counts
of the earlier one are stored and the writer has a new name.
"""

import math
from typing import NamedTuple

from sluicegate.pacing._counter import ClusterCounter
from sluicegate.pacing.schedule import Schedule
from sluicegate.stores.store import KEEP_AFTER_END

__all__ = ["RetiredCounters"]

Identity = tuple[object, ...]

_MOST_KEPT = 10_000  # counters that may still come back
_SWEEP_INTERVAL = 60.0  # seconds between two looks for those the store has forgotten


class _Kept(NamedTuple):
    counter: ClusterCounter
    schedule: Schedule


class RetiredCounters:
    """The removed counters of one writer.

    The thread that syncs and those that make and remove counters may call it at the same time:
    each step leaves every counter in one of the tables.
    """

    def __init__(self) -> None:
        self._kept: dict[Identity, _Kept] = {}
        # Whose last counts are not stored yet, with the number of the removal.
        self._untold: dict[ClusterCounter, int] = {}
        # New counters, and the one with the same name at the store that goes first.
        self._waiting: dict[ClusterCounter, ClusterCounter] = {}
        self._removals = 0
        self._next_sweep = -math.inf

    def add(self, counter: ClusterCounter, schedule: Schedule | None, now: float) -> None:
        """Keep a counter, and have its last counts told."""
        self._removals += 1
        self._untold[counter] = self._removals
        if schedule is not None:
            self._kept[counter._key(*counter.span).identity] = _Kept(counter, schedule)
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_INTERVAL
            self._sweep(now)

    def find(self, identity: Identity, schedule: Schedule) -> ClusterCounter | None:
        """The counter that goes on if one is made with this schedule."""
        kept = self._kept.get(identity)
        return kept.counter if kept is not None and kept.schedule == schedule else None

    def take_back(self, identity: Identity, counter: ClusterCounter) -> None:
        """A counter that was found is in use again."""
        self._untold.pop(counter, None)
        self._kept.pop(identity, None)

    def let_wait(self, identity: Identity, counter: ClusterCounter) -> None:
        """Let a new counter wait for the one that has its name at the store, if there is one."""
        kept = self._kept.get(identity)
        if kept is not None:
            self._waiting[counter] = kept.counter
            del self._kept[identity]

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def is_waiting(self, counter: ClusterCounter) -> bool:
        """Whether this writer must not tell of a counter yet."""
        return counter in self._waiting

    def end_waits(self) -> bool:
        """Whether the writer must take a new name now. It ends the waits that were for that."""
        ready = [new for new, old in list(self._waiting.items()) if old not in self._untold]
        for counter in ready:
            del self._waiting[counter]
        return bool(ready) or len(self._kept) - len(self._untold) > _MOST_KEPT

    def forget_told(self) -> None:
        """The writer has a new name: the store has totals of nothing that was told before."""
        for identity, kept in list(self._kept.items()):
            if kept.counter not in self._untold:
                self._kept.pop(identity, None)

    def untold(self) -> list[tuple[ClusterCounter, int]]:
        """The counters to tell of, each with the number of its removal."""
        return [one for one in list(self._untold.items()) if one[0] not in self._waiting]

    def told(self, stored: list[tuple[ClusterCounter, int]]) -> None:
        """The store has these. One that was used and removed again since has more to tell."""
        for counter, removal in stored:
            if self._untold.get(counter) == removal:
                self._untold.pop(counter, None)

    def counters(self) -> list[ClusterCounter]:
        return [*(kept.counter for kept in list(self._kept.values())), *list(self._untold)]

    def clear(self) -> None:
        self._kept.clear()
        self._untold.clear()
        self._waiting.clear()

    def _sweep(self, now: float) -> None:
        """Forget counters of periods that the store has forgotten. Those without end it keeps."""
        for identity, (counter, _) in list(self._kept.items()):
            end = counter.span[1]
            if end and end + KEEP_AFTER_END < now and counter not in self._untold:
                self._kept.pop(identity, None)
