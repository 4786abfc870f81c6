"""`Troubles`: what goes wrong beside a request, told to the log and not to its client.

A node that cannot count (its memory is full, or closed) must not turn a service's answers into
500s, nor fill its log with one traceback for each. So of each kind of trouble one is logged with
its traceback, and for a minute the others are only counted; the next one that is logged says how
many there were. Times are seconds.
"""

import logging
import math
import time
from collections.abc import Callable

__all__ = ["Troubles"]

QUIET = 60.0

log = logging.getLogger("sluicegate.quota.node")


class Troubles:
    """Any thread may tell; two at once may both be logged, or one not counted. No harm is done."""

    __slots__ = ("_kinds", "_now")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # By what was done and the kind of error: since when it is quiet, and how many were.
        self._kinds: dict[tuple[str, type[Exception]], tuple[float, int]] = {}

    def tell(self, what: str, error: Exception) -> None:
        """`what` could not be done because of `error`."""
        kind = what, type(error)
        now = self._now()
        since, untold = self._kinds.get(kind, (-math.inf, 0))
        if now - since < QUIET:
            self._kinds[kind] = since, untold + 1
            return
        self._kinds[kind] = now, 0
        log.error("%s (and %d times since it was last told)", what, untold, exc_info=error)
