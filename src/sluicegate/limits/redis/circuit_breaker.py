"""`CircuitBreaker`: whether to ask Redis or to decide locally. The time is an argument.

    redis    all ask. The first failure begins an outage.
    local    nobody asks until the back-off ends; it doubles from 0.5 to 30 s.
    probing  the back-off is over, and one caller asks while the others still decide here.
             If it gets an answer the outage is over; if not, the next back-off begins.

Whoever may ask gets a ticket, and says with it how it went. Calls that were under way
when the outage began come back with old tickets and change nothing: a hundred threads
that time out together are one failure. A probe that never comes back is replaced after
`PROBE_SECONDS`. Times are in seconds of any clock that does not go back.
"""

import threading

__all__ = ["MAX_BACKOFF", "MIN_BACKOFF", "CircuitBreaker"]

MIN_BACKOFF = 0.5
MAX_BACKOFF = 30.0
PROBE_SECONDS = 5.0


class CircuitBreaker:
    """Lets requests through to Redis, or holds them back after a failure."""

    def __init__(self) -> None:
        self.state = "redis"
        self.errors = 0
        self.last_error = ""
        self.ticket = 1  # for those who have seen that the state is "redis"
        self._backoff = 0.0
        self._until = 0.0
        self._lock = threading.RLock()

    def request_ticket(self, now: float) -> int:
        """A ticket for one request to Redis, or 0: decide locally."""
        if self.state == "redis":
            return self.ticket
        with self._lock:
            if self.state != "redis":
                if now < self._until:
                    return 0
                self.state = "probing"
                self._until = now + PROBE_SECONDS
                self.ticket += 1
            return self.ticket

    def succeeded(self, ticket: int) -> None:
        if self.state == "redis":
            return
        with self._lock:
            if ticket == self.ticket and self.state == "probing":
                self.state = "redis"
                self._backoff = 0.0

    def failed(self, ticket: int, now: float, error: Exception) -> None:
        reason = str(error)
        with self._lock:
            self.errors += 1
            self.last_error = reason
            if ticket == self.ticket and self.state != "local":
                self._backoff = min(max(2 * self._backoff, MIN_BACKOFF), MAX_BACKOFF)
                self.state = "local"
                self._until = now + self._backoff
                self.ticket += 1

    def cancelled(self, ticket: int, now: float) -> None:
        """The caller was cancelled: if it was probing, the next one may."""
        with self._lock:
            if ticket == self.ticket and self.state == "probing":
                self.state = "local"
                self._until = now
                self.ticket += 1

    def backoff_left(self, now: float) -> float:
        """Seconds of back-off that are left; 0 while Redis is asked."""
        return 0.0 if self.state == "redis" else max(self._until - now, 0.0)

    def renew_lock(self) -> None:
        """In a forked child, where the lock may be held by a thread that is gone."""
        self._lock = threading.RLock()
        if self.state == "probing":
            self.state = "local"
