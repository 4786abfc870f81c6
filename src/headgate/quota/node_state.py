"""The end node without its sockets: may this request pass, and what is to be told to whom?

    throttle -> None or a Throttled   reserves the expected cost in this slot
    consume                           books the real cost, settles the oldest reservation
    receive  <- Ack, Quota            from the centrals
    outgoing -> Report, Ask           to the centrals; `due` says when to call it

Every call is given the node's monotonic time; there is no thread, no timer, no I/O. The shell
that owns the sockets also sees to it that one call is over before the next begins. What is in
hand is `in_hand`'s matter, counting is `tally`'s, who knows what is `report_book`'s, the slot
`slot_clock`'s. The page docs/node.md says the same for those who write a node in another
language, and tests/quota/node_cases.json holds both to it.

Rules that are kept here:

- Never unlimited, never nothing: without a share a user has newcomers' share, and where nobody
  has told one, the node's own `fallback`.
- All resources of a request agree, or none is charged. A refusal is counted for each resource
  that was short; those that were not get no demand that the short one would hold back anyway.
- A Quota's amount is for the slot in all. What a newcomer took before it came is part of it.
- A share without a fresh Quota is credit: it grows by the share in each slot; what piles up
  unused is at most the larger of the share and one request. It starts at a fraction of a
  request that is a hash of node and user, so that nodes with a 64th of a request each do not
  all pass in the 64th slot.
- Under steady overload a share flows through its slot evenly. Who was refused at the end of a
  slot is *paced* in the next: by the time t he may take (t + 0.1) of it, and one request. (Else a
  fleet at ten times its limit would take all of it in the first tenth of every second, on all
  nodes at once. Traffic that comes in bursts and is quiet at the end of a slot is not paced.)
- Slot numbers do not go back. When the leader's clock does, the slot holds until the clock has
  caught up; the windows of the node go on meanwhile as if no Quota came.

A *window* is a slot as this node lived it: numbered without gaps or steps of the leader's
clock. Amounts are floats in the resource's unit, times are seconds, shares are units per slot.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from headgate.errors import ProtocolError
from headgate.limits.checks import positive, whole
from headgate.quota.fraction import fraction
from headgate.quota.in_hand import FALLBACK, FREE, FRESH, REUSED, SAFE, QuotasInHand
from headgate.quota.protocol import Ack, Ask, Quota, Report
from headgate.quota.report_book import ReportBook
from headgate.quota.slot_clock import SlotClock
from headgate.quota.tally import Cell, Tally
from headgate.quota.throttled import Throttled

__all__ = ["NodeState", "NodeStatus"]

# Without a central and without `fallback`: requests per second for each user.
_FALLBACK_REQUESTS = 10.0
# The reports of many nodes are spread over this part of a slot.
_SPREAD = 0.1
# Who was refused in this last part of a slot has demand all through it: his next share is given
# out along the slot, with a head start, and not to the first who come.
_LATE = 0.2
_HEAD_START = 0.1
# Users at rest that are looked at after each report.
_LOOKS = 256
# A leader's clock that goes back by more slots than this is followed; else it is waited for.
_MOST_HELD = 60
# No clock says more, in seconds: sums with it are exact to a millisecond.
_LATEST = 1e12
# Users beyond `max_users` share so many tallies by hash: less for them, no more for anyone.
_SPARE_TALLIES = 256


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What the one on call wants to know of a node."""

    node: str
    boot: int
    slot: int
    epoch: int  # of the highest leadership seen; -1: none yet
    leader: str | None
    nodes: int  # that share the limits, as the leader said last
    quota_slot: int | None  # of the newest Quota in use
    quota_age: int | None  # in slots: 0 is fresh
    users: dict[str, dict[str, str]]  # service, user: fresh, reused, safe, newcomer, ...
    unacknowledged: dict[str, int]  # lines that each central has still to book
    asking: int  # users in the next Ask


