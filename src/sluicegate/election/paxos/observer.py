"""`Observer`: who leads, as far as a member has heard. For people and logs; no vote depends on it.

Leaders tell it: when they have won, after each renewal, and when they release. What an acceptor
has stored would not do: it may be the lease of an attempt that failed elsewhere.
"""

from sluicegate.election.paxos.messages import Ballot, Leading, Release
from sluicegate.election.paxos.timing import Timing

__all__ = ["Observer"]


class Observer:
    """Times are those of the local clock."""

    __slots__ = ("_ballot", "_lease", "epoch", "until")

    def __init__(self, timing: Timing) -> None:
        self.epoch = 0
        """Of the latest leadership that was heard of; it only grows."""
        self.until = float("-inf")
        """Until when its leader leads at the latest, if it is not heard of again."""
        self._ballot: Ballot | None = None
        self._lease = timing.lease

    def __repr__(self) -> str:
        return f"Observer({self._ballot}, epoch={self.epoch}, until={self.until:.3f})"

    def leader(self, now: float) -> str | None:
        return self._ballot.node if self._ballot is not None and now < self.until else None

    def hear(self, now: float, message: Leading | Release) -> bool:
        """Note what a leader says. Returns whether it was news."""
        known = self._ballot
        if isinstance(message, Release):
            if known is None or known.incarnation != message.ballot.incarnation:
                return False
            if message.ballot < known:
                return False  # of an attempt before the one that has won
            self._ballot = message.ballot
            self.until = float("-inf")
            return True
        if message.epoch < self.epoch:
            return False  # of an earlier leadership
        if message.epoch == self.epoch and known is not None and message.ballot <= known:
            return False  # a later renewal, or the release, was heard before
        self.epoch = message.epoch
        self._ballot = message.ballot
        self.until = now + self._lease
        return True
