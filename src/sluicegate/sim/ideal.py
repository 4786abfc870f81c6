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

`Comparison` runs the buckets of one user beside the cluster and gives three figures:

    shortfall   1 - admitted / what the ideal admitted. Both are amounts of the user's scarcest
                resource: the one whose demand is largest against its limit. Only requests that
                arrived after the warm-up count. Where costs are known only when a request
                ends, a debt that is left at the end of the run is taken off, and one from before
                the warm-up is added, on both sides.
                Negative: the cluster admitted more
    excess      the most by which any window after the warm-up held more than
                limit * window + burst, in requests: units divided by the largest cost that passed.
                The burst is the capacity, or the largest cost that passed if that is more: else
                the ideal itself would have an excess. Never negative

    cheap_shortfall   the same of the cheapest class alone, in requests. Requests that are expected
                to cost the same are a class. In the sum of all amounts a few large requests hide it
                when many small ones are refused. None for a user with one class, or if the ideal
                admitted less than twenty of the cheapest: then it is chance

Amounts and not requests are compared, since the costs of requests may differ by far. With a heavy
tail one request may leave a debt of twenty others, on one side and not on the other. It counts as
far as the refill has paid for it, or it would decide the figure by chance. So does what passed in
the warm-up before anybody knew what a request costs.

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
_LEAST_OF_CLASS = 20  # requests that the ideal admitted

Class = tuple[tuple[str, float], ...]  # what a request is expected to cost
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


class _Side:
    """What the ideal, or the cluster, admitted of a resource, and the bucket that pays for it."""

    __slots__ = ("admitted", "bucket", "earlier_debt")

    bucket: IdealBucket

    def __init__(self) -> None:
        self.admitted = 0.0  # units of requests that arrived after the warm-up
        self.earlier_debt = 0.0  # when the warm-up ended

    def debt(self, time: float) -> float:
        self.bucket.refill(max(time, self.bucket.time))
        return max(0.0, -self.bucket.level)

    def paid(self, end: float) -> float:
        return self.admitted + self.earlier_debt - self.debt(end)


class _Resource:
    """One limited resource of a user, in front of the ideal and of the cluster."""

    __slots__ = ("cluster", "ideal", "largest", "most_over", "offered", "passed")

    passed: IdealBucket  # begins full, and is charged by the cluster after the warm-up

    def __init__(self) -> None:
        self.ideal = _Side()
        self.cluster = _Side()
        self.most_over = -math.inf  # the most that `passed` was below zero
        self.largest = 0.0  # the largest cost that the cluster admitted
        self.offered = 0.0  # units of requests that arrived after the warm-up

    def begin(self, time: float, rate: float, capacity: float, level: float) -> None:
        """There is a limit from now on, and was none before."""
        self.ideal.bucket = IdealBucket(rate, capacity, level, time)
        self.cluster.bucket = IdealBucket(rate, capacity, level, time)
        self.passed = IdealBucket(rate, capacity, capacity, time)

    def change(self, time: float, rate: float, capacity: float) -> None:
        for bucket in (self.ideal.bucket, self.cluster.bucket, self.passed):
            bucket.refill(time)
            bucket.change(rate, capacity)

    def end_warm_up(self, time: float) -> None:
        for side in (self.ideal, self.cluster):
            side.earlier_debt = side.debt(time)

    def excess(self) -> float | None:
        """None: nothing was admitted, or requests cost nothing."""
        if self.largest <= 0.0:
            return None
        capacity = self.passed.capacity
        over = self.most_over - max(0.0, self.largest - capacity)
        return over / self.largest if over > _ROUNDING * max(capacity, self.largest) else 0.0


class Comparison:
    """One user in the cluster beside the same user in front of one perfect bucket."""

    def __init__(self, limits: Limits, slot_seconds: float, warm_up: float) -> None:
        self._limits = list(limits)
        self._changes = list(limits)
        self._slot_seconds = slot_seconds
        self._warm_up = warm_up
        self._is_warm = False
        self._has_late_costs = False
        self._resources: dict[str, _Resource] = {}
        self._limited: dict[str, _Resource] = {}  # those with a limit at this time
        # Requests that arrived after the warm-up and were admitted: by the ideal, by the cluster.
        self._classes: dict[Class, list[int]] = {}

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
        self._follow(time)
        if expected is not None:
            self._has_late_costs = True
        limited = self._limited
        admitted = count
        for name, cost in (costs if expected is None else expected).items():
            resource = limited.get(name)
            if resource is not None:
                resource.ideal.bucket.refill(time)
                admitted = resource.ideal.bucket.allows(cost, admitted)
        if self._is_warm:
            self._class_of(costs if expected is None else expected)[0] += admitted
        for name, cost in costs.items():
            resource = limited.get(name)
            if resource is not None:
                resource.ideal.bucket.take(cost * admitted)
                if self._is_warm:
                    resource.offered += cost * count
                    resource.ideal.admitted += cost * admitted
        return admitted

    def admitted(
        self,
        time: float,
        arrival: float,
        costs: Mapping[str, float],
        count: int = 1,
        expected: Mapping[str, float] | None = None,
    ) -> None:
        """The cluster admits `count` requests at `time` that have come at `arrival`."""
        self._follow(time)
        if arrival >= self._warm_up:
            self._class_of(costs if expected is None else expected)[1] += count
        for name, cost in costs.items():
            resource = self._limited.get(name)
            if resource is None:
                continue
            resource.cluster.bucket.refill(time)
            resource.cluster.bucket.take(cost * count)
            if arrival >= self._warm_up:
                resource.cluster.admitted += cost * count
            if self._is_warm:
                passed = resource.passed
                passed.refill(time)
                passed.take(cost * count)
                resource.most_over = max(resource.most_over, -passed.level)
                resource.largest = max(resource.largest, cost)

    def _class_of(self, expected: Mapping[str, float]) -> list[int]:
        return self._classes.setdefault(tuple(expected.items()), [0, 0])

    def _follow(self, time: float) -> None:
        """Take up the limits in force, and note the end of the warm-up."""
        if self._is_warm and not self._changes:
            return
        while self._changes and self._changes[0][0] <= min(time, self._warm_up):
            self._change_limits(*self._changes.pop(0))
        if not self._is_warm and time >= self._warm_up:
            self._is_warm = True
            for resource in self._limited.values():
                resource.end_warm_up(self._warm_up)
        while self._changes and self._changes[0][0] <= time:
            self._change_limits(*self._changes.pop(0))

    def _change_limits(self, since: float, entry: Entry | None) -> None:
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
        ideal, cluster = self._resources[name].ideal, self._resources[name].cluster
        ours, best = cluster.admitted, ideal.admitted
        if self._has_late_costs:
            ours, best = cluster.paid(end), ideal.paid(end)
        if best <= 0.0:
            return None
        short = 1.0 - ours / best
        return short if abs(short) > _ROUNDING else 0.0

    def cheap_shortfall(self, end: float) -> float | None:
        """None: there is one class, or the ideal admitted too few of the cheapest."""
        scarcest = self.scarcest(end)
        if len(self._classes) < 2 or scarcest is None:
            return None
        cheapest = min(self._classes, key=lambda expected: dict(expected).get(scarcest, 0.0))
        ideal, cluster = self._classes[cheapest]
        return 1.0 - cluster / ideal if ideal >= _LEAST_OF_CLASS else None

    def excess(self) -> float | None:
        figures = [resource.excess() for resource in self._resources.values()]
        return max((figure for figure in figures if figure is not None), default=None)
