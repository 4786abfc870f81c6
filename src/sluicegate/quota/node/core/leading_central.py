"""`LeadingCentral`: whether a central that leads is heard, as a node sees it.

It is away when its connection is lost, when it has answered no ask for a while, or has sent nothing
for two slots. Times are seconds of the node's monotonic clock.
"""

import math

__all__ = ["LeadingCentral"]

_SILENT_SECONDS = 0.25
_SILENT_SLOTS = 2.25
_INTERVAL = 0.05  # between two asks, until the central says otherwise


class LeadingCentral:
    """One central. It counts as heard at the start, unless `alone_since` is 0 or more."""

    __slots__ = (
        "_silent_after",
        "_unanswered_since",
        "alone_since",
        "heard_at",
        "interval",
        "newest",
    )

    def __init__(self, slot_seconds: float, now: float, alone_since: float) -> None:
        self.alone_since = alone_since  # below 0: it is heard
        self.heard_at = now
        self.interval = _INTERVAL  # that a node leaves between two asks
        self.newest = (-1, -math.inf)  # (epoch, time) of its newest Quota
        self._unanswered_since: float | None = None  # the first ask since it was heard
        self._silent_after = _SILENT_SLOTS * slot_seconds

    @property
    def is_heard(self) -> bool:
        return self.alone_since < 0.0

    def hear(self, now: float) -> None:
        """A message has come in which it leads."""
        self.heard_at = now
        self._unanswered_since = None
        self.alone_since = -1.0

    def ask(self, now: float) -> None:
        """It is asked something that it must answer."""
        if self._unanswered_since is None:
            self._unanswered_since = now

    def go_away(self, since: float) -> None:
        """It is away: since the first ask that it has not answered, or else `since`."""
        self.alone_since = since if self._unanswered_since is None else self._unanswered_since

    def silent_at(self, retry_seconds: float) -> float:
        """When to take it that it is away, if nothing is heard until then; infinite: it is."""
        if not self.is_heard:
            return math.inf
        silent = self.heard_at + self._silent_after
        if self._unanswered_since is None:
            return silent
        return min(silent, self._unanswered_since + max(_SILENT_SECONDS, retry_seconds))
