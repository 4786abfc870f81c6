"""`Proposer`: one candidate, without I/O: campaigns, leads, renews, releases.

    idle --try_at--> preparing --majority open--> accepting --majority accepted--> idle, leads
                         |                            |
                         +------ out of time, or refused by too many ------> idle, backs off

A renewal is an attempt like any other, made by a candidate that leads. While it runs, and if it
fails, the deadline of the lease before it stays as it was.

All that it sends goes to all members, this one included. `tick` is called at `next_time` or later,
but nothing depends on how late: each handler compares the time with the attempt's end, and
`is_leader` with the deadline.
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sluicegate.election.paxos.messages import (
    MAX_COUNTER_STEP,
    Accept,
    Accepted,
    Answer,
    Ballot,
    Leading,
    Prepare,
    Promise,
    Proposal,
    Reject,
    Release,
)
from sluicegate.election.paxos.timing import Timing

__all__ = ["Proposer"]

_NEVER = float("-inf")
_NOTHING: tuple[Proposal, ...] = ()
_MOST_DOUBLINGS = 3  # of the jitter, by attempts that fail one after the other


@dataclass(slots=True)
class Attempt:
    """One ballot and its votes. An acceptor has one vote, however often its answer arrives."""

    ballot: Ballot
    deadline: float
    """Until when it leads if it wins: a lease from before its Prepare was sent."""
    expires: float
    """When it has failed if it has not won."""
    is_renewal: bool
    is_accepting: bool = False
    epoch: int = 0
    """The highest epoch in its promises; once it is accepting, the one that it carries."""
    open: set[str] = field(default_factory=set)
    """Acceptors that promised and have no lease of another."""
    accepted: set[str] = field(default_factory=set)
    refused: dict[str, float] = field(default_factory=dict)
    """Acceptors that did not, and for how long the lease of another excludes this candidate."""


class Proposer:
    """`now`: the time of its start. Times are those of the local clock.

    Its first attempt begins after a quarantine: until then the acceptor beside it has no vote, and
    a member that restarts does not disturb the leader.

    `floor`: the lowest epoch to lead in. It is for numbers from outside of the election that a new
    epoch must exceed. A leader whose epoch is below it takes a new one with its next renewal.
    """

    def __init__(
        self,
        now: float,
        node: str,
        restart: int,
        members: Collection[str],
        timing: Timing,
        rng: random.Random,
        floor: Callable[[], int] = lambda: 0,
    ) -> None:
        self.timing = timing
        self.deadline = _NEVER
        """Until when it leads; -inf if it does not. Only a majority of votes moves it on."""
        self.epoch = 0
        """Of its own latest leadership."""
        self._node = node
        self._restart = restart
        self._members = frozenset(members)
        self._majority = len(self._members) // 2 + 1
        self._rng = rng
        self._floor = floor
        self._counter = 0
        self._heard = 0  # the highest epoch in which another has led
        self._attempt: Attempt | None = None
        self._won: Ballot | None = None  # the ballot that `deadline` belongs to
        self._failures = 0  # in a row
        self._is_stopped = False
        self._try_at = now + timing.quarantine + self._jitter()

    def __repr__(self) -> str:
        return (
            f"Proposer({self._node}, restart={self._restart}, epoch={self.epoch}, "
            f"deadline={self.deadline:.3f}, attempt={self._attempt})"
        )

    def is_leader(self, now: float) -> bool:
        return now < self.deadline

    @property
    def next_time(self) -> float:
        """When `tick` is to be called next; inf: never."""
        if self._is_stopped:
            return float("inf")
        time = self._try_at if self._attempt is None else self._attempt.expires
        return time if self.deadline == _NEVER else min(time, self.deadline)

    def tick(self, now: float) -> tuple[Proposal, ...]:
        """Do what is due. Returns what to send to all members."""
        if self._is_stopped:
            return _NOTHING
        if now >= self.deadline:
            self.deadline = _NEVER
        attempt = self._attempt
        if attempt is not None:
            return _NOTHING if self._is_in_time(now, attempt) else self._fail(now, attempt)
        return self._begin(now) if now >= self._try_at else _NOTHING

    def receive(self, now: float, sender: str, message: Answer) -> tuple[Proposal, ...]:
        """Handle the answer of an acceptor. Returns what to send to all members."""
        if isinstance(message, Reject):
            # Also of an attempt that is over: the next one must be above it.
            promised = message.promised.counter
            if self._counter < promised <= self._counter + MAX_COUNTER_STEP:
                self._counter = promised
        attempt = self._attempt
        if attempt is None or message.ballot != attempt.ballot or sender not in self._members:
            return _NOTHING
        if not self._is_in_time(now, attempt):
            return self._fail(now, attempt)
        if isinstance(message, Promise):
            return self._on_promise(now, attempt, sender, message)
        if isinstance(message, Accepted):
            return self._on_accepted(now, attempt, sender)
        return self._refuse(now, attempt, sender, message.remaining)

    def expect(self, now: float, until: float) -> None:
        """Another leads until about `until`; -inf: it has released its lease."""
        if self._attempt is None and not self.is_leader(now):
            self._failures = 0
            self._try_at = max(now, until) + self._jitter()

    def hear(self, epoch: int) -> None:
        """Another leads, or has led, in `epoch`. No lower one counts any more, nor the same.

        Two lead at once only if a clock or a list of members is wrong. Then the epoch is the guard,
        and it must not be that of the other one.
        """
        self._heard = max(self._heard, epoch)
        if self.epoch <= self._heard:
            self.deadline = _NEVER

    def stop(self) -> tuple[Proposal, ...]:
        """Stop leading and campaigning, for good. Returns what to send to all members then."""
        given_up = [] if self._won is None else [Release(self._won)]
        if self._attempt is not None:
            given_up.append(Release(self._attempt.ballot))
        self.deadline = _NEVER
        self._attempt = self._won = None
        self._is_stopped = True
        return tuple(given_up)

    def _begin(self, now: float) -> tuple[Proposal, ...]:
        self._counter += 1
        self._attempt = Attempt(
            Ballot(self._counter, self._restart, self._node),
            deadline=now + self.timing.lease,
            expires=now + self.timing.attempt,
            is_renewal=self.is_leader(now),
        )
        return (Prepare(self._attempt.ballot, self.timing.lease),)

    def _is_in_time(self, now: float, attempt: Attempt) -> bool:
        """A renewal must win while the lease before it lasts.

        Another may have led in the meantime, with a higher epoch than the one that is renewed.
        """
        if attempt.is_renewal and now >= self.deadline:
            return False
        return now < attempt.expires

    def _is_own(self, ballot: Ballot) -> bool:
        """Whether it is a ballot of this incarnation: that of a dead one is another's."""
        return ballot.node == self._node and ballot.restart == self._restart

    def _on_promise(
        self, now: float, attempt: Attempt, sender: str, promise: Promise
    ) -> tuple[Proposal, ...]:
        if attempt.is_accepting:
            return _NOTHING
        attempt.epoch = max(attempt.epoch, promise.epoch)
        if promise.holder is not None and not self._is_own(promise.holder):
            return self._refuse(now, attempt, sender, promise.remaining)
        attempt.open.add(sender)
        if len(attempt.open) < self._majority:
            return _NOTHING
        attempt.is_accepting = True
        floor = max(self._floor(), self._heard + 1)
        goes_on = attempt.is_renewal and self.epoch >= floor
        attempt.epoch = self.epoch if goes_on else max(attempt.epoch + 1, floor)
        return (Accept(attempt.ballot, self.timing.lease, attempt.epoch),)

    def _on_accepted(self, now: float, attempt: Attempt, sender: str) -> tuple[Proposal, ...]:
        if not attempt.is_accepting:
            return _NOTHING  # nobody was asked to accept yet: the sender is wrong
        attempt.accepted.add(sender)
        if len(attempt.accepted) < self._majority:
            return _NOTHING
        if attempt.epoch <= self._heard:
            return self._fail(now, attempt)
        self.epoch = attempt.epoch  # first: another thread must not read the deadline without it
        self.deadline = attempt.deadline
        self._won = attempt.ballot
        self._attempt = None
        self._failures = 0
        self._try_at = attempt.deadline - self.timing.lease + self.timing.renewal
        return (Leading(attempt.ballot, attempt.epoch),)

    def _refuse(
        self, now: float, attempt: Attempt, sender: str, remaining: float
    ) -> tuple[Proposal, ...]:
        # A lease that is longer than it can be must not keep this candidate away.
        attempt.refused[sender] = min(remaining, self.timing.exclusion)
        is_lost = len(self._members) - len(attempt.refused) < self._majority
        return self._fail(now, attempt) if is_lost else _NOTHING

    def _fail(self, now: float, attempt: Attempt) -> tuple[Proposal, ...]:
        """Give up an attempt: it never counts again."""
        self._attempt = None
        if self.is_leader(now):
            # No Release: where this ballot was accepted it has replaced the one that leads.
            self._try_at = now + self._jitter()
            return _NOTHING
        self.deadline = _NEVER
        self._try_at = now + self._time_until_open(attempt) + self._jitter()
        self._failures += 1
        return (Release(attempt.ballot),) if attempt.is_accepting else _NOTHING

    def _time_until_open(self, attempt: Attempt) -> float:
        """Until so many leases of others have ended that a majority is open."""
        waits = sorted(attempt.refused.values())
        missing = min(self._majority - len(attempt.open), len(waits))
        return waits[missing - 1] if missing > 0 else 0.0

    def _jitter(self) -> float:
        """So that candidates that were woken together do not outbid each other for ever."""
        longest = self.timing.attempt * 2 ** min(self._failures, _MOST_DOUBLINGS)
        return self._rng.uniform(0.0, longest)
