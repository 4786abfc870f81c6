"""`MemoryStore`: the counters of the clusters of one process, or of one simulation."""

import math
import threading

from sluicegate.stores.store import (
    FOLD_AFTER,
    KEEP_AFTER_END,
    REMEMBER_WRITERS,
    CounterKey,
    CounterTotals,
    CounterUpdate,
    SyncReply,
    SyncRequest,
    check_updates,
)

__all__ = ["MemoryStore"]

_SWEEP_INTERVAL = 60.0  # seconds between two looks for counters and writers to forget


class MemoryStore:
    """Shared by all clusters of a process that are given the same object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clusters: dict[str, _ClusterRecord] = {}

    def sync(self, request: SyncRequest) -> SyncReply:
        check_updates(request.updates)
        with self._lock:
            cluster = self._clusters.setdefault(request.cluster, _ClusterRecord())
            return cluster.sync(request)

    def close(self) -> None:
        """Nothing to do: the counters live as long as the object."""

    def __len__(self) -> int:
        """Counters that are kept."""
        with self._lock:
            return sum(len(cluster.counters) for cluster in self._clusters.values())

    def __repr__(self) -> str:
        return f"MemoryStore(counters={len(self)})"


class _ClusterRecord:
    __slots__ = ("_next_sweep", "_numbers", "counters", "live_until")

    def __init__(self) -> None:
        self.live_until: dict[str, float] = {}  # by writer
        self._numbers: dict[str, int] = {}  # of the newest request, by writer
        self.counters: dict[tuple[object, ...], _CounterRecord] = {}
        self._next_sweep = -math.inf

    def sync(self, request: SyncRequest) -> SyncReply:
        now = request.time
        self._sweep(now)
        lapses = _Lapses(self.live_until, now)
        gone = _Lapses(self.live_until, now - FOLD_AFTER)
        totals = []
        for update in request.updates:
            counter = self._counter(update.key, now)
            counter.drop_lapsed(lapses)
            if request.may_fold:
                counter.fold(gone, request.writer)
            totals.append(counter.update(request.writer, request.number, now, update))
        if request.number >= self._numbers.get(request.writer, -1):
            self._numbers[request.writer] = request.number
            self.live_until[request.writer] = now + request.live_for
        nodes = sum(until >= now for until in self.live_until.values())
        return SyncReply(now, nodes, totals)

    def _counter(self, key: CounterKey, now: float) -> "_CounterRecord":
        counter = self.counters.get(key.identity)
        if counter is None or counter.expires <= now:
            counter = self.counters[key.identity] = _CounterRecord(now, key)
        return counter

    def _sweep(self, now: float) -> None:
        if now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP_INTERVAL
        for name in [name for name, one in self.counters.items() if one.expires <= now]:
            del self.counters[name]
        for writer in [w for w, u in self.live_until.items() if u < now - REMEMBER_WRITERS]:
            del self.live_until[writer]
            del self._numbers[writer]


class _Lapses:
    """Who lapsed before a moment. Most counters of a request ask for the same."""

    __slots__ = ("_known", "_live_until", "before")

    def __init__(self, live_until: dict[str, float], before: float) -> None:
        self.before = before
        self._live_until = live_until
        self._known: dict[float, list[str]] = {}

    def since(self, time: float) -> list[str]:
        names = self._known.get(time)
        if names is None:
            before = self.before
            names = [name for name, until in self._live_until.items() if time <= until < before]
            self._known[time] = names
        return names


class _WriterRecord:
    """What one writer has told of a counter. `time` counts from the counter's origin."""

    __slots__ = ("begin", "count", "hold", "number", "rate", "sum", "time")

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.number = -1
        self.sum = 0.0
        self.count = 0
        self.rate = 0.0
        self.time = 0.0
        self.hold = 0.0


