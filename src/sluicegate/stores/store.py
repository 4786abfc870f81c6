"""What a store does: one exchange per sync, for all counters of a writer.

A writer is one life of one node: a restarted node is a new writer. It sends the cumulative total of
each counter, never a difference, so that a message which is lost, repeated or overtaken does no
harm: the store adds what is new to the counter's sum, and a request whose number is not higher than
the last one of that writer changes no counter. One that was overtaken does not change when its
writer lapses, either.

Beside its total a writer tells its rate. The store keeps the sum of all rates and of all
(rate x time of the sync), which is all it takes to project a counter to any moment:

    sum of (total + rate x (now - time))  =  sum + rates x now - rates_at

The last two terms are the `lead` of a reply. It begins anew with each period, and rates go on. So a
node knows what the others did since their last sync, on average, without waiting for their next
one.

A counter has one record over all its periods. An update with a newer `begin` turns it: totals begin
at 0 and holds end. What a writer tells late of the period before is added to that period's totals.
So a request is accepted by (begin, number), and a period that has ended is told before the one that
follows it.

A writer may also *hold* an amount: the store grants what is wanted as long as the sum and all
holds stay within the ceiling that the writer names. Holds are how whole units are split exactly
when each node's part is less than one. A hold is an amount, not a change, so it can be repeated.

A writer that has not synced for `live_for` seconds has lapsed: its rates and holds no longer count;
its totals do. After `FOLD_AFTER` its own record is deleted as well; its total stays in the sum. A
writer that was not heard for half of that time must therefore take a new name (`Cluster` does).
A counter remembers until when lapsed writers were dropped from it, so each is dropped once, by
whichever writer syncs that counter next.
"""

import math
from typing import NamedTuple, Protocol

__all__ = [
    "FOLD_AFTER",
    "KEEP_AFTER_END",
    "REMEMBER_WRITERS",
    "CounterKey",
    "CounterTotals",
    "CounterUpdate",
    "Store",
    "SyncReply",
    "SyncRequest",
    "check_updates",
]

FOLD_AFTER = 3600.0  # seconds after which a lapsed writer's own record is deleted
KEEP_AFTER_END = 3600.0  # seconds a counter is kept after its period, for what comes late
REMEMBER_WRITERS = 86_400.0  # seconds for which the store knows when a writer lapsed


class CounterKey(NamedTuple):
    """One counter in one period, in Unix time; begin and end are 0 where there is no period."""

    name: str
    labels: tuple[str, ...]
    begin: float
    end: float
    period: float  # seconds; 0 if it happens once
    zone: str = ""  # the time zone, if the begin of a period depends on it

    @property
    def identity(self) -> tuple[object, ...]:
        """What is the same in all its periods. One with other periods is another counter."""
        if self.period:
            return (self.name, self.labels, self.period, self.zone)
        return (self.name, self.labels, self.begin, self.end)


class CounterUpdate(NamedTuple):
    """What a writer tells of one counter."""

    key: CounterKey
    sum: float  # of this writer, in this period
    count: int  # type: ignore[assignment]  # a tuple's own count() is of no use here
    rate: float  # per second, now
    want: float  # the hold it would like to have
    unit: float  # holds are granted in multiples of this
    ceiling: float  # the sum and all holds may reach this


class CounterTotals(NamedTuple):
    """What the store knows of one counter, this update included."""

    sum: float
    count: int  # type: ignore[assignment]
    rate: float  # of all live writers, per second
    lead: float  # what live writers have added since they synced, by their rates
    held: float  # by all live writers
    granted: float  # of this, by the writer that asks


class SyncRequest(NamedTuple):
    cluster: str
    writer: str
    number: int  # grows with each request of the writer
    time: float  # Unix time, as the writer knows it
    live_for: float  # seconds
    since: float  # the time of the writer's last reply; 0 if there was none
    may_fold: bool  # the writer has been in touch long enough to know who is gone
    updates: list[CounterUpdate]


class SyncReply(NamedTuple):
    time: float  # Unix time, as the store knows it
    nodes: int  # live writers of the cluster, this one included
    totals: list[CounterTotals]  # in the order of the updates
    skipped: frozenset[int] = frozenset()  # places of updates that could not be carried out


class Store(Protocol):
    def sync(self, request: SyncRequest) -> SyncReply:
        """Carry out one request. Raises `Unavailable` when the store does not answer."""
        ...

    def close(self) -> None: ...


def check_updates(updates: list[CounterUpdate]) -> None:
    """Raise `ValueError` for numbers that would spoil a counter for all writers."""
    for update in updates:
        key, total, count, rate, want, unit, ceiling = update
        if not (
            math.isfinite(total + count + rate + want + key.begin + key.end)
            and want >= 0.0
            and 0.0 < unit < math.inf
            and ceiling > -math.inf
        ):
            raise ValueError(
                "an update must have finite numbers, a want >= 0, and a unit above 0, "
                f"got {update!r}"
            )
