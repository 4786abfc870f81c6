"""`PlainStore`: what a store must answer, written to be read. Slow, and it forgets nothing.

It keeps the last total of every writer there ever was, so its sums are exact whatever lapses and is
folded elsewhere.
"""

import math
from collections import defaultdict

from sluicegate.stores.store import CounterTotals, CounterUpdate, SyncReply, SyncRequest

__all__ = ["PlainStore"]


class PlainStore:
    def __init__(self) -> None:
        self.live_until: dict[str, float] = {}
        self.numbers: dict[str, int] = {}  # of the newest request of each writer
        self.counters: dict[tuple[object, ...], PlainCounter] = {}

    def sync(self, request: SyncRequest) -> SyncReply:
        now = request.time
        for writer, until in self.live_until.items():
            if until < now:
                for counter in self.counters.values():
                    counter.rates.pop(writer, None)
                    counter.holds.pop(writer, None)
        totals = []
        for update in request.updates:
            name = update.key.identity
            counter = self.counters.setdefault(name, PlainCounter(update.key.begin))
            totals.append(counter.update(request, update))
        newest = self.numbers[request.writer] = max(
            request.number, self.numbers.get(request.writer, 0)
        )
        if request.number == newest:
            self.live_until[request.writer] = now + request.live_for
        live = [until for until in self.live_until.values() if until >= now]
        return SyncReply(now, len(live), totals)


class PlainCounter:
    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.previous: float | None = None  # the begin of the period before
        # Of each period, by writer: the last sum and count.
        self.told: dict[float, dict[str, tuple[float, int]]] = defaultdict(dict)
        self.accepted: dict[str, tuple[float, int]] = {}  # the last begin and number
        self.rates: dict[str, tuple[float, float]] = {}  # the rate, and since when it counts
        self.holds: dict[str, float] = {}

    def update(self, request: SyncRequest, update: CounterUpdate) -> CounterTotals:
        writer, begin = request.writer, update.key.begin
        if begin > self.begin:
            self.turn(begin)
        version = (begin, request.number)
        if writer not in self.accepted or version > self.accepted[writer]:
            self.accepted[writer] = version
            before = self.told[begin].get(writer, (0.0, 0))[0]
            if begin in (self.begin, self.previous):
                self.told[begin][writer] = (update.sum, update.count)
            if begin == self.begin:
                self.rates[writer] = (update.rate, request.time)
                self.holds[writer] = self.grant(writer, update, spent=update.sum - before)
        if begin < self.begin:
            total, count = self.totals(self.previous)
            return CounterTotals(total, count, 0.0, 0.0, 0.0, 0.0)
        total, count = self.totals(begin)
        rate = sum(rate for rate, _ in self.rates.values())
        lead = sum(rate * (request.time - since) for rate, since in self.rates.values())
        held = sum(self.holds.values())
        return CounterTotals(total, count, rate, max(lead, 0.0), held, self.holds.get(writer, 0.0))

    def turn(self, begin: float) -> None:
        self.previous, self.begin = self.begin, begin
        self.holds.clear()
        self.rates = {writer: (rate, begin) for writer, (rate, _) in self.rates.items()}

    def totals(self, begin: float | None) -> tuple[float, int]:
        told = [] if begin is None else list(self.told[begin].values())
        return sum(total for total, _ in told), sum(count for _, count in told)

    def grant(self, writer: str, update: CounterUpdate, spent: float) -> float:
        """What is wanted if there is room for it; else whole units, or what is left of the last."""
        total, _ = self.totals(self.begin)
        others = sum(hold for name, hold in self.holds.items() if name != writer)
        room = update.ceiling - total - others
        left = max(self.holds.get(writer, 0.0) - spent, 0.0)
        if room >= update.want:
            return update.want
        units = math.floor(room / update.unit + 1e-9)
        granted = min(max(units * update.unit, left), update.want)
        assert granted <= max(left, 0.0) or granted + total + others <= update.ceiling
        return granted
