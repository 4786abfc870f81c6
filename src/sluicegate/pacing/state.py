"""`ClusterState`: the counters and limiters of one node, without I/O.

Whoever drives it (a thread, a task, a simulator) asks for a request, carries it to the store, and
hands in the reply, or says that there was none.
"""

import logging
import math
import secrets
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sluicegate.pacing._cluster_clock import ClusterClock
from sluicegate.pacing._counter import ClusterCounter
from sluicegate.pacing._limiter import ClusterLimiter
from sluicegate.pacing.learned_curve import LearnedCurve, Name
from sluicegate.pacing.limiter_control import SETTLE_SYNCS, LimiterControl
from sluicegate.pacing.retired_counters import RetiredCounters
from sluicegate.pacing.schedule import Schedule
from sluicegate.stores.store import (
    FOLD_AFTER,
    CounterUpdate,
    SyncReply,
    SyncRequest,
    check_updates,
)

__all__ = ["ClusterState", "Name", "PendingSync"]

_LIVE_SYNCS = 3.0  # missed syncs after which a node counts as gone
_CALM = 600.0  # seconds of unbroken contact after which a node may say who is gone for good
_SECOND_SYNC = 0.1  # of the interval, after the first
_SHORTEST = 0.05  # of the interval: syncs are no closer than this
# What odd numbers in one counter or limiter, or a fault of ours, may raise.
_FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

log = logging.getLogger("sluicegate.pacing")


class PendingSync(NamedTuple):
    """A request that is on its way, and where its answers belong."""

    request: SyncRequest
    sent: float
    owners: list[ClusterCounter]  # of each update
    limiters: list[tuple[ClusterLimiter, LimiterControl, int]]  # with the place of its passes
    retired: list[tuple[ClusterCounter, int]]  # told for the last time


