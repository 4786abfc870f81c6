"""`LearnedCurve`: the traffic of a limiter by hour of the day, learned from the last three days.

The requests of each hour are a counter of their own, `<limiter>:hour`, that lives for some days. A
node adds what it has seen to the counter of this hour at each sync, so the hot path knows nothing
of it. The counters of past hours are read once: a restarted node has the curve with its first
answer.

The curve is made from the whole days before the last midnight, so all nodes have the same one, and
it changes at midnight. A day's part of the line is the same with any curve, so the line does not
jump there. Until a whole day is known, the line is straight.
"""

import math
from collections.abc import Callable

from sluicegate.pacing._cluster_clock import ClusterClock
from sluicegate.pacing._counter import ClusterCounter
from sluicegate.pacing._limiter import ClusterLimiter
from sluicegate.pacing.line import Line
from sluicegate.pacing.schedule import Schedule
from sluicegate.pacing.steering import Steering

__all__ = ["LearnedCurve", "hourly_means"]

Name = tuple[str, tuple[str, ...]]  # a name and the values of its labels

_HOUR = 3600.0
_DAYS = 3  # that are averaged
_KEPT = 24 * (_DAYS + 2)  # hours that a counter lives
_LATE = 600.0  # seconds after an hour in which nodes may still tell of it


class LearnedCurve:
    """The hours of one limiter on one node. Hours are numbered from 1970, in UTC."""

    def __init__(
        self,
        key: Name,
        clock: ClusterClock,
        make_counter: Callable[[Name, Schedule], ClusterCounter],
    ) -> None:
        self._name = (f"{key[0]}:hour", key[1])
        self._clock = clock
        self._make_counter = make_counter
        self._hours: dict[int, ClusterCounter] = {}
        self._known: dict[int, float] = {}  # requests of hours that are over
        self._seen = (0.0, 0.0)  # the begin of the period, and this node's requests in it
        self._midnight = 0.0  # that the curve in force is of
        self.weights: tuple[float, ...] | None = None

    def guide(self, limiter: ClusterLimiter, steering: Steering) -> None:
        """Be the curve of a limiter from now on."""
        self.limiter = limiter
        self._steering = steering
        self._seen = (limiter.requests.span[0], limiter.requests.local())
        if self.weights is not None:
            self._follow(self.weights)

    def counters(self) -> list[ClusterCounter]:
        return list(self._hours.values())

    def to_sync(self, local: float) -> list[ClusterCounter]:
        """Count what came since the last sync; return the counters to tell and to read."""
        now = self._clock.unix(local)
        hour = math.floor(now / _HOUR)
        self._count(self._counter(hour))
        self._read()
        self._learn(now)
        first = self._first_hour(now)
        for past in range(first, hour):
            if past not in self._known:
                self._counter(past)
        self._known = {h: requests for h, requests in self._known.items() if h >= first}
        return self.counters()

    def _count(self, counter: ClusterCounter) -> None:
        begin, requests = self.limiter.requests.span[0], self.limiter.requests.local()
        # What came between the last sync and the end of a period is not seen: of each hour about
        # the same part, so the weights are right.
        counter.add(max(requests - (self._seen[1] if begin == self._seen[0] else 0.0), 0.0))
        self._seen = (begin, requests)

    def _read(self) -> None:
        """Take the hours that are over and were answered."""
        for hour, counter in list(self._hours.items()):
            history = counter.history
            if history and history[-1][0] >= (hour + 1) * _HOUR + _LATE:
                self._known[hour] = history[-1][2]
                del self._hours[hour]

    def _learn(self, now: float) -> None:
        midnight = self._last_midnight(now)
        first, last = self._first_hour(now), math.floor(midnight / _HOUR)
        if midnight == self._midnight or any(h not in self._known for h in range(first, last)):
            return
        self._midnight = midnight
        weights = hourly_means([(self._hour_of_day(h), self._known[h]) for h in range(first, last)])
        if weights is not None:
            self.weights = weights
            self._follow(weights)

    def _follow(self, weights: tuple[float, ...]) -> None:
        steering = self._steering
        steering.curve = weights
        if steering.span.end > steering.span.begin:
            steering.line = Line(steering.span, steering._reserve, weights, steering.schedule)

    def _counter(self, hour: int) -> ClusterCounter:
        counter = self._hours.get(hour)
        if counter is None:
            schedule = Schedule(begin=hour * _HOUR, end=(hour + _KEPT) * _HOUR)
            counter = self._hours[hour] = self._make_counter(self._name, schedule)
        return counter

    def _first_hour(self, now: float) -> int:
        return max(math.floor(self._last_midnight(now) / _HOUR) - 24 * _DAYS, 0)

    def _last_midnight(self, now: float) -> float:
        return round(now - self._steering.schedule.hour_of_day(now) * _HOUR)

    def _hour_of_day(self, hour: int) -> int:
        return int(self._steering.schedule.hour_of_day((hour + 0.5) * _HOUR)) % 24


def hourly_means(hours: list[tuple[int, float]]) -> tuple[float, ...] | None:
    """The mean of each hour of the day, of (hour of the day, requests) in the order of time.

    None if less than a day is known: from the first whole hour after the first request on.
    """
    first = next((i for i, (_, requests) in enumerate(hours) if requests > 0.0), len(hours))
    whole = hours[first + 1 :]
    if len(whole) < 24 or not any(requests for _, requests in whole):
        return None
    means = []
    for hour in range(24):
        found = [requests for at, requests in whole if at == hour]
        if not found:  # the hour that the change to summer time has left out
            return None
        means.append(math.fsum(found) / len(found))
    return tuple(means)
