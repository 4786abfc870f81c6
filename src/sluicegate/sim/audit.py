"""The auditor: sees every message and every request of a run, and believes none of them.

It keeps books of its own, in plain Python and from the messages alone, and shares no code with
the ledger or the node. At each step it holds the system to four promises:

1. Nothing is promised that is not there. When a central gives more than before for a slot, all
   that is promised and not reported, with what running requests hold, is at most what its bucket
   holds and the refill of the slot that is given out.
2. Nothing is booked that was not consumed: what the leader has recorded is never above it. And
   nodes report exactly what went through them.
3. No user is without a bound: what a node lets through for a user in a slot is at most the share
   it has for that user (fresh, reused, a safe share, a newcomer's or the fallback) and one request.
4. Epochs do not go back: a node that has heard a leader obeys none of an earlier epoch.

What breaks one of them raises `InvariantBroken`, with the scenario, the random seed, the time and
the facts, and the command that shows it again.

The auditor knows a central by what it sends. A standby promises in the shadow, so of a new leader
only its own promises are counted. A promise counts until its node has reported the slot, has
stopped or started anew, or is forgotten. When a late report comes, what spilled over the full
bucket in its time is set against it. Amounts in a ledger have the precision of a 32-bit float;
that much is forgiven.

What was given out in the shadow, or made up for before anyone asked, is told when a node asks for
it: by then a report may have shown that less is there. Such an answer is written down and not
held against the central; the next assignment has to make up for it. Users without a limit are not
counted by nodes: of who was free for a time, a node may report less than went through it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluicegate.errors import SluicegateError
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.messages import Line, Quota, Report, Share
from sluicegate.sim.machines import Machine
from sluicegate.sim.scenario import Scenario, all_limits, entry_of, rate_of
from sluicegate.sim.world import World

__all__ = ["Audit", "InvariantBroken"]

Key = tuple[str, str, str]  # service, user, resource

_FORGET_SLOTS = 300  # a node that is silent for longer is forgotten
_SILENT_SLOTS = 3  # one that has not reported for so many gets nothing more
_ROUND_TRIP_SLOTS = 3  # beside its burst a bucket holds a request and so many slots' refill
_WAIT_SLOTS = 10  # so long nodes may take to tell of the time before the books were begun
_LEASE = 3
_RETURN_SECONDS = 4.0  # so long nodes may take to find a central that is back
_FALLBACK = 10.0  # requests per second of a user nobody has told anything of
_ROUNDING = 2e-5
_REPORTS = 1024  # whose lines are kept by cell: each is looked at by every central


class InvariantBroken(SluicegateError):
    """A run in which something happened that must never happen."""

    def __init__(self, scenario: str, seed: int, time: float, facts: str, command: str) -> None:
        super().__init__(
            f"{facts} (scenario {scenario}, seed {seed}, at {time:.3f} s; "
            f"see it again with: {command} --seed {seed})"
        )
        self.scenario = scenario
        self.seed = seed
        self.time = time
        self.facts = facts
        self.command = command

    def __reduce__(self) -> tuple[type["InvariantBroken"], tuple[str, int, float, str, str]]:
        return type(self), (self.scenario, self.seed, self.time, self.facts, self.command)


@dataclass(slots=True, eq=False)
class Cell:
    """One resource of a user of a service, in all books. It is its own key: to hash three names
    at each step would take most of the auditor's time."""

    key: Key
    rate: float | None  # units per slot; None: no limit
    capacity: float
    unit: float = 1.0  # the most that one request took
    consumed: float = 0.0
    was_free: bool | None = None  # whether there is a time without this limit; None: not asked yet


@dataclass(slots=True)
class _Bucket:
    level: float
    slot: int  # up to which it is refilled
    rate: float  # units per slot, as of the limit that it is refilled by
    capacity: float
    was_held: float = 0.0  # by running requests, when it was refilled last
    spilled: float = 0.0  # what did not fit since some node was late
    born: int = 0  # the slot in which it was made
    unseen: float = 0.0  # what was taken to have spilled before
    wait: int = 0  # the slot until which that counts
    promised: dict[str, dict[int, float]] = field(default_factory=dict)  # node, slot
    held: dict[str, float] = field(default_factory=dict)  # node

    def copy(self) -> "_Bucket":
        promised = {node: dict(slots) for node, slots in self.promised.items()}
        return replace(self, promised=promised, held=dict(self.held))


