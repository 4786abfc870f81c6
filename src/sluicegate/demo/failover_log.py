"""`FailoverLog`: which of several centrals leads, and how long it took until another one did.

It is told of each answer in which a central says that it leads. A new epoch is a new leadership.
The time without a leader lasts

    from  the last moment at which the former leader was seen to lead: before that question was sent
    to    the first moment at which the next one was seen to lead: after that answer was received

So it is never shown too short, and too long by the time between two questions at either end, and by
what the answers took. While the epoch stays the same there was a leader all along, however late
its answers were: epochs only grow, and a leadership that was lost is never resumed.

Times are seconds of the monotonic clock. Several threads may tell it of answers.
"""

import math
import threading
from collections.abc import Set
from dataclasses import dataclass

__all__ = ["LONGEST_FAILOVER", "Failover", "FailoverLog", "LeaderSeen"]

LONGEST_FAILOVER = 5.0  # seconds: what an election may take once a majority runs
_UNSEEN = 0.5  # seconds after the last answer of a leader in which it is believed to lead


@dataclass(frozen=True, slots=True)
class LeaderSeen:
    """The newest leadership, and the last moment at which it was seen."""

    name: str
    epoch: int
    last: float


@dataclass(frozen=True, slots=True)
class Failover:
    """A change of the leader. A central that lost its majority may lead again: `old` is `new`."""

    old: str
    new: str
    epoch: int
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class FailoverLog:
    """The changes of the leader, in order. `leader` and `failovers` are immutable values."""

    def __init__(self) -> None:
        self.leader: LeaderSeen | None = None
        self.failovers: tuple[Failover, ...] = ()
        self._lock = threading.Lock()

    def saw_leader(self, name: str, epoch: int, asked: float, answered: float) -> None:
        """A central was asked, and has answered that it leads."""
        with self._lock:
            old = self.leader
            if old is not None and epoch < old.epoch:
                return  # answered by a former leader, and read late
            if old is not None and epoch == old.epoch:
                self.leader = LeaderSeen(name, epoch, max(old.last, asked))
                return
            if old is not None:
                change = Failover(old.name, name, epoch, old.last, max(answered, old.last))
                self.failovers = (*self.failovers, change)
            self.leader = LeaderSeen(name, epoch, asked)

    def leaderless_seconds(self, begin: float, now: float) -> Set[int]:
        """The seconds since `begin` in which no central led, LONGEST_FAILOVER of each time."""
        spans = [(each.begin, each.end) for each in self.failovers]
        if self.leader is not None and now - self.leader.last > _UNSEEN:
            spans.append((self.leader.last, now))
        numbers: set[int] = set()
        for first, last in spans:
            end = min(last, first + LONGEST_FAILOVER)
            numbers.update(range(max(math.floor(first - begin), 0), math.ceil(end - begin)))
        return numbers
