"""One perfect bucket: what a single exact token bucket would have let through, and how far off we
are.

The product promises that a fleet behaves as if one exact bucket per user and resource saw every
request. An `IdealBucket` is that bucket. It sees all requests of the cluster at the moments they
arrive, without delay, and is all or nothing over the resources of a request. It decides by the
cost that is expected, since nobody can foresee another one, and charges the real one at once.

    level     grows by `rate` per second up to `capacity`, which is burst_seconds * rate
    allows    while level >= min(cost, capacity): a request that costs more than the bucket holds
              passes when it is full, and the rest is a debt
    begins    with one slot's refill, or full if it holds less, as a bucket of the ledger does

`Comparison` runs the buckets of one user beside the cluster and gives two figures:

    shortfall   1 - admitted / what the ideal admitted. Both are amounts of the user's scarcest
                resource: the one whose demand is largest against its limit. Only requests that
                arrived after the warm-up count. Negative: the cluster admitted more
    excess      the most by which any window after the warm-up held more than
                limit * window + burst, in requests: units divided by the largest cost that passed.
                The burst is the capacity, or the largest cost that passed if that is more: else
                the ideal itself would have an excess. Never negative

Amounts and not requests are compared, since the costs of requests may differ by far.

The excess needs no search over windows. Let D be how much more than the refill has passed, at least
0: D = max(0, D - rate * seconds) + cost. D is the most that any window which ends now held beyond
limit * window, so the excess is the largest D minus the burst. D is what is missing in a bucket
that began full and is charged whatever its level is: an `IdealBucket` again.

Times are seconds since the simulation began, rates units per second.
"""

import math
from collections.abc import Mapping, Sequence

from sluicegate.quota.ledger.limit_entry import Entry

__all__ = ["Comparison", "IdealBucket"]

_ROUNDING = 1e-9

Limits = Sequence[tuple[float, Entry | None]]  # from which time on; None: no limit


class IdealBucket:
    """An exact token bucket. Its time must not go back."""

    __slots__ = ("capacity", "level", "rate", "time")

    def __init__(self, rate: float, capacity: float, level: float, time: float = 0.0) -> None:
        self.rate = rate
        self.capacity = capacity
        self.level = min(level, capacity)
        self.time = time

    def refill(self, time: float) -> None:
        level = self.level + self.rate * (time - self.time)
        self.level = level if level < self.capacity else self.capacity
        self.time = time

    def allows(self, cost: float, count: int = 1) -> int:
        """How many of `count` requests of that cost, one after the other, fit in now."""
        if cost <= 0.0:
            return count
        if self.rate <= 0.0:
            return 0
        slack = _ROUNDING * max(cost, self.capacity)
        if cost > self.capacity:
            return min(count, 1) if self.level >= self.capacity - slack else 0
        return min(count, max(0, math.floor((self.level + slack) / cost)))

    def take(self, amount: float) -> None:
        """Charge, whatever the level is."""
        self.level -= amount

    def change(self, rate: float, capacity: float) -> None:
        """A new limit: what is saved keeps its proportion to the capacity, a debt stays."""
        if self.level > 0.0:
            self.level *= capacity / self.capacity if self.capacity > 0.0 else 0.0
        self.rate = rate
        self.capacity = capacity

    def __repr__(self) -> str:
        return (
            f"IdealBucket(rate={self.rate:g}/s, capacity={self.capacity:g}, level={self.level:g})"
        )


class _Resource:
    """One limited resource of a user: the ideal's bucket, and what the cluster took of it."""

    __slots__ = ("admitted", "debt", "ideal", "ideally_admitted", "largest", "offered", "passed")

    ideal: IdealBucket
    passed: IdealBucket  # charged by the cluster

    def __init__(self) -> None:
        self.debt = -math.inf  # of `passed`, the most
        self.largest = 0.0  # the largest cost that the cluster admitted
        # Units of requests that arrived after the warm-up.
        self.offered = 0.0
        self.admitted = 0.0
        self.ideally_admitted = 0.0

    def begin(self, time: float, rate: float, capacity: float, level: float) -> None:
        """There is a limit from now on, and was none before."""
        self.ideal = IdealBucket(rate, capacity, level, time)
        self.passed = IdealBucket(rate, capacity, capacity, time)

    def change(self, time: float, rate: float, capacity: float) -> None:
        for bucket in (self.ideal, self.passed):
            bucket.refill(time)
            bucket.change(rate, capacity)

    def excess(self) -> float | None:
        """None: nothing was admitted, or requests cost nothing."""
        if self.largest <= 0.0:
            return None
        capacity = self.passed.capacity
        over = self.debt - max(0.0, self.largest - capacity)
        return over / self.largest if over > _ROUNDING * max(capacity, self.largest) else 0.0