@dataclass(slots=True)
class _CentralBooks:
    """What one central must know, from what it has heard."""

    begun: int
    version: int = 1
    heard: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # boot, sequence, slot
    seen: dict[str, int] = field(default_factory=dict)  # the slot in which a node was heard of
    totals: dict[tuple[str, int], dict[Cell, float]] = field(default_factory=dict)
    buckets: dict[Cell, _Bucket] = field(default_factory=dict)
    # What was promised since the last check: node, slot, amount, amount before, present slot.
    unchecked: dict[Cell, tuple[str, int, float, float, int]] = field(default_factory=dict)
    assigned: int = -1  # the highest slot that was given out as a whole
    # The slots that nodes were told of ahead. What was made up for, as at the start or after a
    # standstill, was given out before a node asks and is told.
    told: set[int] = field(default_factory=set)
    shadow: int = -1  # the highest slot that was given out before it led
    is_cold: bool = False  # it was not there from the beginning
    left: int | None = None  # it is away since the assignment of this slot; -1: it has restarted
    back: int = 0  # the slot in which it came back, after it was away
    # The nodes that were there when it left and have not been heard since: the slot up to which
    # they are taken to live on their safe shares.
    alone: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "_CentralBooks":
        return replace(
            self,
            heard=dict(self.heard),
            seen=dict(self.seen),
            totals={life: dict(totals) for life, totals in self.totals.items()},
            buckets={cell: bucket.copy() for cell, bucket in self.buckets.items()},
            unchecked=dict(self.unchecked),
            told=set(self.told),
            alone=dict(self.alone),
        )


@dataclass(slots=True)
class _Passed:
    """What a node has let through of a cell in its window."""

    taken: float = 0.0
    counted: float = 0.0  # has ended
    bound: float = 0.0
    judged: int = -1  # after how many words
    unshared: float = 0.0  # passed while nobody had told
    is_untold: bool = False  # still nobody has


@dataclass(slots=True)
class _NodeView:
    """What a node was told, and what it has let through of it."""

    boot: int
    epoch: int = -1
    slots: dict[int, dict[str, Any]] = field(default_factory=dict)
    window: int = -1
    slot: int = -1
    words: int = 0  # messages that changed it: quotas, and a new slot
    again: int = 0  # windows for which a slot was held, as the leader's clock went back
    passed: dict[Cell, _Passed] = field(default_factory=dict)  # in this window
    ended: dict[tuple[str, str], int] = field(default_factory=dict)  # requests that ran, by user


