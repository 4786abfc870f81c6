"""`LocalFallback`: what a node lets through by itself while Redis is unavailable.

Each key has a token bucket with the limit's rate divided by the number of nodes, whatever
the algorithm, and a burst of its share too, though at least 1: so a limit of 1 per minute
on 64 nodes still lets one through per minute, about. (A window of a 64th would let through
none, or one on each node.) A cost above that burst passes when the bucket is full, and is
paid off before the next. So all nodes together admit at most

    limit * t + burst + nodes

in t seconds (and one cost more for each node where costs are above the share's burst).
"""

from collections.abc import Sequence

from sluicegate.clock import Clock
from sluicegate.limits._decision import Decision
from sluicegate.limits._keyed import Keyed
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import Key, Limit

__all__ = ["LocalFallback"]


class LocalFallback:
    """The limits of a fleet, divided by the number of its nodes."""

    def __init__(
        self, limits: Sequence[Limit], bursts: Sequence[float], clock: Clock | None
    ) -> None:
        self._limits = tuple(limits)
        self._bursts = tuple(bursts)
        self._clock = clock
        self._nodes = 0
        self.set_node_count(1)

    def set_node_count(self, nodes: int) -> None:
        """Set the number of nodes. What was used of the old shares is forgotten."""
        if nodes == self._nodes:
            return
        shares = [
            Limit(limit.amount / nodes, limit.per, max(burst / nodes, min(burst, 1.0)))
            for limit, burst in zip(self._limits, self._bursts, strict=True)
        ]
        max_cost = min(share.burst or 0.0 for share in shares)
        self._current = Keyed(shares, clock=self._clock), max_cost  # one step for other threads
        self._nodes = nodes

    def check(self, key: Key, cost: float) -> Decision:
        keyed, max_cost = self._current
        if cost <= max_cost:
            return self._of_whole_limit(keyed, keyed.check(key, cost))
        try:
            keyed.reserve(key, max_cost).settle(cost)
        except RateLimited as denied:
            return self._of_whole_limit(keyed, denied.decision)
        return self._of_whole_limit(keyed, keyed.check(key, 0), allowed=True)

    def refund(self, key: Key, cost: float) -> None:
        self._current[0].refund(key, cost)

    def reset(self, key: Key) -> None:
        self._current[0].reset(key)

    def _of_whole_limit(
        self, keyed: Keyed, decision: Decision, allowed: bool | None = None
    ) -> Decision:
        """The decision under the name of the whole limit, which is what the caller knows."""
        index = keyed.limits.index(decision.limit) if decision.limit is not None else 0
        is_allowed = decision.allowed if allowed is None else allowed
        return Decision(
            is_allowed,
            self._limits[index],
            decision.remaining,
            0.0 if is_allowed else decision.retry_after,
            decision.reset_after,
        )