class ClusterState:
    """All that one node counts in a cluster. Times are local seconds of `clock`."""

    def __init__(
        self,
        name: str,
        node_id: str,
        clock: ClusterClock,
        sync_interval: float,
        decay: float,
        nodes: int,
    ) -> None:
        self.name = name
        self.node_id = node_id
        self.clock = clock
        self.sync_interval = sync_interval
        self.live_for = _LIVE_SYNCS * sync_interval
        self._first_nodes = nodes  # a guess, until the store has answered
        self.nodes = nodes  # that are live, this one included
        self.counters: dict[Name, ClusterCounter] = {}
        self.limiters: dict[Name, tuple[ClusterLimiter, LimiterControl]] = {}
        self.wake: Callable[[], object] = lambda: None  # called when the next sync is due earlier
        self._is_asked_for = False
        self.curves: dict[Name, LearnedCurve] = {}  # of the limiters that learn one
        self._in_use: WeakKeyDictionary[ClusterCounter, None] = WeakKeyDictionary()
        self._retired = RetiredCounters()
        self._faulty: set[tuple[object, ...]] = set()  # counters and limiters that failed, logged
        self._decay = decay
        self._heard_at = self._in_touch_since = math.inf
        self.knows_time = False  # the store has told it
        self._is_ended = False
        self._was_away = False  # the store was in touch once, and then was not
        self._since = 0.0
        self._heard = 0
        self._begin_as_new_writer()

    @property
    def is_in_touch(self) -> bool:
        """Whether the last sync was answered."""
        return self._in_touch_since < math.inf

    def own_counter(
        self, key: Name, schedule: Schedule, *, turns_itself: bool = True
    ) -> ClusterCounter:
        """A counter of this writer. One that was retired goes on, for its totals only grow."""
        name, label_values = key
        counter = ClusterCounter(
            name, label_values, self.clock, schedule, turns_itself=turns_itself
        )
        counter = self._retired.take_back(counter._key(*counter.span).identity) or counter
        self._in_use[counter] = None
        return counter

    def retire(self, counters: Iterable[ClusterCounter]) -> None:
        """Sync counters once more, and then no longer."""
        now = self.clock.unix(self.clock.now())
        for counter in counters:
            self._retired.add(counter, now)
            self._in_use.pop(counter, None)

    def end(self) -> None:
        """Let nothing pass any more."""
        self._is_ended = True
        for limiter, control in list(self.limiters.values()):
            control.is_over = True
            limiter._end()

    def next_sync(self, local: float) -> float:
        """When to sync next: at this node's own beat, and just after a period begins."""
        if self._last_sync == -math.inf:
            return local
        if self._is_asked_for:
            return max(self._last_sync + _SHORTEST * self.sync_interval, local)
        next_sync = self._next_beat(self._last_sync)
        if self._number == 2:  # nodes that were started together have not seen each other yet
            next_sync = min(next_sync, self._last_sync + _SECOND_SYNC * self.sync_interval)
        for limiter, control in list(self.limiters.values()):
            next_sync = min(next_sync, max(control.next_act(limiter), self._last_sync))
            end = limiter._period_ends
            if self._last_sync < end < next_sync:
                next_sync = end + 0.02 * self._phase
        return max(next_sync, self._last_sync + _SHORTEST * self.sync_interval)

    def ask_for_sync(self) -> None:
        """Sync soon: the traffic of this node has changed, and its share with it."""
        self._is_asked_for = True
        self.wake()

    def request(self, local: float, *, is_last: bool = False) -> PendingSync:
        """Everything this node has to tell. The last one gives its holds back."""
        is_answered = self._heard == self._number
        if (self._retired.is_full and is_answered) or self._may_be_folded(local):
            self._rename()
        self._last_sync = local
        self._is_asked_for = False
        self._number += 1
        if not self.knows_time and not is_last:
            # The first one only asks for the time: it decides which period is counted.
            return PendingSync(self._make_request(local, self.live_for, []), local, [], [], [])
        told = _Told()
        self._tell_counters(told, local)
        limiters = self._tell_limiters(told, local)
        retired = self._tell_retired(told, local)
        updates = told.updates
        if is_last:
            updates = [update._replace(rate=0.0, want=0.0) for update in updates]
        request = self._make_request(local, 0.0 if is_last else self.live_for, updates)
        return PendingSync(request, local, told.owners, limiters, retired)

    def _may_be_folded(self, local: float) -> bool:
        """Whether the store may forget this writer before the next sync: then it is a new one."""
        return local - self._heard_at > self.live_for + FOLD_AFTER / 2.0

    def _make_request(
        self, local: float, live_for: float, updates: list[CounterUpdate]
    ) -> SyncRequest:
        return SyncRequest(
            self.name,
            self._writer,
            self._number,
            self.clock.unix(local),
            live_for,
            self._since,
            local - self._in_touch_since > _CALM,
            updates,
        )

    def receive(self, pending: PendingSync, reply: SyncReply, local: float) -> None:
        """The store has answered."""
        request = pending.request
        if request.writer != self._writer or request.number < self._heard:
            return  # this was another life of it, or a newer answer has come already
        self._heard = request.number
        self._heard_at = pending.sent
        # After an outage the store has forgotten the rates of nodes that have not synced yet.
        self._in_touch_since = min(self._in_touch_since, local)
        keeps_share = self._was_away and local - self._in_touch_since < SETTLE_SYNCS * (
            self.sync_interval
        )
        self._since = reply.time
        self.clock.follow(reply.time, pending.sent, local)
        self.nodes = max(reply.nodes, 1)
        if not self.knows_time:
            self._begin_with_time(local)
        for limiter, _ in list(self.limiters.values()):
            limiter._follow_clock()
        for place, (owner, update, totals) in enumerate(
            zip(pending.owners, request.updates, reply.totals, strict=True)
        ):
            if place in reply.skipped:
                continue
            try:
                owner._receive(update, totals, local, self.nodes, self.live_for, keeps_share)
            except _FAULTS:
                self._log_fault(owner)
        self._retired.told(pending.retired)
        for limiter, control, place in pending.limiters:
            update, totals = request.updates[place], reply.totals[place]
            try:
                if place in reply.skipped:
                    control.coast(limiter, local)
                else:
                    control.receive(limiter, update, totals, pending.sent, local)
            except _FAULTS:
                self._log_fault(limiter)

    def _begin_with_time(self, local: float) -> None:
        """The time is known now, and how many nodes there are; tell the counters next."""
        self.knows_time = True
        self._is_asked_for = True
        for counter in self._all_counters():
            counter._follow_clock()
        for limiter, control in [] if self._is_ended else list(self.limiters.values()):
            limiter.requests._share_guess(1.0 / self.nodes)
            control.is_over = False
            control.begin_period(limiter, local)

    def fail(self, local: float) -> None:
        """The store did not answer."""
        self._was_away = self._was_away or self.is_in_touch
        self._in_touch_since = math.inf
        for limiter, control in list(self.limiters.values()):
            try:
                limiter._turn_if_over()
                control.coast(limiter, local)
            except _FAULTS:
                self._log_fault(limiter)

    def restart(self) -> None:
        """Be a new writer with nothing counted: a forked child, whose parent tells the rest."""
        self._begin_as_new_writer()
        self.nodes = self._first_nodes
        for counter in self._all_counters():
            counter._restart()
            counter._share_guess(1.0 / self.nodes)
        self._retired.clear()

    def _rename(self) -> None:
        """Be a new writer, at the begin of a request: no answer to the earlier one may follow."""
        self._begin_as_new_writer()
        for counter in self._all_counters():
            counter._rename()
        self._retired.forget_told()

    def _begin_as_new_writer(self) -> None:
        self._writer = f"{self.node_id}.{secrets.token_hex(8)}"
        # Nodes sync at different moments, each always at its own.
        self._phase = zlib.crc32(self.node_id.encode()) / 2**32 * self.sync_interval
        self._number = 0
        self._heard = 0
        self._heard_at = math.inf
        self._in_touch_since = math.inf
        self._last_sync = -math.inf
        self._since = 0.0  # the store's time of the last reply

    def _all_counters(self) -> list[ClusterCounter]:
        """Those in use, those that are just being made included, and those that were removed."""
        in_use = [reference() for reference in self._in_use.keyrefs()]
        found = [counter for counter in in_use if counter is not None]
        return list(dict.fromkeys([*found, *self._retired.counters()]))

    def _tell_counters(self, told: "_Told", local: float) -> None:
        for counter in list(self.counters.values()):
            try:
                counter._measure(local, self.sync_interval, self._decay)
                told.add([(counter, counter._updates())])
            except _FAULTS:
                self._log_fault(counter)

    def _tell_limiters(
        self, told: "_Told", local: float
    ) -> list[tuple[ClusterLimiter, LimiterControl, int]]:
        """Add the updates of all limiters; returns where those of their passes are."""
        next_sync = self.next_sync(local) if self._number == 2 else self._next_beat(local)
        limiters = []
        for limiter, control in list(self.limiters.values()):
            try:
                limiter._turn_if_over()
                told.add(control.updates(limiter, local, next_sync - local, self._decay))
            except _FAULTS:
                self._log_fault(limiter)
            else:
                limiters.append((limiter, control, told.last_place_of(limiter.passes)))
        return limiters

    def _tell_retired(self, told: "_Told", local: float) -> list[tuple[ClusterCounter, int]]:
        """Add the hours of learned curves, and what was removed; returns the latter."""
        in_use = set(told.owners)  # one may have been removed, or made again, since that was told
        retired = [one for one in self._retired.untold() if one[0] not in in_use]
        for counter in [*(counter for counter, _ in retired), *self._curve_counters(local)]:
            try:
                last = [update._replace(rate=0.0) for update in counter._updates()]
                told.add([(counter, last)])
            except _FAULTS:
                self._log_fault(counter)
        return retired

    def _curve_counters(self, local: float) -> list[ClusterCounter]:
        counters: list[ClusterCounter] = []
        for curve in list(self.curves.values()):
            try:
                counters += curve.to_sync(local)
            except _FAULTS:
                self._log_fault(curve.limiter)
        return counters

    def _log_fault(self, part: ClusterCounter | ClusterLimiter) -> None:
        """One counter or limiter failed: it is left out, and the others are synced. Logged once."""
        key = (type(part).__name__, part.name, part.label_values)
        if key not in self._faulty:
            self._faulty.add(key)
            log.exception("cluster %s: %s %r%s is left out of syncs", self.name, *key)

    def _next_beat(self, local: float) -> float:
        interval = self.sync_interval
        beat = (math.floor((local - self._phase) / interval) + 1) * interval + self._phase
        return beat if beat - local > 1e-3 * interval else beat + interval


class _Told:
    """The updates of a request, and whose they are."""

    __slots__ = ("owners", "updates")

    def __init__(self) -> None:
        self.updates: list[CounterUpdate] = []
        self.owners: list[ClusterCounter] = []

    def add(self, told: list[tuple[ClusterCounter, list[CounterUpdate]]]) -> None:
        """Add all of them, or none if the store would refuse one: it would refuse the request."""
        for _, updates in told:
            check_updates(updates)
        for counter, updates in told:
            self.updates += updates
            self.owners += [counter] * len(updates)

    def last_place_of(self, counter: ClusterCounter) -> int:
        place = len(self.owners) - 1
        while self.owners[place] is not counter:
            place -= 1
        return place