class Audit:
    """Watches one run."""

    def __init__(self, scenario: Scenario, seed: int, world: World) -> None:
        self._scenario = scenario
        self._seed = seed
        self._world = world
        self._entries: Sequence[Entry] = scenario.limits
        self._coming: Sequence[Entry] | None = None
        self._changed_slot = 0  # in which the limits changed last
        self._all_limits = all_limits(scenario)
        self._cells: dict[Key, Cell] = {}
        self._found: dict[tuple[str, str], Entry | None] = {}
        self._lines: dict[int, tuple[object, list[tuple[Cell, Line]]]] = {}
        self._books: dict[str, _CentralBooks] = {}
        self._disks: dict[str, _CentralBooks] = {}
        self._processes: dict[str, Any] = {}
        self._views: dict[str, _NodeView] = {}
        self._sequences: dict[tuple[str, int], int] = {}
        self._told: dict[tuple[str, int], dict[Cell, tuple[float, float]]] = {}
        self._safe: dict[tuple[str, Cell], float] = {}  # what nodes were told for bad times
        self._tallies: Mapping[tuple[str, int], Mapping[Key, float]] = {}
        self._leader: str | None = None

    def _broken(self, facts: str) -> InvariantBroken:
        scenario = self._scenario
        return InvariantBroken(scenario.name, self._seed, self._world.now, facts, scenario.command)

    def watch(self, tallies: Mapping[tuple[str, int], Mapping[Key, float]]) -> None:
        """Be shown what really went through each life of each node."""
        self._tallies = tallies

    # What happens to machines

    def node_started(self, name: str, boot: int) -> None:
        self._views[name] = _NodeView(boot)

    def central_started(self, name: str, process: Any, slot: int, *, warm: bool) -> None:
        self._processes[name] = process
        if warm and name in self._disks:
            self._books[name] = self._disks[name].copy()
            self._books[name].left = -1
        else:
            self._books[name] = _CentralBooks(slot, is_cold=name in self._books)

    def central_frozen(self, name: str, time: float) -> None:
        """A central stands still; `time`: what its clock says."""
        self._books[name].left = math.floor(time / self._scenario.slot_seconds - 0.5)

    def snapshot_written(self, name: str) -> None:
        self._disks[name] = self._books[name].copy()

    def leads(self, name: str, time: float) -> None:
        """A central leads from now on; `time`: what its clock says."""
        if self._leader is not None:
            # What it gives for these slots it has promised in the shadow, when more was there.
            self._books[name].shadow = round(time / self._scenario.slot_seconds)
        self._leader = name

    def limits_changed(self, entries: Sequence[Entry]) -> None:
        self._coming = entries

    # Cells and their limits

    def cell(self, service: str, user: str, resource: str) -> Cell:
        key = (service, user, resource)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Cell(key, *self._limit(key))
        return cell

    def _limit(self, key: Key) -> tuple[float | None, float]:
        """Units per slot, None if there is no limit, and what a bucket holds."""
        service, user, resource = key
        if (service, user) not in self._found:
            self._found[service, user] = entry_of(self._entries, service, user)
        entry = self._found[service, user]
        if entry is None or resource not in entry.rates:
            return None, 0.0
        rate = entry.rates[resource]
        return rate * self._scenario.slot_seconds, rate * entry.burst_seconds

    def _was_free(self, cell: Cell) -> bool:
        """Whether there is a time without this limit: nodes do not count free users."""
        if cell.was_free is None:
            cell.was_free = any(rate_of(entries, *cell.key) is None for entries in self._all_limits)
        return cell.was_free

    def _ceiling(self, cell: Cell, bucket: _Bucket) -> float:
        unit = cell.unit
        rate = bucket.rate
        return max(bucket.capacity, rate, unit + min(unit, _ROUND_TRIP_SLOTS * rate))

    def _lines_of(self, report: Report) -> list[tuple[Cell, Line]]:
        """The lines of a report by cell. Most often all centrals are sent the same."""
        known = self._lines.get(id(report.lines))
        if known is not None:
            return known[1]
        if len(self._lines) >= _REPORTS:
            self._lines.clear()
        lines = [
            (self.cell(service, user, resource), line)
            for service, users in report.lines.items()
            for user, resources in users.items()
            for resource, line in resources.items()
        ]
        self._lines[id(report.lines)] = report.lines, lines  # which keeps the number from others
        return lines

    def _change_limits(self, version: int, books: _CentralBooks, slot: int) -> None:
        """A central speaks of new limits: they hold for all of them from this slot on."""
        if version != books.version:
            books.version = version
            if self._coming is not None:
                self._entries, self._coming = self._coming, None
                self._changed_slot = slot
                self._found.clear()
                for cell in self._cells.values():
                    cell.rate, cell.capacity = self._limit(cell.key)

    # 1. Promises

    def sent(self, source: Machine, target: str, message: Any) -> None:
        if type(message) is Quota:
            self._promised(source.name, target, message)
        elif type(message) is Report:
            self._reported(source, message)

    def _promised(self, central: str, node: str, quota: Quota) -> None:
        books = self._books[central]
        # Not to be had from the quota's slot: an answer may be for this one and for the next.
        now_slot = math.floor(quota.time / self._scenario.slot_seconds + _ROUNDING)
        self._change_limits(quota.version, books, now_slot)
        if quota.whole and quota.slot > now_slot and quota.slot not in books.told:
            books.told = {slot for slot in books.told if slot >= now_slot} | {quota.slot}
        # In the middle of a slot the next is given out, whether or not a node is there to be told.
        given = math.floor(quota.time / self._scenario.slot_seconds + 0.5)
        books.assigned = max(books.assigned, given, quota.slot if quota.whole else given)
        for service, part in quota.services.items():
            for user, shares in part.users.items():
                for resource, share in shares.items():
                    cell = self.cell(service, user, resource)
                    if cell.rate is not None:
                        self._promise(central, books, node, cell, cell.rate, quota, share, now_slot)

    def _promise(
        self,
        central: str,
        books: _CentralBooks,
        node: str,
        cell: Cell,
        rate: float,
        quota: Quota,
        share: Share,
        now_slot: int,
    ) -> None:
        """Write down what is promised, in place of what was promised before."""
        bucket = self._bucket(books, cell, rate, now_slot)
        if quota.whole and quota.slot <= now_slot:
            # A node that has come back is told what was given out in the slot before.
            bucket.promised.setdefault(node, {})[quota.slot] = share.amount
            return
        if now_slot > bucket.slot:
            self._refill(books, bucket, cell, now_slot)
        self._safe[node, cell] = share.safe
        promised = bucket.promised.setdefault(node, {})
        before = promised.get(quota.slot, 0.0)
        promised[quota.slot] = share.amount
        is_old = quota.slot <= books.shadow or (not quota.whole and quota.slot not in books.told)
        heard = books.heard.get(node)
        if share.amount > before and not is_old and (heard is None or quota.slot > heard[2]):
            # All quotas of an assignment are sent at once: they are looked at together, before
            # the central hears anything else. An answer to an Ask is looked at now.
            books.unchecked[cell] = (node, quota.slot, share.amount, before, now_slot)
            if not quota.whole:
                self._check_promises(central, books)

    def _check_promises(self, central: str, books: _CentralBooks) -> None:
        unchecked, books.unchecked = books.unchecked, {}
        for cell, (node, slot, amount, before, now_slot) in unchecked.items():
            rate = cell.rate
            if rate is None:
                continue
            bucket = books.buckets[cell]
            last = max(slot, books.assigned)
            outstanding = self._outstanding(books, bucket, last, now_slot)
            outstanding += self._on_their_own(books, cell, bucket, last)
            there = bucket.level + rate * (last - now_slot)
            if outstanding > there + _ROUNDING * max(outstanding, rate, cell.unit):
                service, user, resource = cell.key
                raise self._broken(
                    f"{central} promises {node} {amount:g} {resource} of {service}/{user} for "
                    f"slot {slot} (before: {before:g}), and {outstanding:g} in all, of {there:g} "
                    f"that are there (level {bucket.level:g}, {rate:g} per slot)"
                )

    def _bucket(self, books: _CentralBooks, cell: Cell, rate: float, slot: int) -> _Bucket:
        bucket = books.buckets.get(cell)
        capacity = cell.capacity
        if bucket is None:
            born = max(slot, books.begun)
            bucket = books.buckets[cell] = _Bucket(rate, books.begun, rate, capacity, born=born)
        elif bucket.rate != rate or bucket.capacity != capacity:
            # The limit has changed: what is saved keeps its proportion, a debt stays.
            if self._changed_slot > bucket.slot:
                self._refill(books, bucket, cell, self._changed_slot)
            before = self._ceiling(cell, bucket)
            bucket.rate, bucket.capacity = rate, capacity
            if bucket.level > 0.0 and before > 0.0:
                bucket.level *= self._ceiling(cell, bucket) / before
        return bucket

    def _refill(self, books: _CentralBooks, bucket: _Bucket, cell: Cell, slot: int) -> None:
        # A central knows what was held when it gave out last; since then some may have ended.
        held = sum(bucket.held.values()) + self._promised_to_silent(books, bucket, slot)
        held += self._on_their_own(books, cell, bucket, slot + 1)
        full = self._ceiling(cell, bucket) + max(held, bucket.was_held)
        bucket.was_held = held
        refilled = bucket.level + bucket.rate * (slot - bucket.slot)
        is_on_time = all(reported >= slot - 1 for _, _, reported in books.heard.values())
        if is_on_time and slot >= bucket.wait:
            bucket.spilled = 0.0
        else:
            bucket.spilled += max(0.0, refilled - full)
        bucket.level = min(refilled, full)
        bucket.slot = slot

    def _promised_to_silent(self, books: _CentralBooks, bucket: _Bucket, now_slot: int) -> float:
        """What may be spent by nodes that are not heard: it takes no room in the bucket."""
        silent = 0.0
        for node, promised in bucket.promised.items():
            reported = books.heard.get(node, (0, 0, now_slot - 1))[2]
            if now_slot - reported >= _SILENT_SLOTS:
                silent += sum(amount for slot, amount in promised.items() if slot > reported)
        return silent

    def _on_their_own(self, books: _CentralBooks, cell: Cell, bucket: _Bucket, last: int) -> float:
        """What nodes that wait for a central that was away take, beside their promises."""
        own = 0.0
        for node, until in books.alone.items():
            since = max([books.heard[node][2], *bucket.promised.get(node, ())])
            own += self._safe.get((node, cell), 0.0) * max(0, min(last, until) - since)
        return own

    def _notice_absence(self, books: _CentralBooks, present: int) -> None:
        """Who was away for longer than quotas are reused finds its nodes on their own."""
        left, books.left = books.left, None
        if left is not None and present > left + _LEASE:
            books.back = present
            until = present + math.ceil(_RETURN_SECONDS / self._scenario.slot_seconds)
            there = max((heard[2] for heard in books.heard.values()), default=0) - 1
            books.alone = {node: until for node, heard in books.heard.items() if heard[2] >= there}

    def _outstanding(
        self, books: _CentralBooks, bucket: _Bucket, last: int, now_slot: int
    ) -> float:
        outstanding = 0.0
        for node, promised in bucket.promised.items():
            reported = books.heard.get(node, (0, 0, now_slot - 1))[2]
            if now_slot - reported < _FORGET_SLOTS:
                outstanding += bucket.held.get(node, 0.0)
                for slot in [slot for slot in promised if slot <= reported]:
                    del promised[slot]
                outstanding += sum(amount for slot, amount in promised.items() if slot <= last)
        return outstanding

    # 2. Books

    def _reported(self, machine: Machine, report: Report) -> None:
        """A node reports: what it says went through it must have, up to the end of the slot."""
        life = (report.node, report.boot)
        if self._sequences.get(life, 0) >= report.sequence:
            return  # the same, to another central
        self._sequences[life] = report.sequence
        tally = self._tallies.get(life, {})
        passed = self._turned(machine, machine.now()).passed
        told = self._told.setdefault(life, {})
        for cell, line in self._lines_of(report):
            total = self._total(told, cell, line.consumed)
            real = tally.get(cell.key, 0.0)
            if not report.leaving and cell in passed:
                real -= passed[cell].counted
            slack = 1e-9 * max(1.0, real)
            if total > real + slack or (total < real - slack and not self._was_free(cell)):
                service, user, resource = cell.key
                raise self._broken(
                    f"{report.node} reports {total:g} {resource} of {service}/{user}, "
                    f"and {real:g} went through it"
                )

    def _total(self, told: dict[Cell, tuple[float, float]], cell: Cell, consumed: float) -> float:
        """The total since boot. A node forgets idle users: their totals begin at 0 again."""
        forgotten, last = told.get(cell, (0.0, 0.0))
        if consumed < last:
            forgotten += last
        told[cell] = (forgotten, consumed)
        return forgotten + consumed

    def central_hears(self, name: str, time: float, message: Any) -> None:
        """Book a report as the central should, at `time` of its clock."""
        books = self._books[name]
        if books.unchecked:
            self._check_promises(name, books)
        if type(message) is not Report:
            return
        heard = books.heard.get(message.node)
        if heard is not None and (message.boot, message.sequence) <= heard[:2]:
            return
        # A node that no leader has told the time may be far ahead.
        present = math.floor(time / self._scenario.slot_seconds)
        self._notice_absence(books, present)
        is_told = message.leaving or message.epoch >= 0
        slot, slots = min(message.slot, present if is_told else present - 1), 1
        if heard is not None:
            slot = max(slot, heard[2])
            if heard[0] == message.boot:
                if message.since > heard[1]:
                    return  # it takes for granted what this central does not know
                silent = present - books.seen.get(message.node, present)
                slots = max(1, min(slot - heard[2], silent + 1))
        elif message.settled_slot >= 0:
            slots = max(1, slot - message.settled_slot)
        if message.leaving or (heard is not None and heard[0] != message.boot):
            for bucket in books.buckets.values():
                bucket.promised.pop(message.node, None)
                bucket.held.pop(message.node, None)
        books.heard[message.node] = (message.boot, message.sequence, slot)
        books.seen[message.node] = present
        if slot >= books.back - 1:
            books.alone.pop(message.node, None)
        is_late = math.floor(time / self._scenario.slot_seconds + 0.5) > slot + 1
        totals = books.totals.setdefault((message.node, message.boot), {})
        for cell, line in self._lines_of(message):
            rate = cell.rate
            if rate is None:
                continue
            before = totals.get(cell)
            # Never more than the ledger takes out: what it may know of is left out.
            new = line.consumed - (line.settled if before is None else before)
            if new < 0:
                new = line.consumed - line.settled
            totals[cell] = line.consumed
            bucket = self._bucket(books, cell, rate, slot)
            if slots > 1:
                # The refill of the time before its books were begun.
                unseen = rate * (bucket.born - 1 - (slot - slots))
                if unseen > bucket.unseen:
                    bucket.spilled += unseen - bucket.unseen
                    bucket.unseen = unseen
                    bucket.wait = max(bucket.wait, slot + _WAIT_SLOTS)
            # All but its last slot is old; and that too, if it comes after the assignment,
            # or after an answer to somebody who asked.
            older = slots - 1 + (is_late or bucket.slot > slot)
            recovered = min(bucket.spilled, new * older / slots)
            bucket.spilled -= recovered
            bucket.level += recovered - new
            bucket.held[message.node] = 0.0 if message.leaving else line.held

    def central_heard(self, name: str, message: Any) -> None:
        """What the leader has recorded by now was consumed."""
        if type(message) is not Report or name != self._leader:
            return
        recorded_of = self._processes[name].ledger.recorded
        for cell, _ in self._lines_of(message):
            recorded = recorded_of(*cell.key)
            if recorded > cell.consumed * (1 + 1e-9) + 1e-9:
                service, user, resource = cell.key
                raise self._broken(
                    f"{name} has recorded {recorded:g} {resource} of {service}/{user}, "
                    f"and {cell.consumed:g} were consumed"
                )

    def lost(self, name: str, key: Key, down: Collection[str]) -> float:
        """What went through nodes that crashed, or are `down`, and this central never heard of."""
        books = self._books[name]
        cell = self.cell(*key)
        lost = 0.0
        for (node, boot), tally in self._tallies.items():
            if boot < self._views[node].boot or node in down:
                lost += tally.get(key, 0.0) - books.totals.get((node, boot), {}).get(cell, 0.0)
        return lost

    # 3. and 4. Nodes

    def node_hears(self, node: str, message: Any) -> None:
        view = self._views[node]
        if type(message) is not Quota:
            if message.leads and message.epoch > view.epoch and message.boot == view.boot:
                view.epoch = message.epoch
            return
        if message.epoch < view.epoch:
            return
        view.epoch = message.epoch
        view.words += 1
        if message.slot >= view.slot:
            view.again = 0
        known = view.slots.setdefault(message.slot, {"wholes": 0, "users": {}, "newcomers": {}})
        known["wholes"] += message.whole
        for service, part in message.services.items():
            known["newcomers"].setdefault(service, []).append(part.newcomers)
            for user, shares in part.users.items():
                users = known["users"].setdefault((service, user), [])
                users.append((shares, message.whole))
        if len(view.slots) > 16:
            self._forget_old(view)

    def node_heard(self, node: str, process: Any, now: float, message: Any) -> None:
        view = self._views[node]
        if type(message) is Quota and message.epoch < view.epoch:
            epoch = process.status(now).epoch
            if epoch < view.epoch:
                raise self._broken(
                    f"{node} follows epoch {epoch} though it has heard of epoch {view.epoch}"
                )

    def _forget_old(self, view: _NodeView) -> None:
        wholes = [
            slot for slot, known in view.slots.items() if known["wholes"] and slot <= view.slot
        ]
        if wholes:
            for slot in [slot for slot in view.slots if slot < max(wholes) - 1]:
                del view.slots[slot]

    def admitted(self, machine: Machine, now: float, cell: Cell, cost: float, count: int) -> None:
        """`count` requests have passed and ended at once, each of which took `cost` of a cell."""
        view = self._turned(machine, now)
        if cost > cell.unit:
            cell.unit = cost
        passed = self._count(view, cell, cost * count)
        if cell.rate is None:
            return
        passed.taken = taken = passed.taken + cost * count
        if passed.judged == view.words:  # nothing new was said since
            if passed.is_untold:
                passed.unshared = taken
            if taken <= passed.bound:
                return
        passed.judged = view.words
        unit = cell.unit
        most = self._share_of(view, cell, view.slot)
        if most is None:  # what the fallback lets through is not part of a share that comes
            most = _FALLBACK * self._scenario.slot_seconds * unit
            passed.unshared = taken
            passed.is_untold = True
        else:
            most += passed.unshared
            passed.is_untold = False
        passed.bound = bound = max(passed.bound, most)
        service, user, resource = cell.key
        # Requests are not told apart: one that ends gives back what another has reserved.
        forgiven = unit * (1 + view.ended.get((service, user), 0))
        if taken > (bound + forgiven) * (1 + _ROUNDING):
            raise self._broken(
                f"{machine.name} let {taken:g} {resource} of {service}/{user} through in slot "
                f"{view.slot}, and had a share of {bound:g}"
            )

    def started(
        self, machine: Machine, now: float, service: str, user: str, costs: Mapping[str, float]
    ) -> None:
        """A request has passed whose cost is counted when it ends. Until then the node charges
        what it expects, which is its own matter."""
        self._turned(machine, now)
        for resource, cost in costs.items():
            cell = self.cell(service, user, resource)
            if cost > cell.unit:
                cell.unit = cost

    def consumed(
        self, machine: Machine, service: str, user: str, costs: Mapping[str, float]
    ) -> None:
        """A request has ended whose cost was not counted when it passed."""
        view = self._turned(machine, machine.now())
        view.ended[service, user] = view.ended.get((service, user), 0) + 1
        for resource, cost in costs.items():
            self._count(view, self.cell(service, user, resource), cost)

    def _turned(self, machine: Machine, now: float) -> _NodeView:
        """What the node knows in the window that it is in now."""
        view = self._views[machine.name]
        slot, window = machine.process.slot_and_window(now)
        if slot != view.slot:
            view.slot = slot
            view.words += 1
        else:
            view.again += window - view.window
        if window != view.window:
            view.window = window
            view.passed.clear()
            view.ended.clear()
        return view

    def _count(self, view: _NodeView, cell: Cell, amount: float) -> _Passed:
        cell.consumed += amount
        passed = view.passed.get(cell)
        if passed is None:
            passed = view.passed[cell] = _Passed()
        passed.counted += amount
        return passed

    def _share_of(self, view: _NodeView, cell: Cell, slot: int) -> float | None:
        """The most that a node may believe it has for a user in a slot; None: nobody has told."""
        service, user, resource = cell.key
        unit = cell.unit
        most = -math.inf
        for known_slot in sorted(view.slots, reverse=True):
            if known_slot > slot:
                continue
            known = view.slots[known_slot]
            named = known["users"].get((service, user), ())
            for shares, _ in named:
                share = shares.get(resource)
                if not shares or share is None:
                    return math.inf  # free, or this resource is
                if slot - known_slot <= _LEASE:
                    most = max(most, share.amount)
                # After its clock went back, a node may wait for the leader's word to be sure.
                if slot + view.again - known_slot > _LEASE:
                    most = max(most, share.safe, unit)
            # A whole quota that came later may not name the user any more.
            if most == -math.inf or known["wholes"] > sum(whole for _, whole in named):
                for newcomers in known["newcomers"].get(service, ()):
                    if newcomers:
                        most = max(most, newcomers.get(resource, 0.0), unit)
            if known["wholes"]:
                break
        return most if most > -math.inf else None
