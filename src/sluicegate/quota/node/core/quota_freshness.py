"""`QuotaTimes`: since when the quota in hand is fresh, reused or safe, and how long it was each.

Pure: told of each whole Quota, it knows by the leader's clock when the next changes are due, so
nobody has to look every second. Times are seconds of the node's monotonic clock.

    none     no central has told a quota yet: the fallback rules
    fresh    the newest quota is for this slot or a later one
    reused   it is up to `lease` slots old
    safe     it is older: each user has his safe share
"""

import math

from sluicegate.quota.messages import Quota

__all__ = ["STATES", "QuotaTimes"]

STATES = ("none", "fresh", "reused", "safe")


class QuotaTimes:
    """How fresh a node's quota is, over time."""

    def __init__(self, now: float, *, slot_seconds: float, lease: int = 3) -> None:
        self._slot_seconds = slot_seconds
        self._reused = lease * slot_seconds
        self._epoch = -1
        self._slot = -1
        self._state = "none"
        self._since = now
        self._known = now  # the totals are up to this time
        self._fresh_until = math.inf
        self._totals = dict.fromkeys(STATES, 0.0)

    def receive(self, now: float, quota: Quota) -> None:
        """A Quota has come; only whole ones of the newest leader count."""
        if not quota.whole or quota.epoch < self._epoch:
            return
        if quota.epoch == self._epoch and quota.slot < self._slot:
            return
        self._move_to(now)
        self._epoch, self._slot = quota.epoch, quota.slot
        self._fresh_until = now + (quota.slot + 1) * self._slot_seconds - quota.time
        self._enter("fresh" if now < self._fresh_until else "reused", now)

    def state(self, now: float) -> tuple[str, float]:
        """The state, and for how many seconds it has been so."""
        self._move_to(now)
        return self._state, max(now - self._since, 0.0)

    def totals(self, now: float) -> dict[str, float]:
        """Seconds in each state since the beginning."""
        self._move_to(now)
        return dict(self._totals)

    def _move_to(self, now: float) -> None:
        if self._state == "fresh" and now >= self._fresh_until:
            self._spend(self._fresh_until)
            self._enter("reused", self._fresh_until)
        safe_at = self._fresh_until + self._reused
        if self._state == "reused" and now >= safe_at:
            self._spend(safe_at)
            self._enter("safe", safe_at)
        self._spend(now)

    def _spend(self, now: float) -> None:
        if now > self._known:
            self._totals[self._state] += now - self._known
            self._known = now

    def _enter(self, state: str, now: float) -> None:
        if state != self._state:
            self._state = state
            self._since = now
