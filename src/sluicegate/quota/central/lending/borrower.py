"""`Borrower`: a central that leads services for the leader. A state machine without I/O.

Times are seconds of this machine's `boottime`.
"""

import math
from collections import deque

from sluicegate.quota.central.lending.messages import Borrow, Lend

__all__ = ["Borrower"]

_PER_LEASE = 3  # requests to borrow in each lease
_REMEMBERED = 8  # times at which it has borrowed, and that an answer may be to


class Borrower:
    """What the leader has lent to this central. `incarnation` is a number of this process alone."""

    def __init__(self, incarnation: int, lease: float) -> None:
        self.epoch = 0  # of the loan, or a later one without a loan yet
        self.next_at = -math.inf  # when to borrow again
        self.borrowers: tuple[str, ...] = ()  # with this one, as the leader has said last
        self._incarnation = incarnation
        self._pause = lease / _PER_LEASE
        self._leader: str | None = None
        self._sent: deque[float] = deque(maxlen=_REMEMBERED)
        self._services: frozenset[str] = frozenset()
        self._lent_at = -math.inf
        self._deadline = -math.inf

    def services(self, now: float) -> frozenset[str]:
        """Which services this central leads at this moment."""
        return self._services if now < self._deadline else frozenset()

    def borrow(self, now: float, leader: str | None) -> Borrow | None:
        """What to send to the leader now, if anything."""
        if leader != self._leader:
            self._leader = leader
            self.next_at = now
        if leader is None or now < self.next_at:
            return None
        self.next_at = now + self._pause
        self._sent.append(now)
        return Borrow(self._incarnation, self.epoch, now, is_leaving=False)

    def leave(self, now: float) -> Borrow:
        """Let go of everything, and say so. Answers that are still on their way lend nothing."""
        self.let_go()
        self._sent.clear()
        return Borrow(self._incarnation, self.epoch, now, is_leaving=True)

    def let_go(self) -> None:
        """Lead no service any more."""
        self._services = frozenset()
        self._deadline = -math.inf

    def receive(self, now: float, peer: str, message: Lend) -> None:
        """`peer` has answered."""
        if peer != self._leader or message.epoch < self.epoch:
            return
        self.borrowers = message.borrowers
        if message.epoch > self.epoch:
            self.let_go()  # and say so soon: others may wait for it
            self.epoch = message.epoch
            self._lent_at = -math.inf
            self.next_at = now
        deadline = message.sent + message.seconds
        if message.sent not in self._sent or message.sent < self._lent_at or now >= deadline:
            if message.seconds == 0.0:
                self.next_at = now
            return
        self._lent_at = message.sent
        self._deadline = max(self._deadline, deadline)
        self._services = frozenset(message.services)

    def __repr__(self) -> str:
        return f"Borrower({sorted(self._services)}, epoch={self.epoch}, leader={self._leader})"