class _CounterRecord:
    """One counter. `rates_at` is the sum of rate x time over all writers."""

    __slots__ = (
        *("begin", "count", "ended", "expires", "folded_until", "held", "origin", "rate"),
        *("rates_at", "sum", "swept", "writers"),
    )

    def __init__(self, now: float, key: CounterKey) -> None:
        self.origin = now  # times count from here: small numbers stay exact
        self.begin = key.begin
        self.ended = _EndedPeriod(key.begin, 0.0, 0)  # the period before this one
        self.expires = _expiry(key)  # Unix time
        self.sum = 0.0
        self.count = 0
        self.rate = 0.0
        self.rates_at = 0.0
        self.held = 0.0
        self.swept = now  # who lapsed before this has no rate and no hold here
        self.folded_until = now  # who lapsed before this has no record here
        self.writers: dict[str, _WriterRecord] = {}

    def update(self, name: str, number: int, now: float, told: CounterUpdate) -> CounterTotals:
        at = now - self.origin
        begin = told.key.begin
        if begin > self.begin:
            self._turn(told.key)
        writer = self.writers.get(name)
        if writer is None:
            writer = self.writers[name] = _WriterRecord(begin)
        if (begin, number) > (writer.begin, writer.number):
            self._catch_up(writer, begin)
            new_sum, new_count = told.sum - writer.sum, told.count - writer.count
            writer.number, writer.sum, writer.count = number, told.sum, told.count
            if begin < self.begin:
                self.ended.add(begin, new_sum, new_count)
            else:
                self.sum += new_sum
                self.count += new_count
                self._set_rate(writer, told.rate, at)
                self._set_hold(writer, self._grant(writer, told, new_sum))
        if begin < self.begin:
            return CounterTotals(self.ended.sum, self.ended.count, 0.0, 0.0, 0.0, 0.0)
        lead = max(self.rate * at - self.rates_at, 0.0)
        return CounterTotals(self.sum, self.count, self.rate, lead, self.held, writer.hold)

    def drop_lapsed(self, lapses: _Lapses) -> None:
        """End the rates and holds of the writers that have lapsed since this was done last."""
        now = lapses.before
        if self.swept < now - REMEMBER_WRITERS:
            lapsed = list(self.writers)  # nobody has synced it for longer than writers are known
        else:
            lapsed = lapses.since(self.swept)
        for name in lapsed:
            writer = self.writers.get(name)
            if writer is not None:
                self._end_rate_and_hold(writer)
        self.swept = now

    def fold(self, lapses: _Lapses, asking: str) -> None:
        """Delete the records of writers that are gone. Their totals stay in the sum."""
        gone = lapses.since(self.folded_until)
        for name in gone:
            if name != asking:
                self.writers.pop(name, None)
        if gone:
            self.folded_until = lapses.before

    def _turn(self, key: CounterKey) -> None:
        """Begin a period. Rates go on, and count from its begin; holds end."""
        self.ended = _EndedPeriod(self.begin, self.sum, self.count)
        self.begin = key.begin
        self.expires = _expiry(key)
        self.sum = 0.0
        self.count = 0
        self.held = 0.0
        self.rates_at = self.rate * (key.begin - self.origin)

    def _catch_up(self, writer: _WriterRecord, begin: float) -> None:
        """Take a writer's record to a period that has begun since its last sync."""
        if begin > writer.begin:
            writer.begin, writer.sum, writer.count = begin, 0.0, 0
            writer.time, writer.hold = begin - self.origin, 0.0

    def _end_rate_and_hold(self, writer: _WriterRecord) -> None:
        """The record stays in its period: the writer may still tell the rest of that."""
        is_current = writer.begin == self.begin
        self.rate -= writer.rate
        self.rates_at -= writer.rate * (writer.time if is_current else self.begin - self.origin)
        self.held -= writer.hold if is_current else 0.0
        writer.rate = writer.hold = 0.0

    def _grant(self, writer: _WriterRecord, told: CounterUpdate, spent: float) -> float:
        """The hold that a writer gets: what it wants, what there is room for, or what it had."""
        left = max(writer.hold - spent, 0.0)
        room = told.ceiling - self.sum - (self.held - writer.hold)
        if room < told.want:
            room = math.floor(room / told.unit + 1e-9) * told.unit
        return min(told.want, max(room, left))

    def _set_rate(self, writer: _WriterRecord, rate: float, at: float) -> None:
        self.rate += rate - writer.rate
        self.rates_at += rate * at - writer.rate * writer.time
        writer.rate, writer.time = rate, at

    def _set_hold(self, writer: _WriterRecord, hold: float) -> None:
        self.held += hold - writer.hold
        writer.hold = hold


def _expiry(key: CounterKey) -> float:
    return key.end + KEEP_AFTER_END if key.end else math.inf


class _EndedPeriod:
    """The totals of a period that has ended, for what is told late."""

    __slots__ = ("begin", "count", "sum")

    def __init__(self, begin: float, total: float, count: int) -> None:
        self.begin = begin
        self.sum = total
        self.count = count

    def add(self, begin: float, total: float, count: int) -> None:
        if begin == self.begin:
            self.sum += total
            self.count += count