class NodeState:
    """One end node: quota in hand, counters, and what the centrals know of them."""

    def __init__(
        self,
        node_id: str,
        boot: int,
        centrals: Sequence[str],
        *,
        now: float,
        wall: float,
        slot_seconds: float = 1.0,
        lease: int = 3,
        fallback: Mapping[str, float] | None = None,
        reservation_seconds: float = 60.0,
        max_users: int = 1_000_000,
    ) -> None:
        self.node_id = _name("node_id", node_id)
        self.boot = whole("boot", boot, 0)
        self._centrals = tuple(_name("a central", central) for central in centrals)
        if not self._centrals or len(set(self._centrals)) < len(self._centrals):
            raise ValueError(f"centrals must be one or more different names, got {centrals!r}")
        self._clock = SlotClock(slot_seconds, now=now, wall=wall)
        self._lease = whole("lease", lease, 0)
        self._reservation_seconds = positive("reservation_seconds", reservation_seconds)
        self._max_users = whole("max_users", max_users, 1)
        self._fallback = None
        if fallback is not None:
            _check("fallback", fallback)
            if not fallback:
                raise ValueError(f"fallback must name a resource, or be None, got {fallback!r}")
            self._fallback = {name: rate * slot_seconds for name, rate in fallback.items()}

        self._hands = QuotasInHand(self._lease)
        self._book = ReportBook(self.node_id, self.boot, self._centrals)
        self._users: dict[str, dict[str, Tally]] = {}
        self._count = 0
        self._holding: dict[Tally, None] = {}  # had running requests at their last report
        self._resting: dict[Tally, None] = {}  # nobody needs their totals any more
        self._asking: dict[str, dict[str, None]] = {}

        self._epoch = -1
        self._leader: str | None = None
        self._slot = self._clock.slot(now)
        self._held = 0  # windows since the leader's clock went back
        self._window = 0
        self._begin = self._clock.begin(self._slot)
        self._turn_at = self._clock.begin(self._slot + 1)
        self._generation = 0  # grows with all that may change a user's limits
        self._reported = -1  # the last window with a report
        self._ready: list[tuple[str, Report]] = []  # the next ones, until they are due
        self._spread = fraction(self.node_id) * _SPREAD * slot_seconds
        self._hands.turn(self._slot, 0)

    def throttle(
        self, now: float, service: str, user: str, expect: Mapping[str, float] | None = None
    ) -> Throttled | None:
        """Whether a request may begin: None, and its expected cost is reserved, or a refusal.

        Without `expect` the cost of each limited resource is the mean of the user's last
        requests. With it, a resource that does not stand in it is not used.
        """
        if expect is not None:
            _check("expect", expect)
        tally = self._tally(now, service, user)
        if tally is None:
            return None
        self._greet(tally)
        short = tally.short(expect, self._part(tally, now))
        if short is not None:
            self._refuse(tally, short, 1, now)
            return Throttled(service, user, short[0].resource, max(self._turn_at - now, 0.0))
        tally.charge(now, self._mark(tally))
        return None

    def consume(self, now: float, service: str, user: str, amounts: Mapping[str, float]) -> None:
        """A request has ended and cost `amounts`."""
        _check("amounts", amounts)
        tally = self._tally(now, service, user)
        if tally is None:
            # He is free. What was running when his limit was taken away is still counted.
            tally = self._users.get(service, {}).get(user)
            if tally is None or not tally.is_holding:
                return
        tally.settle(amounts, self._mark(tally))

    def offer(
        self, now: float, service: str, user: str, amounts: Mapping[str, float], count: int
    ) -> int:
        """How many of `count` requests pass that come and end one after the other at `now`.

        As a loop of throttle(expect=amounts) and consume(amounts), but in a few steps whatever
        the count, unless requests of the user are running.
        """
        _check("amounts", amounts)
        whole("count", count, 0)
        tally = self._tally(now, service, user) if count else None
        if tally is None:
            return count
        self._greet(tally)
        part = self._part(tally, now)
        admitted = 0
        if not tally.is_holding:
            admitted = tally.admit_many(amounts, count, part, self._mark(tally))
        while admitted < count:
            short = tally.short(amounts, part)
            if short is not None:
                self._refuse(tally, short, count - admitted, now)
                break
            sequence = self._mark(tally)
            tally.charge(now, sequence)
            tally.settle(amounts, sequence)
            admitted += 1
        return admitted

    def _tally(self, now: float, service: str, user: str) -> Tally | None:
        """The tally of a user as of this window; None when he is free."""
        if now >= self._turn_at:
            self._turn(now)
        users = self._users.get(service)
        tally = None if users is None else users.get(user)
        if tally is None:
            tally = self._meet(service, user)
            if tally is None:
                return None
        if tally.generation != self._generation:
            self._refresh(tally)
        return None if tally.is_free else tally

    def _meet(self, service: str, user: str) -> Tally | None:
        _name("service", service)
        _name("user", user)
        if self._hands.is_free(service, user):
            return None
        if self._count >= self._max_users:
            user = f"~{int(fraction(user) * _SPARE_TALLIES)}"
        users = self._users.setdefault(service, {})
        tally = users.get(user)
        if tally is None:
            start = fraction(self.node_id, service, user)
            tally = users[user] = Tally(service, user, self._window, start)
            self._count += 1
            self._book.mark(tally)  # so that it is forgotten again, whatever comes of it
        return tally

    def _refresh(self, tally: Tally) -> None:
        """Bring a tally to this window, and to the quotas that are in hand."""
        tally.generation = self._generation
        elapsed = self._window - tally.window
        if elapsed:
            tally.window = self._window
            tally.was_idle = elapsed > 1
            tally.was_refused = False
            late = self._begin - _LATE * self._clock.slot_seconds
            tally.is_paced = elapsed == 1 and tally.refused_at >= late
            for cell in tally.cells.values():
                cell.taken = 0.0
        was_credit, state_before = tally.is_credit, tally.state
        state, limits = self._find(tally)
        tally.state = state
        for cell in tally.cells.values():
            cell.is_limited = False
        for cell, _ in limits:
            cell.is_limited = True
        tally.limits = limits
        tally.is_free = state == FREE
        tally.is_credit = state not in (FRESH, REUSED, FREE)
        if tally.is_credit:
            tally.grow(elapsed if was_credit else min(elapsed, 1), begins=state != state_before)

    def _find(self, tally: Tally) -> tuple[str, list[tuple[Cell, float]]]:
        state, shares = self._hands.find(tally.service, tally.name)
        if state == FREE and self._count >= self._max_users and tally.name.startswith("~"):
            state = FALLBACK  # users who are not free may be in this tally
        if state != FALLBACK:
            return state, [(tally.cell(resource), amount) for resource, amount in shares]
        if self._fallback is None:
            return state, [(tally.start_cell(), _FALLBACK_REQUESTS * self._clock.slot_seconds)]
        return state, [(tally.cell(name), amount) for name, amount in self._fallback.items()]

    def _mark(self, tally: Tally) -> int:
        """The sequence of the report that will tell of a change to `tally`."""
        if tally.changed != self._book.sequence:
            self._book.mark(tally)
        return tally.changed

    def _part(self, tally: Tally, now: float) -> float:
        """The part of a share that may be taken by now: all of it, unless demand is steady."""
        if not tally.is_paced or tally.is_credit:
            return 1.0
        return (now - self._begin) / self._clock.slot_seconds + _HEAD_START

    def _refuse(self, tally: Tally, short: list[Cell], times: int, now: float) -> None:
        tally.refused_at = now
        sequence = self._mark(tally)
        for cell in short:
            cell.rejected += times
            cell.changed = sequence
        if not tally.was_refused:
            tally.was_refused = True
            if tally.state == FRESH and tally.was_idle:
                # What ran out was the reserve that idle users have; the leader may know of more.
                self._ask(tally)

    def _greet(self, tally: Tally) -> None:
        """Introduce a newcomer to the leader, once in each slot until there is an answer."""
        if tally.is_credit and tally.state != SAFE:
            self._ask(tally)

    def _ask(self, tally: Tally) -> None:
        if tally.asked != self._window:
            tally.asked = self._window
            self._asking.setdefault(tally.service, {})[tally.name] = None

    def _turn(self, now: float) -> None:
        """A new window has begun."""
        slot_seconds = self._clock.slot_seconds
        lived = math.floor((now - self._begin) / slot_seconds) + 1
        if now >= self._clock.begin(self._slot + 1):
            slot = max(self._clock.slot(now), self._slot + 1)  # whatever rounding says
            # A clock that leaps ahead mints no credit for time that nobody lived.
            windows = min(slot - self._slot, max(lived, 1))
            self._slot = slot
            self._held = 0
            self._begin = self._clock.begin(slot)
        else:
            windows = max(lived - 1, 1)
            self._held += windows
            self._begin += windows * slot_seconds
        self._window += windows
        self._generation += 1
        self._hands.turn(self._slot, self._held)
        self._set_turn_at()
        # Made now, to be sent when it is due: it tells of the slots that are over, and nothing of
        # the one that has begun.
        self._ready = self._report(now, self._slot - 1, leaving=False)

    def _set_turn_at(self) -> None:
        slot_seconds = self._clock.slot_seconds
        self._turn_at = self._clock.begin(self._slot + 1)
        if self._turn_at > self._begin + 1.5 * slot_seconds:
            # The leader's clock was set back by more than the usual wobble.
            self._turn_at = self._begin + slot_seconds

    def _retime(self, now: float, *, was_told: bool) -> None:
        """The leader has told the time."""
        slot = self._clock.slot(now)
        # The slots so far were this node's own guess, and nobody was told of them; or they were
        # those of a leader whose clock was so wrong that to wait would be worse than to go back.
        if slot < self._slot and (not was_told or slot < self._slot - _MOST_HELD):
            self._slot = slot
            self._held = 0
            self._begin = self._clock.begin(slot)
            self._generation += 1
            self._hands.go_back(slot)
        self._set_turn_at()
        if now >= self._turn_at:
            self._turn(now)

    def receive(self, now: float, central: str, message: Ack | Quota) -> None:
        """`message` has come from `central`."""
        if central not in self._centrals:
            raise ValueError(f"central must be one of {self._centrals!r}, got {central!r}")
        if not isinstance(message, Ack | Quota):
            raise TypeError(f"message must be an Ack or a Quota, got {message!r}")
        if not abs(message.time) <= _LATEST:
            raise ProtocolError(
                f"{central!r} says that it is {message.time!r}, expected seconds up to {_LATEST:g}"
            )
        if now >= self._turn_at:
            self._turn(now)
        if isinstance(message, Quota):
            self._receive_quota(now, central, message)
        else:
            self._receive_ack(now, central, message)

    def _receive_ack(self, now: float, central: str, ack: Ack) -> None:
        if ack.boot != self.boot:
            return
        leads = ack.leads and ack.epoch >= self._epoch
        if leads:
            self._epoch = ack.epoch
            self._leader = central
            if ack.sent <= now:
                was_told = self._clock.is_told
                self._clock.sample(ack.epoch, sent=ack.sent, time=ack.time, received=now)
                self._retime(now, was_told=was_told)
        self._book.acknowledge(central, ack.sequence, leads=leads)

    def _receive_quota(self, now: float, central: str, quota: Quota) -> None:
        if quota.epoch < self._epoch:
            return
        self._epoch = quota.epoch
        self._leader = central
        was_told = self._clock.is_told
        self._clock.hint(quota.epoch, time=quota.time, received=now)
        self._retime(now, was_told=was_told)
        if self._hands.receive(quota):
            self._generation += 1

    def outgoing(self, now: float) -> list[tuple[str, Report | Ask]]:
        """What is to be sent now, and to which central."""
        if now >= self._turn_at:
            self._turn(now)
        messages: list[tuple[str, Report | Ask]] = []
        if self._reported < 0:
            self._ready = self._report(now, self._slot - 1, leaving=False)
        if self._reported < 0 or (
            self._reported < self._window and now >= self._begin + self._spread
        ):
            self._reported = self._window
            messages.extend((to, report._replace(sent=now)) for to, report in self._ready)
            self._ready = []
            self._forget()
        if self._asking:
            users = {service: list(names) for service, names in self._asking.items()}
            self._asking = {}
            ask = Ask(self.node_id, self.boot, self._slot, now, users)
            asked = self._centrals if self._leader is None else (self._leader,)
            messages.extend((central, ask) for central in asked)
        return messages

    def due(self, now: float) -> float:
        """When `outgoing` has something to say, at the latest; maybe `now`."""
        if self._asking or self._reported < 0:
            return now
        begin = self._begin if self._reported < self._window else self._turn_at
        return max(now, begin + self._spread)

    def leave(self, now: float) -> list[tuple[str, Report]]:
        """The last reports: the node stops, and hands back what it was promised."""
        if now >= self._turn_at:
            self._turn(now)
        return self._report(now, self._slot, leaving=True)

    def _report(self, now: float, slot: int, *, leaving: bool) -> list[tuple[str, Report]]:
        for tally in list(self._holding):
            given = tally.expire(now - self._reservation_seconds)
            if given:
                self._book.mark(tally)
                for resource in given:
                    tally.cell(resource).changed = self._book.sequence
            if not tally.is_holding:
                del self._holding[tally]
        reports, fresh = self._book.reports(slot, now, epoch=self._epoch, leaving=leaving)
        self._holding.update((tally, None) for tally in fresh if tally.is_holding)
        return reports

    def _forget(self) -> None:
        self._resting.update(dict.fromkeys(self._book.drop_idle()))
        for tally in list(islice(self._resting, _LOOKS)):
            del self._resting[tally]
            if self._book.is_waiting(tally):
                continue
            if self._is_spent(tally):
                self._resting[tally] = None
                continue
            users = self._users[tally.service]
            del users[tally.name]
            self._count -= 1
            if not users:
                del self._users[tally.service]

    def _is_spent(self, tally: Tally) -> bool:
        """Whether something would be forgiven if the tally were forgotten."""
        if tally.is_holding:
            return True
        state, limits = self._find(tally)
        if state in (FRESH, REUSED, FREE):
            return False
        slots = self._window - tally.window
        return any(
            cell.has_credit and cell.credit + share * slots < max(share, cell.mean)
            for cell, share in limits
            if share > 0.0
        )

    def state(self, now: float, service: str, user: str) -> str:
        """What a user has in this slot: fresh, reused, safe, newcomer, free or fallback."""
        if now >= self._turn_at:
            self._turn(now)
        return self._hands.find(service, user)[0]

    def status(self, now: float) -> NodeStatus:
        """How the node stands."""
        if now >= self._turn_at:
            self._turn(now)
        return NodeStatus(
            node=self.node_id,
            boot=self.boot,
            slot=self._slot,
            epoch=self._epoch,
            leader=self._leader,
            nodes=self._hands.nodes,
            quota_slot=self._hands.newest_slot,
            quota_age=self._hands.age,
            users={
                service: {name: self._find(tally)[0] for name, tally in users.items()}
                for service, users in self._users.items()
            },
            unacknowledged={
                central: self._book.unacknowledged(central) for central in self._centrals
            },
            asking=sum(map(len, self._asking.values())),
        )

    def slot_and_window(self, now: float) -> tuple[int, int]:
        """The slot that requests are counted in, and which of the node's own windows it is."""
        if now >= self._turn_at:
            self._turn(now)
        return self._slot, self._window

    def __repr__(self) -> str:
        age = self._hands.age
        return (
            f"NodeState({self.node_id!r}, slot={self._slot}, epoch={self._epoch}, "
            f"leader={self._leader!r}, quota_age={age}, users={self._count})"
        )


def _name(what: str, value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, got {value!r}")
    if not value:
        raise ValueError(f"{what} must not be empty, got {value!r}")
    return value


def _check(what: str, amounts: Mapping[str, float]) -> None:
    """Names and amounts of a caller, before anything is changed by them."""
    for resource, amount in amounts.items():
        try:
            if resource and 0.0 <= amount < math.inf and isinstance(resource, str):
                continue
        except TypeError:
            pass
        _name(f"a resource of {what}", resource)
        raise ValueError(
            f"{what} must be finite amounts from 0 up, got {amount!r} for {resource!r}"
        )
