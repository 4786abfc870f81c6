"""What one central must know, from what it has heard and said: the auditor's books of it.

A bucket has a level, which is refilled by the time, and an account for each node, with the totals
of its credit. What is *outstanding* is granted - returned - consumed of all accounts. A grant is
right if all that is outstanding is in the bucket.

The books err on the generous side, so that whatever they object to is wrong:

- A bucket is full at its capacity and what nodes have used and not reported, or hold while they
  are not heard; while credit is out, with a request for each node besides.
- What overflowed while a report was missing is set against what the node consumed beyond its
  grants in that time.
- After an outage the refill is kept for nodes that have not come back yet, for some seconds: where
  they tell of less, the rest is still there.
- A central that began with empty books is told by nodes of a time before: that is no debt, nor is
  what requests have reserved that another leader had granted.

Times are slots of the central's clock, with fractions.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sluicegate.quota.messages import Ask, Line, Report, UserAsk
from sluicegate.sim.audited_limits import Cell

__all__ = ["CentralBooks"]

_SILENT_SLOTS = 3  # a node that has not reported for so many is not heard
_FORGET_NODE_SLOTS = 300  # and for so many, is forgotten
_FORGET_REPORTS = 60  # after so many reports without a word, a node may have forgotten a user
_FORGET_CREDIT_SLOTS = 240  # after so many, the central forgets the user's credit there
_CLOCK_BACK_SLOTS = 60  # a clock that goes back by more is followed at once
_ROUNDING = 1e-5


@dataclass(slots=True)
class _Account:
    """The credit of a cell at one node, in totals."""

    granted: float = 0.0
    returned: float = 0.0
    used: float = 0.0  # consumed, and reserved by running requests
    consumed: float = 0.0  # as far as it is booked
    sequence: int = 0  # of the last report with a line of it
    is_new: bool = True  # there was none yet
    has_asked: bool = False
    cost: float = 0.0  # of a request, as the node has told last; 0: it has not
    told: float = 0.0  # when the node last told of it
    uncovered: float = 0.0  # beyond the grants in these books, until it is booked

    def outstanding(self) -> float:
        return max(0.0, self.granted - self.returned - self.consumed)

    def unbooked(self) -> float:
        return max(0.0, self.used - self.consumed)

    def tell(self, granted: float, returned: float) -> None:
        """Believe what a node tells of its credit, and cover what it has used.

        Grants that are not known here were made after the snapshot, or by another leader.
        """
        self.uncovered += max(0.0, granted - self.granted)
        self.granted = max(self.granted, granted)
        self.returned = max(self.returned, returned)
        beyond = max(0.0, self.returned + self.used - self.granted)
        self.uncovered += beyond
        self.granted += beyond


@dataclass(slots=True)
class _Bucket:
    level: float
    time: float  # up to which it is refilled
    rate: float
    capacity: float
    cost: float = 0.0  # of the largest request
    most_unused: float = 0.0  # of the credit that was out at any time
    inherited: float = 0.0  # of it, what was out when the limit was lowered
    strict: float = 0.0  # the level without what it may hold beyond its capacity
    outstanding: float = 0.0  # the sum of all accounts
    unbooked: float = 0.0
    beyond: float = 0.0  # the most that it could hold beyond its capacity since the last refill
    overflowed: float = 0.0  # refill that was lost while a report was missing
    overflowed_lately: float = 0.0  # the part of it since `slot` began
    slot: int = -1  # of the last refill
    accounts: dict[str, _Account] = field(default_factory=dict)  # by node

    def change(self, amount: float) -> None:
        self.level += amount
        self.strict += amount

    def copy(self) -> "_Bucket":
        accounts = {node: replace(account) for node, account in self.accounts.items()}
        return replace(self, accounts=accounts)


@dataclass(slots=True)
class _Node:
    boot: int
    sequence: int = 0
    slot: int = -1  # the highest that it has reported
    reported: float = -math.inf  # when its last report was sent, by its clock
    asked: float = -math.inf  # and its newest ask
    asked_slot: float = -math.inf  # in which that came
    seen: float = 0.0
    has_left: bool = False
    is_handed_over: bool = False  # it has reported to another leader before


@dataclass(slots=True)
class CentralBooks:
    """The books of one central."""

    begun: float  # the slot in which they begin
    is_cold: bool = False  # they are not the first of this central
    time: float = 0.0  # of the last message
    led_since: float = math.inf
    resumed: float = -math.inf  # the central was away until this slot
    reconnect_slots: int = 4  # in which nodes find it then
    nodes: dict[str, _Node] = field(default_factory=dict)
    buckets: dict[Cell, _Bucket] = field(default_factory=dict)
    # What it has heard of, of each life (node, boot) of each node.
    heard: dict[tuple[str, int], dict[Cell, float]] = field(default_factory=dict)
    booked: dict[Cell, float] = field(default_factory=dict)  # what it should have recorded
    recorded: dict[Cell, float] = field(default_factory=dict)  # what it has recorded, in all
    _oldest: float = math.inf  # of the last reports of all nodes

    def copy(self) -> "CentralBooks":
        return replace(
            self,
            nodes={name: replace(node) for name, node in self.nodes.items()},
            buckets={cell: bucket.copy() for cell, bucket in self.buckets.items()},
            heard={life: dict(totals) for life, totals in self.heard.items()},
            booked=dict(self.booked),
            recorded=dict(self.recorded),
        )

    # What nodes tell

    def hear_report(self, time: float, report: Report, lines: Iterable[tuple[Cell, Line]]) -> None:
        """Book a report as the central should."""
        self.time = time
        node = self.nodes.get(report.node)
        is_first = node is None
        is_new_boot = node is not None and node.boot < report.boot
        if node is not None and node.boot == report.boot:
            node.seen = time
            if report.sequence <= node.sequence or report.since > node.sequence:
                return  # known, or it takes for granted what this central does not know
        elif node is not None and not is_new_boot:
            return
        if node is None or is_new_boot:
            if is_new_boot:
                self._drop(report.node)
            node = self.nodes[report.node] = _Node(report.boot, seen=time)
            node.is_handed_over = is_first and report.settled_slot >= 0
        slot = math.floor(time)
        is_told = report.leaving or report.epoch >= 0
        node.slot = max(node.slot, min(report.slot, slot if is_told else slot - 1))
        node.sequence = report.sequence
        # A report is sent some time after the slot that it tells of.
        is_overtaken = report.sent < node.asked or node.slot < node.asked_slot
        node.reported = max(node.reported, report.sent)
        node.has_left = report.leaving
        # What others were told before these books began is no debt of theirs.
        is_forgiven = self.is_cold and is_first and node.is_handed_over
        totals = self.heard.setdefault((report.node, report.boot), {})
        for cell, line in lines:
            bucket = self._bucket(cell, time)
            account = self._account(bucket, report.node, None)
            told, account.told = account.told, time
            before = account.outstanding(), account.unbooked()
            if (
                report.since >= account.sequence > 0
                and report.sequence - account.sequence > _FORGET_REPORTS
            ):
                account.sequence = 0
                # What it has been granted since it asked may not have reached it yet.
                is_less = not is_overtaken and _is_below(line.returned, account.returned)
                if time - told >= _FORGET_REPORTS or is_less:
                    account.granted = account.returned = account.used = 0.0
            if account.sequence > 0:
                new = max(0.0, line.consumed - account.consumed)
            else:
                new = line.consumed - (0.0 if is_new_boot else line.settled)
            totals[cell] = line.consumed if is_first else totals.get(cell, 0.0) + new
            self.booked[cell] = self.booked.get(cell, 0.0) + new
            account.consumed = line.consumed
            account.sequence = report.sequence
            told = line.consumed + line.held
            reserved = 0.0
            if account.is_new and node.is_handed_over:
                reserved = line.held
                if not is_first:
                    reserved = min(reserved, line.granted - line.returned - line.consumed)
                reserved = max(0.0, reserved)
                self._refill(bucket, time)  # what overflows by now may pay for it
            account.is_new = False
            account.used = max(account.used, line.consumed) if is_overtaken else told
            account.tell(line.granted, line.returned)
            self._count(bucket, account, before)
            if is_forgiven:
                bucket.change(account.unbooked())
                account.uncovered = 0.0
                continue
            bucket.change(-new)
            if self.is_cold:
                bucket.change(reserved)
                reserved = 0.0
            self._recover(bucket, account, min(new + reserved, account.uncovered))
        if report.leaving:
            self._give_back(report.node)
        self._oldest = min(node.slot for node in self.nodes.values())

    def hear_ask(self, time: float, ask: Ask, asks: Iterable[tuple[list[Cell], UserAsk]]) -> None:
        """Note what a node tells beside its reports."""
        self.time = time
        node = self.nodes.get(ask.node)
        if node is None or node.boot != ask.boot or ask.sent < node.asked or node.has_left:
            return
        node.asked, node.asked_slot = ask.sent, math.floor(time)
        is_newest = ask.sent >= node.reported
        for cells, (_, resources, _) in asks:
            for cell in cells:
                bucket = self._bucket(cell, time)
                self._refill(bucket, time)
                account = self._account(bucket, ask.node, None)
                told, account.told = account.told, time
                before = account.outstanding(), account.unbooked()
                credit = resources.get(cell.key[2])
                granted, returned, used, cost = credit or (0.0, 0.0, 0.0, 0.0)
                account.cost = cost
                bucket.cost = max(bucket.cost, cost or cell.unit)
                if not resources and time - told < _FORGET_REPORTS:
                    continue  # it does not know the user yet, and tells nothing of its totals
                if is_newest and (
                    _is_below(returned, account.returned) or _is_below(used, account.consumed)
                ):
                    # The node has forgotten the user, and counts anew.
                    account.granted = account.returned = account.consumed = 0.0
                    account.sequence = 0
                elif account.sequence == 0 and not account.has_asked and granted > 0.0:
                    account.consumed = used  # another leader has booked it
                account.has_asked = True
                account.used = max(used, account.consumed)
                account.tell(granted, returned)
                self._count(bucket, account, before)
                self._recover(bucket, account, account.uncovered)

    def _is_silent(self, node: _Node, slot: int) -> bool:
        return node.slot <= slot - _SILENT_SLOTS or node.slot < self.resumed

    def _recover(self, bucket: _Bucket, account: _Account, amount: float) -> None:
        """Set what a node used beyond its grants against what overflowed meanwhile."""
        account.uncovered -= amount
        recovered = min(bucket.overflowed, amount)
        bucket.overflowed -= recovered
        # The strict level may not have been full when the other one overflowed.
        bucket.level += recovered

    def _drop(self, node: str) -> None:
        """A node has lost its memory: what it held is as good as spent."""
        for bucket in self.buckets.values():
            account = bucket.accounts.pop(node, None)
            if account is not None:
                bucket.change(-account.outstanding())
                bucket.outstanding -= account.outstanding()
                bucket.unbooked -= account.unbooked()

    def _give_back(self, node: str) -> None:
        """A node has left, and gives back all it has not consumed."""
        for bucket in self.buckets.values():
            account = bucket.accounts.get(node)
            if account is not None:
                before = account.outstanding(), account.unbooked()
                account.granted = account.returned + account.consumed
                account.used = account.consumed
                self._count(bucket, account, before)

    # What the central grants

    def grant(self, time: float, node: str, cell: Cell, granted: float) -> str | None:
        """The central tells a node the total of its grants. Returns what is wrong with it."""
        self.time = time
        bucket = self._bucket(cell, time)
        account = self._account(bucket, node, None)
        known = account.granted
        if granted <= known + 1e-9 * (1.0 + known):
            return None
        self._refill(bucket, time)
        before = account.outstanding(), account.unbooked()
        account.granted = granted
        self._count(bucket, account, before)
        cost = account.cost or cell.unit
        # One that costs more than the bucket holds needs a full one.
        most = bucket.level + max(0.0, cost - bucket.capacity)
        most += _ROUNDING * (cost + bucket.rate) + 1e-9 * granted
        if bucket.outstanding <= most or self._recount(bucket) <= most:
            return None
        return (
            f"grants {node} {granted - known:g} more, {bucket.outstanding:g} are outstanding of "
            f"{bucket.level:g} that are there ({bucket.rate:g} per slot, capacity "
            f"{bucket.capacity:g}, a request costs {cost:g})"
        )

    def available(self, cell: Cell) -> float:
        """What of a cell's bucket may be granted."""
        bucket = self._bucket(cell, self.time)
        # To refill it now would lose what a report that is to come would have set free.
        refilled = bucket.strict + bucket.rate * max(0.0, self.time - bucket.time)
        return min(refilled, bucket.capacity + bucket.unbooked) - bucket.outstanding

    def is_heard(self, node: str) -> bool:
        """Whether a node has reported lately."""
        known = self.nodes.get(node)
        return known is not None and self.time - known.slot < _SILENT_SLOTS

    # Buckets

    def _bucket(self, cell: Cell, time: float) -> _Bucket:
        bucket = self.buckets.get(cell)
        rate, capacity = cell.rate or 0.0, cell.capacity
        if bucket is None:
            since = max(self.begun, cell.since)
            level = min(rate, capacity)
            bucket = self.buckets[cell] = _Bucket(level, since, rate, capacity, strict=level)
            self._refill(bucket, time)
        elif bucket.rate != rate or bucket.capacity != capacity:
            self._change_limit(bucket, cell, time)
        return bucket

    def _change_limit(self, bucket: _Bucket, cell: Cell, time: float) -> None:
        """What is saved keeps its proportion, a debt stays."""
        rate, capacity = cell.rate or 0.0, cell.capacity
        self._refill(bucket, time)
        if bucket.capacity == 0.0:  # there was no limit
            since = max(self.begun, cell.since)
            bucket.level = bucket.strict = min(capacity, rate * (time - since + 1.0))
        else:
            change = capacity / bucket.capacity - 1.0
            # The central may have refilled it some time ago; since then the new rate holds.
            saved = max(0.0, bucket.level - bucket.outstanding)
            bucket.level += saved * change + rate * (time % 1.0)
            bucket.strict += max(0.0, bucket.strict - bucket.outstanding) * change
            if change < 0.0:
                bucket.inherited = max(0.0, bucket.outstanding - bucket.unbooked)
        bucket.rate, bucket.capacity = rate, capacity

    def _refill(self, bucket: _Bucket, time: float) -> None:
        if time < bucket.time - _CLOCK_BACK_SLOTS:
            bucket.time = time
        if time <= bucket.time:
            return
        refilled = bucket.level + bucket.rate * (time - bucket.time)
        strict = bucket.strict + bucket.rate * (time - bucket.time)
        bucket.strict = min(strict, bucket.capacity + bucket.unbooked)
        slot = math.floor(time)
        self._note_beyond(bucket, slot)
        full = bucket.capacity + bucket.beyond
        if slot != bucket.slot:
            bucket.slot = slot
            if self._oldest >= slot - 2:  # no report is missing: keep what overflowed just now
                bucket.overflowed = min(bucket.overflowed, bucket.overflowed_lately)
            bucket.overflowed_lately = 0.0
        if refilled > full:
            bucket.overflowed += refilled - full
            bucket.overflowed_lately += refilled - full
            refilled = full
        bucket.level = refilled
        bucket.time = time
        bucket.beyond = 0.0
        self._note_beyond(bucket, slot)

    def _note_beyond(self, bucket: _Bucket, slot: int) -> None:
        # What was out and is given back stays for those that wait.
        beyond = bucket.unbooked + bucket.inherited
        beyond += min(bucket.most_unused, bucket.cost * len(bucket.accounts))
        if self._oldest <= slot - _SILENT_SLOTS or self._oldest < self.resumed:
            for name, account in bucket.accounts.items():
                if self._is_silent(self.nodes[name], slot):
                    beyond += max(0.0, account.outstanding() - account.unbooked())
        if self._oldest < self.resumed and slot <= self.resumed + self.reconnect_slots + 1:
            beyond += bucket.rate * max(0.0, self.time - self.resumed)
        bucket.beyond = max(bucket.beyond, beyond)

    def _account(self, bucket: _Bucket, node: str, told: float | None) -> _Account:
        account = bucket.accounts.get(node)
        if account is None:
            account = bucket.accounts[node] = _Account()
        if told is not None:
            account.told = told
        return account

    def _note_unused(self, bucket: _Bucket) -> None:
        bucket.most_unused = max(bucket.most_unused, bucket.outstanding - bucket.unbooked)

    def _count(self, bucket: _Bucket, account: _Account, before: tuple[float, float]) -> None:
        """An account has changed: bring the sums up to date."""
        self._note_unused(bucket)
        bucket.outstanding += account.outstanding() - before[0]
        bucket.unbooked += account.unbooked() - before[1]
        self._note_unused(bucket)
        self._note_beyond(bucket, math.floor(self.time))

    def _recount(self, bucket: _Bucket) -> float:
        """What is outstanding, without rounding and without accounts that may be forgotten."""
        for name, account in list(bucket.accounts.items()):
            node = self.nodes.get(name)
            if node is not None and (
                node.slot - account.told >= _FORGET_CREDIT_SLOTS
                or self.time - node.seen >= _FORGET_NODE_SLOTS
            ):
                del bucket.accounts[name]
        accounts = bucket.accounts.values()
        bucket.outstanding = sum(account.outstanding() for account in accounts)
        bucket.unbooked = sum(account.unbooked() for account in accounts)
        return bucket.outstanding


def _is_below(told: float, known: float) -> bool:
    return told < known - 1e-9 * (1.0 + known)