class Comparison:
    """One user in the cluster beside the same user in front of one perfect bucket."""

    def __init__(self, limits: Limits, slot_seconds: float, warm_up: float) -> None:
        self._limits = list(limits)
        self._changes = list(limits)
        self._slot_seconds = slot_seconds
        self._warm_up = warm_up
        self._resources: dict[str, _Resource] = {}
        self._limited: dict[str, _Resource] = {}  # those with a limit at this time

    def offered(
        self,
        time: float,
        costs: Mapping[str, float],
        count: int = 1,
        expected: Mapping[str, float] | None = None,
    ) -> int:
        """`count` requests of these costs arrive. How many the ideal admits.

        `expected`: what they cost in the mean, if the real costs are not known in advance.
        """
        self._follow_limits(time)
        limited = self._limited
        admitted = count
        for name, cost in (costs if expected is None else expected).items():
            resource = limited.get(name)
            if resource is not None:
                resource.ideal.refill(time)
                admitted = resource.ideal.allows(cost, admitted)
        counts = time >= self._warm_up
        for name, cost in costs.items():
            resource = limited.get(name)
            if resource is not None:
                resource.ideal.take(cost * admitted)
                if counts:
                    resource.offered += cost * count
                    resource.ideally_admitted += cost * admitted
        return admitted

    def admitted(
        self, time: float, arrival: float, costs: Mapping[str, float], count: int = 1
    ) -> None:
        """The cluster admits `count` requests at `time` that have come at `arrival`."""
        self._follow_limits(time)
        for name, cost in costs.items():
            resource = self._limited.get(name)
            if resource is None:
                continue
            if arrival >= self._warm_up:
                resource.admitted += cost * count
            if time >= self._warm_up:
                passed = resource.passed
                passed.refill(time)
                passed.take(cost * count)
                resource.debt = max(resource.debt, -passed.level)
                resource.largest = max(resource.largest, cost)

    def _follow_limits(self, time: float) -> None:
        while self._changes and time >= self._changes[0][0]:
            since, entry = self._changes.pop(0)
            rates = entry.rates if entry is not None else {}
            burst_seconds = entry.burst_seconds if entry is not None else 0.0
            limited = {}
            for name, rate in rates.items():
                resource = self._resources.setdefault(name, _Resource())
                capacity = rate * burst_seconds
                if name in self._limited:
                    resource.change(since, rate, capacity)
                else:
                    resource.begin(since, rate, capacity, rate * self._slot_seconds)
                limited[name] = resource
            self._limited = limited

    def scarcest(self, end: float) -> str | None:
        """The resource whose demand was largest against its limit; None: there was no demand."""
        demands = {
            name: resource.offered / max(self._allowed(name, end), 1e-300)
            for name, resource in self._resources.items()
            if resource.offered > 0.0
        }
        return max(demands, key=lambda name: demands[name]) if demands else None

    def _allowed(self, name: str, end: float) -> float:
        """What the limit lets through from the warm-up to the end."""
        times = [time for time, _ in self._limits[1:]] + [end]
        allowed = 0.0
        for (since, entry), until in zip(self._limits, times, strict=True):
            if entry is not None:
                seconds = max(0.0, min(until, end) - max(since, self._warm_up))
                allowed += entry.rates.get(name, 0.0) * seconds
        return allowed

    def shortfall(self, end: float) -> float | None:
        """None: the ideal admitted nothing either."""
        name = self.scarcest(end)
        if name is None:
            return None
        resource = self._resources[name]
        if resource.ideally_admitted <= 0.0:
            return None
        short = 1.0 - resource.admitted / resource.ideally_admitted
        return short if abs(short) > _ROUNDING else 0.0

    def excess(self) -> float | None:
        figures = [resource.excess() for resource in self._resources.values()]
        return max((figure for figure in figures if figure is not None), default=None)
