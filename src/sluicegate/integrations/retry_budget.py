"""`RetryBudget`: how many requests may be sent a second time, as a part of all requests.

When a whole fleet is down or overloaded, every request fails, and clients that send each of them
three times make it three times as bad. So retries are paid from a bucket: each request puts `ratio`
of a retry in, each retry takes one out. Over any time there are at most `ratio` retries per
request, plus what the bucket held before. The clock plays no part.
"""

import threading

from sluicegate._validate import check_positive, check_whole

__all__ = ["RetryBudget"]

_UNIT = 1_000_000  # parts of a retry, counted as ints, so that five times 0.2 is one
_FULL = 10  # times the reserve


class RetryBudget:
    """At most `ratio` retries per request (0.2: one for five), and `reserve` more at the beginning.

    What is not used is kept, up to ten times the reserve, so that a burst of failures after a long
    calm can be retried. Thread-safe; several transports may share one.
    """

    def __init__(self, ratio: float = 0.2, *, reserve: int = 10) -> None:
        self._income = round(check_positive("ratio", ratio) * _UNIT)
        if self._income == 0:
            raise ValueError(f"ratio must be at least {1 / _UNIT:.6f}, got {ratio!r}")
        self._left = check_whole("reserve", reserve, 1) * _UNIT
        self._most = self._left * _FULL
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """How many retries it would allow now; one needs a whole one."""
        return self._left / _UNIT

    def count_request(self) -> None:
        """A request is sent for the first time."""
        with self._lock:
            self._left = min(self._left + self._income, self._most)

    def take_retry(self) -> bool:
        """Whether a request may be sent again; it is paid for then."""
        with self._lock:
            if self._left < _UNIT:
                return False
            self._left -= _UNIT
            return True

    def __repr__(self) -> str:
        return f"RetryBudget({self._income / _UNIT:g}, left={self.left:g})"
