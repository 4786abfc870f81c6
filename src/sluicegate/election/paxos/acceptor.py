"""`Acceptor`: the vote of one member, without I/O.

It has one vote for one lease at a time, and keeps it for longer than the leader leads: nobody else
gets this vote until the lease has ended by the acceptor's own clock, or was released. A majority of
such votes cannot be had twice.

What it promised and accepted is in memory only. So after a start it waits in quarantine until
everything that it may have forgotten has ended. Its epoch is durable: the caller writes it to the
disk before an answer that depends on it is sent.
"""

from typing import NamedTuple

from sluicegate.election.paxos.messages import (
    LOWEST,
    MAX_COUNTER_STEP,
    Accept,
    Accepted,
    Answer,
    Ballot,
    Message,
    Prepare,
    Promise,
    Reject,
    Release,
)
from sluicegate.election.paxos.timing import Timing

__all__ = ["Acceptor", "Reply"]


class Reply(NamedTuple):
    """An answer, and the epoch that must be durable before it is sent (0: none)."""

    answer: Answer
    durable_epoch: int = 0


class Acceptor:
    """`now`: the time of its start; `epoch`: as it was read from the disk.

    Times are those of the local clock.
    """

    __slots__ = ("epoch", "held_until", "holder", "promised", "quarantined_until", "timing")

    def __init__(self, now: float, epoch: int, timing: Timing) -> None:
        self.timing = timing
        self.epoch = epoch
        """The highest epoch that it has accepted in all its lives."""
        self.promised = LOWEST
        """Lower ballots are rejected."""
        self.holder: Ballot | None = None
        """The ballot of the lease that it has accepted last, until that was released."""
        self.held_until = 0.0
        """Until when this lease excludes others."""
        self.quarantined_until = now + timing.quarantine

    def __repr__(self) -> str:
        return (
            f"Acceptor(promised={self.promised}, holder={self.holder}, "
            f"held_until={self.held_until:.3f}, epoch={self.epoch})"
        )

    def receive(self, now: float, message: Message) -> Reply | None:
        """Handle a message. None: there is no answer."""
        if now < self.quarantined_until:
            return None
        if message.ballot.counter > self.promised.counter + MAX_COUNTER_STEP:
            return None
        if isinstance(message, Prepare):
            return self._prepare(now, message)
        if isinstance(message, Accept):
            return self._accept(now, message)
        if isinstance(message, Release):
            self._release(message)
        return None

    def _prepare(self, now: float, message: Prepare) -> Reply | None:
        ballot = message.ballot
        if message.lease > self.timing.lease:
            return None  # neither exclusion nor quarantine would cover it
        if ballot < self.promised:
            return self._reject(now, ballot)
        self.promised = ballot
        holder = self.holder if now < self.held_until else None
        remaining = 0.0 if holder is None else self.held_until - now
        return Reply(Promise(ballot, self.epoch, holder, remaining))

    def _accept(self, now: float, message: Accept) -> Reply | None:
        ballot = message.ballot
        if message.lease > self.timing.lease:
            return None
        if ballot < self.promised or self._is_held_by_another(now, ballot):
            return self._reject(now, ballot)
        self.promised = ballot
        self.holder = ballot
        self.held_until = now + self.timing.exclusion
        self.epoch = max(self.epoch, message.epoch)
        # Also when it is no news: an earlier write may have failed.
        return Reply(Accepted(ballot), self.epoch)

    def _release(self, message: Release) -> None:
        if message.ballot == self.holder:
            self.holder = None
            self.held_until = 0.0

    def _is_held_by_another(self, now: float, ballot: Ballot) -> bool:
        """Whether another incarnation has an unexpired lease. A higher ballot changes nothing."""
        holder = self.holder
        if holder is None or now >= self.held_until:
            return False
        return holder.incarnation != ballot.incarnation

    def _reject(self, now: float, ballot: Ballot) -> Reply:
        is_held = self._is_held_by_another(now, ballot)
        return Reply(Reject(ballot, self.promised, self.held_until - now if is_held else 0.0))
