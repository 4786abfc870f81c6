"""`LeadingCentral`: whether a central that leads is heard, as a node sees it.

It is away when its connection is lost, when it has answered no ask for a while, or has sent nothing
for two slots. Times are seconds of the node's monotonic clock.
"""

import math
from collections.abc import Iterable

__all__ = ["SILENT_SLOTS", "LeadingCentral"]

_SILENT_SECONDS = 0.25
SILENT_SLOTS = 2.25  # without a message: a central that leads sends one in each slot
_User = tuple[str, str]  # service, user

_INTERVAL = 0.05  # between two asks, until the central says otherwise


class LeadingCentral:
    """One central. It counts as heard at the start, unless `alone_since` is 0 or more."""

    __slots__ = (
        "_answered_ask",
        "_asked_at",
        "_silent_after",
        "_unanswered",
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
        self._unanswered: dict[_User, None] = {}  # the users that all asks since then are for
        self._asked_at = -math.inf  # the last ask
        self._answered_ask = -math.inf  # the last one before it was heard
        self._silent_after = SILENT_SLOTS * slot_seconds

    @property
    def is_heard(self) -> bool:
        return self.alone_since < 0.0

    def hear(self, now: float) -> None:
        """It has sent a message as the leader of something."""
        self.heard_at = now
        if self._unanswered:
            self._answered_ask = self._asked_at
            self._unanswered.clear()
        self._unanswered_since = None
        self.alone_since = -1.0

    def ask(self, now: float, users: Iterable[_User]) -> None:
        """It is asked for credit of these users, which it must answer."""
        self._unanswered.update(dict.fromkeys(users))
        self._asked_at = now
        if self._unanswered and self._unanswered_since is None:
            self._unanswered_since = now

    def take_unanswered(self, service: str | None = None) -> dict[_User, None]:
        """The users, all or of a service, that it was asked for and will not answer any more."""
        users = {user: None for user in self._unanswered if service in (None, user[0])}
        for user in users:
            del self._unanswered[user]
        return users

    def go_away(self, since: float, retry_seconds: float) -> None:
        """It is away: since the first ask that it has not answered, or else `since`.

        That ask may be the second one, when the answer to the first was still to come.
        """
        unanswered = self._unanswered_since
        if unanswered is not None:
            since = unanswered
            if unanswered - self._answered_ask <= retry_seconds + self.interval:
                since = min(since, max(self.heard_at, self._answered_ask))
        self.alone_since = since

    def silent_at(self, retry_seconds: float) -> float:
        """When to take it that it is away, if nothing is heard until then; infinite: it is."""
        if not self.is_heard:
            return math.inf
        silent = self.heard_at + self._silent_after
        if self._unanswered_since is None:
            return silent
        return min(silent, self._unanswered_since + max(_SILENT_SECONDS, retry_seconds))
