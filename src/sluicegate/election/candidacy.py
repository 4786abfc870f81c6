"""`Candidacy`: whether one candidate for a lease leads, until when, and what it does next. No I/O.

The lease is a key in a store (Redis, etcd) that goes away by itself some seconds after it was last
renewed. The shell asks the store and tells this class the outcome. Times are seconds of
`boottime()`; the time is an argument.

Until when it leads
    The store counts the lease from the moment at which it carries a request out: not before the
    request was sent. So the candidate counts from the time before it was sent, and however long the
    reply takes, it stops before the store lets go. Both clocks may run wrong by `RATE_ERROR`:

        deadline = sent + lease · (1 - RATE_ERROR) / (1 + RATE_ERROR)

    A failed renewal extends nothing. Once the deadline has passed, the leadership has ended, even
    if a renewal is answered later with yes: the candidate claims the lease again, with a new epoch.

When it asks
    A leader renews at a third of the lease: two more tries fit before the deadline. A standby asks
    when the lease of the leader would run out, and at least each third of the lease: a lease that
    was released is found soon. After a failure it backs off, from 1/40 of the lease doubling up to
    a third of it, with jitter.

A store that has lost its data
    A store that was emptied, or replaced by a copy that lagged behind, does not know of a lease
    whose holder may still lead. It is noticed when its epoch is lower than one known here. Then
    nothing is claimed for one lease: whoever led has stopped by then.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["RATE_ERROR", "Candidacy", "Held", "Outcome", "Regressed", "Taken", "Vacant"]

RATE_ERROR = 0.01  # by which part a clock may be too fast or too slow
_SAFE_PART = (1.0 - RATE_ERROR) / (1.0 + RATE_ERROR)
_RENEW_PART = 1 / 3  # of the lease: when a leader renews, and when a standby asks at the latest
_SHORTEST_BACKOFF = 1 / 40  # of the lease


@dataclass(frozen=True, slots=True)
class Held:
    """The lease is this candidate's."""

    sent: float  # the time before the request was sent that has begun or renewed it
    lease: float  # seconds for which the store keeps it from then
    epoch: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The lease is another candidate's."""

    leader: str
    epoch: int
    remaining: float  # seconds until it runs out if it is not renewed


@dataclass(frozen=True, slots=True)
class Vacant:
    """The lease was to be renewed, and is nobody's any more."""


@dataclass(frozen=True, slots=True)
class Regressed:
    """The store has forgotten: its epoch is lower than the one that is known here."""

    epoch: int
    advice: str  # for a person: what happens now, or what to do


Outcome = Held | Taken | Vacant | Regressed


class Candidacy:
    """One candidate. `jitter` returns numbers from 0 to 1."""

    def __init__(
        self, name: str, lease: float, jitter: Callable[[], float] = random.random
    ) -> None:
        self.name = name
        self.epoch = 0  # the highest known
        self.next_at = -math.inf  # when to ask the store
        self.deadline = -math.inf  # until when this candidate leads
        self.confirmed = -math.inf  # when the last request was sent that has held the lease
        self._lease = lease
        self._jitter = jitter
        self._failures = 0  # in a row
        self._other = ""  # the leader, when it is another one
        self._other_until = -math.inf
        self._regressed_at: float | None = None
        self._has_resigned = False

    def is_leader(self, now: float) -> bool:
        return now < self.deadline

    def leader(self, now: float) -> str | None:
        if self.is_leader(now):
            return self.name
        return self._other if now < self._other_until else None

    def next_change(self, now: float) -> float:
        """When `is_leader` or `leader` changes without an outcome."""
        if self.is_leader(now):
            return self.deadline
        return self._other_until if now < self._other_until else math.inf

    def may_reset(self, now: float) -> bool:
        """Whether a store that has regressed may be claimed: all older leases have run out."""
        return self._regressed_at is not None and now >= self._regressed_at + self._lease

    def apply(self, outcome: Outcome, now: float) -> None:
        """Take in what the store has answered, at the time of the answer."""
        if self._has_resigned:
            return
        self._failures = 0
        if not isinstance(outcome, Regressed):
            self._regressed_at = None
        match outcome:
            case Held():
                self._hold(outcome, now)
            case Taken():
                self._stop()
                self.epoch = max(self.epoch, outcome.epoch)
                self._other = outcome.leader
                self._other_until = now + outcome.remaining
                self.next_at = now + min(outcome.remaining, self._poll_interval())
            case Vacant():
                self._stop()
                self.next_at = now
            case Regressed():
                self._stop()
                if self._regressed_at is None:
                    self._regressed_at = now
                reset_at = self._regressed_at + self._lease
                self.next_at = reset_at if now < reset_at else now + self._lease

    def fail(self, now: float) -> None:
        """The store did not answer, or not as it should."""
        longest = self._lease * _RENEW_PART
        delay = min(self._lease * _SHORTEST_BACKOFF * 2.0 ** min(self._failures, 10), longest)
        self._failures += 1
        self.next_at = now + delay * (0.5 + 0.5 * self._jitter())

    def resign(self) -> None:
        """Stop leading, for good: outcomes that arrive later change nothing."""
        self._has_resigned = True
        self._stop()
        self._other_until = -math.inf

    def _hold(self, held: Held, now: float) -> None:
        deadline = held.sent + held.lease * _SAFE_PART
        is_renewal = held.epoch == self.epoch and self.is_leader(now)
        if now >= deadline or not (is_renewal or held.epoch > self.epoch):
            # Too late, or no new leadership: to be claimed again, with a higher epoch.
            self._stop()
            self.epoch = max(self.epoch, held.epoch)
            self.next_at = now
            return
        self._other_until = -math.inf
        self.epoch = held.epoch
        self.deadline = max(self.deadline, deadline)
        self.confirmed = max(self.confirmed, held.sent)
        self.next_at = held.sent + held.lease * _RENEW_PART

    def _stop(self) -> None:
        self.deadline = -math.inf

    def _poll_interval(self) -> float:
        return self._lease * _RENEW_PART * (0.5 + 0.5 * self._jitter())

    def __repr__(self) -> str:
        return f"Candidacy({self.name!r}, epoch={self.epoch}, deadline={self.deadline:g})"
