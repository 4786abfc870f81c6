"""The older system, as it was, for comparison: node and central of the classic rule.

    node     counts what is consumed and rejected in each slot of its own wall clock, and once per
             slot sends the counts of the slot before to the active central. What it gets back is
             the quota of the next slot. A request is refused when the slot's count has reached
             the slot's quota; without a quota nothing is refused.
    central  keeps a bucket per user and resource: each slot it gets the rate, up to the burst;
             what is reported is taken out, below zero if need be. In the middle of each slot it
             gives out all that a bucket holds, as the quota of the slot after the next report:
             six tenths by what the nodes consumed and four by what they rejected, both over five
             slots, newer ones counting more; up to a tenth goes to nodes without traffic.

Its faults are kept, for they are what is compared: three slots are in flight at any time and
each is given the whole bucket; no quota means no limit; shares are cut to whole units, so that
small ones are nothing; a report that is lost is lost and one that comes twice counts twice; at
most 1,024 counters are sent; names with a slash are cut in two; a new active central knows
nothing; one bad limit stops them all.

Amounts are in the resource's own unit, times in seconds, slots whole numbers.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sluicegate.quota.ledger.limit_entry import Entry

__all__ = ["ClassicAnswer", "ClassicCentral", "ClassicNode", "ClassicReport"]

Counts = dict[tuple[str, str, str], float]  # service, user, resource
Quotas = dict[tuple[str, str], dict[str, float]]  # of a user, each resource

_MOST_KEYS = 1024
_REMEMBERED = 5  # slots
_BY_CONSUMPTION, _BY_REJECTION = 0.6, 0.4
_FOR_IDLE = 0.1


class ClassicReport(NamedTuple):
    node: str
    slot: int  # in which it is sent; the counts are of the one before
    consumption: Counts
    rejection: Counts


class ClassicAnswer(NamedTuple):
    slot: int
    quota: Quotas


def _split(key: tuple[str, str, str]) -> tuple[str, str, str]:
    """As the counters' keys were read: cut at each slash, whatever the names are."""
    service, user, resource, *_ = "/".join(key).split("/")
    return service, user, resource


class ClassicNode:
    """An end node of the older system."""

    def __init__(
        self,
        node: str,
        *,
        now: float,
        wall: Callable[[float], float],
        leader: Callable[[], str | None],
        slot_seconds: float,
        spread: float,
    ) -> None:
        self._node = node
        self._wall = wall
        self._leader = leader
        self._slot_seconds = slot_seconds
        self._spread = spread * slot_seconds
        self._slot = self._slot_at(now)
        self._consumption: Counts = {}
        self._rejection: Counts = {}
        self._waiting: list[ClassicReport] = []
        self._quotas: dict[int, Quotas] = {}

    def _slot_at(self, now: float) -> int:
        return math.floor(self._wall(now) / self._slot_seconds)

    def _turn(self, now: float) -> None:
        """Begin a new slot, if there is one. A clock that was set back begins one too."""
        slot = self._slot_at(now)
        if slot != self._slot:
            keys = [*self._consumption, *self._rejection][:_MOST_KEYS]
            self._waiting = [
                ClassicReport(
                    self._node,
                    slot,
                    {
                        _split(key): self._consumption[key]
                        for key in keys
                        if key in self._consumption
                    },
                    {_split(key): self._rejection[key] for key in keys if key in self._rejection},
                )
            ]
            self._consumption, self._rejection = {}, {}
            self._slot = slot
            self._quotas = {at: quota for at, quota in self._quotas.items() if at >= slot}

    def throttle(
        self, now: float, service: str, user: str, expect: Mapping[str, float] | None = None
    ) -> str | None:
        """The resource that is used up, or None: pass."""
        self._turn(now)
        for resource, amount in self._quotas.get(self._slot, {}).get((service, user), {}).items():
            key = (service, user, resource)
            if self._consumption.get(key, 0.0) >= amount:
                self._rejection[key] = self._rejection.get(key, 0.0) + 1
                return resource
        return None

    def consume(self, now: float, service: str, user: str, amounts: Mapping[str, float]) -> None:
        self._turn(now)
        for resource, amount in amounts.items():
            key = (service, user, resource)
            self._consumption[key] = self._consumption.get(key, 0.0) + amount

    def offer(
        self, now: float, service: str, user: str, amounts: Mapping[str, float], count: int
    ) -> int:
        """How many of `count` equal requests pass, one after the other."""
        self._turn(now)
        passed = count
        short = ""
        for resource, limit in self._quotas.get(self._slot, {}).get((service, user), {}).items():
            left = limit - self._consumption.get((service, user, resource), 0.0)
            amount = amounts.get(resource, 0.0)
            fits = max(0, math.ceil(left / amount)) if amount > 0 else count if left > 0 else 0
            if fits < passed:
                passed, short = fits, resource
        if passed:
            self.consume(now, service, user, {name: n * passed for name, n in amounts.items()})
        if passed < count:
            key = (service, user, short)
            self._rejection[key] = self._rejection.get(key, 0.0) + count - passed
        return passed

    def outgoing(self, now: float) -> list[tuple[str, ClassicReport]]:
        self._turn(now)
        leader = self._leader()
        if not self._waiting or self._in_slot(now) < self._spread:
            return []
        waiting, self._waiting = self._waiting, []
        return [(leader, report) for report in waiting] if leader is not None else []

    def _in_slot(self, now: float) -> float:
        return self._wall(now) - self._slot * self._slot_seconds

    def due(self, now: float) -> float:
        rest = self._spread - self._in_slot(now)
        return now + (max(rest, 0.0) if self._waiting else rest + self._slot_seconds)

    def receive(self, now: float, source: str, message: ClassicAnswer) -> None:
        self._turn(now)
        if message.slot >= self._slot:
            self._quotas[message.slot] = message.quota


