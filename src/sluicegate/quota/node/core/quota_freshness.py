"""`FreshnessTracker`: whether a node's quota is fresh, reused or safe, and for how long.

No I/O: it is given each whole Quota and computes from the leader's clock when the state changes, so
no timer is needed. Times are seconds of the node's monotonic clock.

    none     no central has sent a quota yet: the fallback applies
    fresh    the newest quota is for this slot or a later one
    reused   it is up to `lease` slots old
    safe     it is older: each user has its safe share
"""

import math

from sluicegate.quota.messages import Quota

__all__ = ["STATES", "FreshnessTracker"]

STATES = ("none", "fresh", "reused", "safe")


class FreshnessTracker:
    """How fresh a node's quota is, over time."""

    def __init__(self, now: float, *, slot_seconds: float, lease: int = 3) -> None:
        self._slot_seconds = slot_seconds
        self._reused_seconds = lease * slot_seconds
        self._epoch = -1
        self._slot = -1
        self._state = "none"
        self._since = now
        self._accumulated_until = now  # the totals are up to this time
        self._fresh_until = math.inf
        self._totals = dict.fromkeys(STATES, 0.0)

    def receive(self, now: float, quota: Quota) -> None:
        """A Quota has come; only whole ones of the newest leader count."""
        if not quota.whole or quota.epoch < self._epoch:
            return
        if quota.epoch == self._epoch and quota.slot < self._slot:
            return
        self._advance_to(now)
        self._epoch, self._slot = quota.epoch, quota.slot
        self._fresh_until = now + (quota.slot + 1) * self._slot_seconds - quota.time
        self._set_state("fresh" if now < self._fresh_until else "reused", now)

    def state(self, now: float) -> tuple[str, float]:
        """The state, and for how many seconds it has been so."""
        self._advance_to(now)
        return self._state, max(now - self._since, 0.0)

    def totals(self, now: float) -> dict[str, float]:
        """Seconds in each state since the beginning."""
        self._advance_to(now)
        return dict(self._totals)

    def _advance_to(self, now: float) -> None:
        if self._state == "fresh" and now >= self._fresh_until:
            self._accumulate(self._fresh_until)
            self._set_state("reused", self._fresh_until)
        safe_at = self._fresh_until + self._reused_seconds
        if self._state == "reused" and now >= safe_at:
            self._accumulate(safe_at)
            self._set_state("safe", safe_at)
        self._accumulate(now)

    def _accumulate(self, now: float) -> None:
        if now > self._accumulated_until:
            self._totals[self._state] += now - self._accumulated_until
            self._accumulated_until = now

    def _set_state(self, state: str, now: float) -> None:
        if state != self._state:
            self._state = state
            self._since = now
