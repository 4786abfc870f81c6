# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`ClusterCounter`: counts here; the cluster's value is known by sync.

`add` is two additions and a look at the clock, which tells when a period has ended. No step of it
releases the GIL, so threads lose nothing. Between syncs the cluster's value is estimated: what the
others had at the last sync, and their rate since.
"""

import threading
from collections import deque

from libc.math cimport INFINITY, fabs, pow, sqrt

from sluicegate._minmax cimport fast_max, fast_min

from sluicegate.stores.store import CounterKey, CounterUpdate

__all__ = ["ClusterCounter"]

_HISTORY = 64  # syncs that are remembered
_MOST_CLOSED = 8  # periods that have ended and are kept apart until they are told
_FIRST_CLOSED = 4  # of these, from the begin of an outage
cdef double _CLEAR = 4.0  # standard deviations by which requests must differ from what was foreseen
cdef double _SHORTEST_MEASURE = 0.2  # of a sync interval: rates of shorter times are mostly noise


cdef class ClusterCounter:
    """A counter of the whole cluster. Made by `Cluster.counter`."""

    def __cinit__(self, *_, **__):
        self._clock = ClusterClock(None)  # an object without __init__ is useless, not deadly
        self._ends = INFINITY
        self._closed = []

    def __init__(self, name, labels, clock, schedule, *, turns_itself=True):
        self.name = name
        self.label_values = labels
        self._clock = clock
        self._schedule = schedule
        self._lock = threading.Lock()
        self._history = deque(maxlen=_HISTORY)
        self._share = 1.0
        self._others_room = INFINITY
        self._first_sync = -1.0
        local = self._clock.local()
        self._measured_at = self._synced_at = local
        span = schedule.at(local + self._clock.offset)
        self._begin, self._end = span
        if turns_itself and schedule.is_periodic:
            self._ends = self._end - self._clock.offset

    def add(self, double v=1.0):
        """Count `v`, once."""
        if not 0.0 <= v <= 1e15:
            raise ValueError(f"v must be a number from 0 to 1e15, got {v!r}")
        if self._ends < INFINITY and self._clock.local() >= self._ends:
            self._turn_if_over()
        self._sum += v
        self._count += 1

    def local(self):
        """What this node has counted in this period."""
        if self._ends < INFINITY and self._clock.local() >= self._ends:
            self._turn_if_over()
        return self._sum + self._renamed_sum

    def value(self):
        """The cluster's value in this period, as far as it can be known now."""
        cdef double local = self._clock.local()
        if local >= self._ends:
            self._turn_if_over()
        return self.projected(local)

    @property
    def share(self):
        """This node's part of the cluster's rate: 0 to 1."""
        return self._share

    @property
    def rate(self):
        """This node's rate per second, smoothed over the last syncs."""
        return self._rate

    @property
    def cluster_rate(self):
        """The rate of all nodes per second, as of the last sync."""
        return self._rate + self._others_rate

    @property
    def local_count(self):
        """How often this node has counted in this period."""
        return self._count + self._renamed_count

    @property
    def cluster_count(self):
        """How often all nodes have counted in this period, as of the last sync."""
        return int(self._others_count) + self._count

    @property
    def history(self):
        """The last syncs, oldest first: (Unix time, this node's sum, the cluster's sum)."""
        return list(self._history)

    @property
    def span(self):
        """Begin and end of the period that is counted, in Unix time."""
        return self._begin, self._end

    def __repr__(self):
        labels = "".join(f", {value!r}" for value in self.label_values)
        return f"ClusterCounter({self.name!r}{labels}, local={self.local():g}, value={self.value():g})"

    # What the cluster calls. None of it is part of the public interface.

    def _measure(self, double local, double interval, double decay):
        """Note the rate since the last measure: smoothed, or at once if it has clearly changed."""
        cdef double took = local - self._measured_at
        cdef double total = self._earlier_sum + self._sum
        cdef long long count = self._earlier_count + self._count
        cdef double rate, count_rate, seen, foreseen, part
        cdef bint is_changed
        seen = count - self._measured_count
        foreseen = self._count_rate * took
        if took <= 0.0:
            return
        is_changed = fabs(seen - foreseen) > _CLEAR * sqrt(fast_max(seen, foreseen)) + _CLEAR
        if took < _SHORTEST_MEASURE * interval and not is_changed:
            return
        rate = (total - self._measured_sum) / took
        count_rate = seen / took
        if not is_changed and self._measured_count > 0:
            part = pow(decay, took / interval)
            rate += (self._rate - rate) * part
            count_rate += (self._count_rate - count_rate) * part
        self._rate = rate
        self._count_rate = count_rate
        self._measured_at = local
        self._measured_sum = total
        self._measured_count = count

    def _added_since(self, update):
        """What was added to this period since an update of it was told, under the present name."""
        return self._sum - update.sum

    @property
    def _total_count(self):
        """How often this node has counted, ever."""
        return self._earlier_count + self._count

    def _updates(self, double want=0.0, double unit=1.0, double ceiling=INFINITY):
        """What the store must be told: of periods that have ended, and of this one."""
        if self._ends < INFINITY and self._clock.local() >= self._ends:
            self._turn_if_over()
        updates = [
            CounterUpdate(self._key(begin, end), total, count, 0.0, 0.0, 1.0, INFINITY)
            for begin, end, total, count, _ in self._closed
        ]
        key = self._key(self._begin, self._end)
        self._sent_begin = self._begin
        updates.append(CounterUpdate(key, self._sum, self._count, self._rate, want, unit, ceiling))
        return updates

    def _receive(self, update, totals, double local, int nodes, double settled_after, bint keeps_share):
        """Note the store's answer to an update."""
        cdef double begin = update.key.begin
        cdef double rate
        if begin >= self._told_begin:
            self._told_begin, self._told_sum, self._told_count = begin, update.sum, update.count
        if begin != self._begin:
            self._closed = [one for one in self._closed if one[0] != begin or one[2] != update.sum]
            return
        self._others_sum = fast_max(totals.sum - update.sum, 0.0)
        # Where no rate is left, sums of them leave a trace of rounding.
        self._others_lead = totals.lead if totals.lead > 1e-9 * totals.sum else 0.0
        self._others_count = fast_max(totals.count - update.count, 0.0)
        # Sums of rates that came and went leave a trace of rounding.
        rate = totals.rate if fabs(totals.rate) > 1e-9 else 0.0
        self._others_rate = rate - update.rate
        self._synced_at = local
        if not keeps_share:
            self._learn_share(update.rate, rate, local, nodes, settled_after)
        if self._ends < INFINITY:
            self._ends = self._end - self._clock.offset
        self._history.append((local + self._clock.offset, update.sum + self._renamed_sum, totals.sum))

    def _learn_share(self, double own, double rate, double local, int nodes, double settled_after):
        """A node that is new, or one of many that are, has not heard of all rates yet."""
        cdef double known
        self._share = 1.0 / nodes
        if self._first_sync < 0.0:
            self._first_sync = local
        if rate > 0.0:
            known = fast_min((local - self._first_sync) / settled_after, 1.0)
            self._share += known * (own / rate - self._share)

    def _bound_others(self, double room):
        """Nobody else can have added more than this since the last sync."""
        self._others_room = room

    def _share_guess(self, double share):
        self._share = share

    def _restart(self):
        """Count from zero: what is counted so far is another writer's to tell."""
        self._closed = []
        self._sum = self._rate = self._measured_sum = self._earlier_sum = 0.0
        self._count_rate = 0.0
        self._count = self._measured_count = self._earlier_count = 0
        self._told_sum = self._renamed_sum = 0.0
        self._told_count = self._renamed_count = 0
        self._measured_at = self._clock.local()
        self._lock = threading.Lock()

    def _rename(self):
        """Go on as a new writer, which tells only what the store does not have yet."""
        self._closed = [
            (begin, end, total - self._told_sum, count - self._told_count, was_sent)
            if begin == self._told_begin
            else (begin, end, total, count, was_sent)
            for begin, end, total, count, was_sent in self._closed
        ]
        if self._begin == self._told_begin:
            self._sum -= self._told_sum
            self._count -= self._told_count
            self._earlier_sum += self._told_sum
            self._earlier_count += self._told_count
            self._others_sum += self._told_sum
            self._renamed_sum += self._told_sum
            self._others_count += self._told_count
            self._renamed_count += self._told_count
        self._told_sum = 0.0
        self._told_count = 0

    def _follow_clock(self):
        """The cluster's time was corrected for the first time: count in the period of that time."""
        span = self._schedule.at(self._clock.local() + self._clock.offset)
        self._begin, self._end = span
        if self._ends < INFINITY:
            self._ends = self._end - self._clock.offset

    def _turn_if_over(self):
        with self._lock:
            local = self._clock.local()
            if local >= self._ends:
                span = self._schedule.at(local + self._clock.offset)
                if span.begin > self._begin:
                    self.turn(span.begin, span.end)
                self._ends = self._end - self._clock.offset

    def _key(self, double begin, double end):
        return CounterKey(
            self.name, self.label_values, begin, end, self._schedule.period or 0.0, self._schedule.period_zone
        )

    cdef int turn(self, double begin, double end) except -1:
        """Begin a period. What is not synced yet of the last one is kept to be told."""
        if self._count:
            was_sent = self._begin == self._sent_begin
            self._closed.append((self._begin, self._end, self._sum, self._count, was_sent))
            if len(self._closed) > _MOST_CLOSED:
                self._closed = _merged(self._closed)
        self._earlier_sum += self._sum
        self._earlier_count += self._count
        self._begin, self._end = begin, end
        self._sum = self._renamed_sum = 0.0
        self._count = self._renamed_count = 0
        self._others_sum = self._others_count = self._others_lead = 0.0
        self._others_room = INFINITY
        self._synced_at = self._clock.local()
        return 0

    cdef double projected(self, double local) noexcept:
        cdef double new = self._others_lead + self._others_rate * fast_max(local - self._synced_at, 0.0)
        return self._sum + self._others_sum + fast_min(new, self._others_room)


def _merged(closed):
    """One period fewer: its sum is added to that of the next one, so that none is lost.

    The store may have carried out a request without an answer. It then has all periods before the
    one that was current in it, and a part of that one. So two periods that were current in no
    request are merged if there are such; else two from the middle of an outage, where such a
    request is least likely.
    """
    place = _FIRST_CLOSED
    for earlier in range(len(closed) - 1):
        if not closed[earlier][4] and not closed[earlier + 1][4]:
            place = earlier
            break
    _, _, total, count, was_sent = closed[place]
    begin, end, next_total, next_count, next_was_sent = closed[place + 1]
    merged = (begin, end, total + next_total, count + next_count, was_sent or next_was_sent)
    return [*closed[:place], merged, *closed[place + 2:]]
