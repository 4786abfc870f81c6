"""`LogThrottle`: logs errors that are not the client's, at most one a minute of each kind.

A node that cannot count (its memory is full, or closed) must not turn a service's answers into
500s, nor fill its log with one traceback for each. So of each kind of error one is logged with
its traceback, and for a minute the others are only counted; the next one that is logged says how
many there were. Times are seconds.
"""

import logging
import math
import time
from collections.abc import Callable

__all__ = ["LogThrottle"]

QUIET_SECONDS = 60.0

log = logging.getLogger("sluicegate.quota.node")


class LogThrottle:
    """Thread-safe; concurrent calls may log twice or miss a count."""

    __slots__ = ("_kinds", "_now")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # By what happened and the type of error: when it was logged, and how many were not since.
        self._kinds: dict[tuple[str, type[Exception]], tuple[float, int]] = {}

    def log(self, what: str, error: Exception) -> None:
        """Log that `what` happened because of `error`, unless one was logged within a minute."""
        kind = what, type(error)
        now = self._now()
        since, suppressed = self._kinds.get(kind, (-math.inf, 0))
        if now - since < QUIET_SECONDS:
            self._kinds[kind] = since, suppressed + 1
            return
        self._kinds[kind] = now, 0
        log.error("%s (%d more since the last message)", what, suppressed, exc_info=error)