class _Distribution(NamedTuple):
    """What a node reported last of a user's resource, over the slots that are remembered."""

    consumption: dict[int, float]
    rejection: dict[int, float]


class ClassicCentral:
    """The active central of the older system; a standby does nothing at all."""

    def __init__(
        self, name: str, entries: Sequence[Entry], *, now: float, wall: float, slot_seconds: float
    ) -> None:
        self.name = name
        self.leads = False
        self._entries = entries
        self._offset = wall - now
        self._slot_seconds = slot_seconds
        self._forget(now)

    def _forget(self, now: float) -> None:
        self._slot = self._slot_at(now)
        self._assigned = self._slot
        self._levels: Counts = {}
        self._seen: dict[str, int] = {}  # node, slot of its last report
        self._shares: dict[tuple[str, str, str], dict[str, _Distribution]] = {}
        self._quotas: dict[int, dict[str, Quotas]] = {}
        self._booked: Counts = {}

    def _slot_at(self, now: float) -> int:
        return math.floor((now + self._offset) / self._slot_seconds)

    def lead(self, now: float, epoch: int) -> None:
        self.leads = True
        self._forget(now)

    def follow(self, now: float) -> None:
        self.leads = False

    def set_limits(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    def receive(
        self, now: float, source: str, message: ClassicReport
    ) -> list[tuple[str, ClassicAnswer]]:
        if not self.leads:
            return []
        self._seen[message.node] = message.slot
        for key, amount in message.consumption.items():
            self._booked[key] = self._booked.get(key, 0.0) + amount
            if key in self._levels:
                self._levels[key] -= amount
            self._of(key, message.node).consumption[message.slot] = amount
        for key, count in message.rejection.items():
            self._of(key, message.node).rejection[message.slot] = count
        quota = self._quotas.get(message.slot + 1)
        if quota is None:
            return []  # nothing has been assigned yet: the node goes without
        return [(message.node, ClassicAnswer(message.slot + 1, quota.get(message.node, {})))]

    def recorded(self, service: str, user: str, resource: str) -> float:
        return self._booked.get((service, user, resource), 0.0)

    def _of(self, key: tuple[str, str, str], node: str) -> _Distribution:
        return self._shares.setdefault(key, {}).setdefault(node, _Distribution({}, {}))

    def tick(self, now: float) -> list[tuple[str, Any]]:
        """Assign, in the middle of the slot. The nodes fetch it with their next reports."""
        self._slot = self._slot_at(now)
        half = (now + self._offset) / self._slot_seconds - self._slot >= 0.5 - 1e-9
        if half and self._assigned < self._slot:
            passed = self._slot - self._assigned
            self._assigned = self._slot
            if self.leads:
                self._assign(passed)
        return []

    def due(self, now: float) -> float:
        slot = max(self._assigned + 1, self._slot_at(now))
        return (slot + 0.5) * self._slot_seconds - self._offset

    def _assign(self, slots: int) -> None:
        nodes = [node for node, slot in self._seen.items() if slot >= self._slot - _REMEMBERED]
        quotas: dict[str, Quotas] = {node: {} for node in nodes}
        for key, rate, capacity in self._limited():
            level = self._levels.get(key, 0.0) + slots * rate * self._slot_seconds
            self._levels[key] = level = min(level, capacity)
            for node, share in self._split(key, nodes).items():
                user = quotas[node].setdefault(key[:2], {})
                user[key[2]] = float(int(max(level, 0.0) * share))
        self._quotas[self._slot + 2] = quotas
        self._quotas.pop(self._slot - 2, None)

    def _limited(self) -> Iterable[tuple[tuple[str, str, str], float, float]]:
        """Every user seen so far, with their limit."""
        own = {(entry.service, entry.user): entry for entry in self._entries}
        for key in list(self._shares):
            entry = own.get(key[:2]) or own.get((key[0], "*"))
            if entry is not None and key[2] in entry.rates:
                rate = entry.rates[key[2]]
                slot_amount = rate * self._slot_seconds
                yield key, rate, max(rate * entry.burst_seconds, slot_amount)

    def _split(self, key: tuple[str, str, str], nodes: Sequence[str]) -> dict[str, float]:
        consumed = {node: self._recent(key, node, 0) for node in nodes}
        rejected = {node: self._recent(key, node, 1) for node in nodes}
        busy = [node for node in nodes if consumed[node] or rejected[node]]
        if not busy:
            return {node: 1.0 / len(nodes) for node in nodes}
        idle = len(nodes) - len(busy)
        for_idle = min(_FOR_IDLE, idle / len(nodes)) if idle else 0.0
        all_consumed, all_rejected = sum(consumed.values()), sum(rejected.values())
        by_consumption = _BY_CONSUMPTION if all_rejected else 1.0
        by_rejection = _BY_REJECTION if all_consumed else 1.0
        shares = {}
        for node in nodes:
            share = 0.0
            if all_consumed:
                share += by_consumption * consumed[node] / all_consumed
            if all_rejected:
                share += by_rejection * rejected[node] / all_rejected
            shares[node] = share * (1.0 - for_idle) if share else for_idle / idle
        return shares

    def _recent(self, key: tuple[str, str, str], node: str, which: int) -> float:
        """What a node reported in the last slots; the newest counts most."""
        distribution = self._shares[key].get(node)
        if distribution is None:
            return 0.0
        slots = distribution[which]
        oldest = self._slot - _REMEMBERED
        for slot in [slot for slot in slots if slot <= oldest]:
            del slots[slot]
        return sum(amount * (slot - oldest) / _REMEMBERED for slot, amount in slots.items())
