"""The reporter of a host, without its sockets: what is to be told to whom, and what was heard?

    outgoing -> Report, Ask   to the centrals; `due` says when to call it
    receive  <- Ack, Quota    from the centrals

All processes of a host count in one shared memory (`Host`); one of them has this object and talks
to the centrals. It brings the leader's clock and quotas into the memory and the totals out of it.
What it knows beyond the memory is who has acknowledged what. When its process dies, another one
makes a new reporter, which tells all totals again, as reports of the same life of the counters:
centrals book only what is new to them.

Every call is given the host's monotonic time; there is no thread, no timer, no I/O. What is in hand
is in `quota_store`, who knows what in `_report_tracker`, the slot in `slot_clock`, what a request
may take in `_admission.pxd`. The page docs/node.md says the same for those who write a node in
another language, and tests/quota/node/core/cases.json holds both to it.

Slot numbers do not go back. When the leader's clock does, the slot holds until the clock has caught
up; the windows of the host go on meanwhile as if no Quota came.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from sluicegate._validate import text
from sluicegate.errors import ProtocolError
from sluicegate.quota.messages import Ack, Ask, Quota, Report, Share
from sluicegate.quota.node.core._apply_quota import forget, put_settled, put_shares
from sluicegate.quota.node.core._report_tracker import Account, ReportBook
from sluicegate.quota.node.core._scan import collect, count_states
from sluicegate.quota.node.core._user_table import Host
from sluicegate.quota.node.core.quota_store import QuotasInHand
from sluicegate.quota.node.core.slot_clock import SlotClock
from sluicegate.quota.stable_hash import fraction

__all__ = ["NodeStatus", "Reporter"]

# The reports of many nodes are spread over this part of a slot.
_SPREAD = 0.2
# A user who is free changes nothing; but as long as he comes, his record is freshened.
_IDLE_WINDOWS = 120
# Users at rest that are looked at after each report, at least; of many, an eighth.
_LOOKS = 256
# A leader's clock that goes back by more slots than this is followed; else it is waited for.
_MOST_HELD = 60
# No clock says more, in seconds: sums with it are exact to a millisecond.
_LATEST = 1e12
_HEARD = (Ack, Quota)


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
    users: dict[str, dict[str, int]]  # service, state (fresh, reused, safe, ...): how many
    unacknowledged: dict[str, int]  # lines that each central has still to book
    asking: int  # asks that wait to be sent


class Reporter:
    """What the centrals know of a host, and what it knows of them."""

    def __init__(self, host: Host, centrals: Sequence[str], *, boot: int | None = None) -> None:
        self._host = host
        self._head = host.head
        self._centrals = tuple(text("a central", name) for name in centrals)
        if not self._centrals or len(set(self._centrals)) < len(self._centrals):
            raise ValueError(f"centrals must be one or more different names, got {centrals!r}")
        self.boot: int = self._head.boot if boot is None else boot
        self._hands = QuotasInHand(host.lease)
        self._book = ReportBook(
            host.node_id,
            self.boot,
            self._centrals,
            self._head.service_name,
            self._head.resource_name,
            self._head.sequence + 1,
            self._head.settled_slot,
        )
        self._resting: dict[Account, None] = {}  # nobody needs their totals any more

        # Go on where the last reporter stopped, or where the memory began.
        base = self._head.base()
        now = host.now()
        self._slot, self._window, self._begin, self._turn_at = host.window(now)
        self._epoch: int = base["epoch"]
        self._was_told = self._epoch >= 0
        offset = self._slot * host.slot_seconds - self._begin
        self._clock = SlotClock(host.slot_seconds, now=now, wall=now + offset)
        self._leader: str | None = None
        self._held = 0  # windows since the leader's clock went back
        self._generation: int = base["generation"]
        self._reported = -1  # the last window with a report
        self._collected = 0  # the window up to which changes have been looked for
        self._ready: list[tuple[str, Report]] = []  # the next ones, until they are due
        self._spread = fraction(host.node_id) * _SPREAD * host.slot_seconds
        self._published: set[int] = set()  # coming slots whose quotas are in the records
        self._hands.turn(self._slot, 0)

    # The slot

    def attend(self, now: float) -> None:
        """Begin a new window if its time has come. Every call does so; without one nothing does."""
        if now >= self._turn_at:
            self._turn(now)

    def _turn(self, now: float) -> None:
        """A new window has begun."""
        slot_seconds = self._host.slot_seconds
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
        self._set_turn_at()
        self._hands.turn(self._slot, self._held)
        self._put_coming(now)
        self._publish()
        # Made now, to be sent when it is due: it tells of the slots that are over, and nothing of
        # the one that has begun.
        self._ready = self._report(now, self._slot - 1, leaving=False)

    def _set_turn_at(self) -> None:
        slot_seconds = self._host.slot_seconds
        self._turn_at = self._clock.begin(self._slot + 1)
        if self._turn_at > self._begin + 1.5 * slot_seconds:
            # The leader's clock was set back by more than the usual wobble.
            self._turn_at = self._begin + slot_seconds

    def _retime(self, now: float) -> None:
        """The leader has told the time."""
        slot = self._clock.slot(now)
        was_told, self._was_told = self._was_told, True
        # The slots so far were this node's own guess, and nobody was told of them; or they were
        # those of a leader whose clock was so wrong that to wait would be worse than to go back.
        if slot < self._slot and (not was_told or slot < self._slot - _MOST_HELD):
            self._slot = slot
            self._held = 0
            self._begin = self._clock.begin(slot)
            self._hands.go_back(slot)
            self._published.clear()
            self._put_coming(now)
        self._set_turn_at()
        if now >= self._turn_at:
            self._turn(now)
        else:
            self._publish()

    def _publish(self) -> None:
        """Tell all processes of the host what holds for everybody."""
        self._generation = (self._generation + 1) % (1 << 32)
        self._head.publish(
            version=_stamp(self._hands.version),
            begin=self._begin,
            turn_at=self._turn_at,
            slot=self._slot,
            held=self._held,
            epoch=self._epoch,
            window=self._window,
            generation=self._generation,
            slot_holds=self._turn_at < self._clock.begin(self._slot + 1),
            nodes=self._hands.nodes,
            views=(self._hands.view(self._slot), self._hands.view(self._slot + 1)),
        )

    # What is heard

    def receive(self, now: float, central: str, message: Ack | Quota) -> None:
        """`message` has come from `central`."""
        if central not in self._centrals:
            raise ValueError(f"central must be one of {self._centrals!r}, got {central!r}")
        if not isinstance(message, _HEARD):
            raise TypeError(f"message must be an Ack or a Quota, got {message!r}")
        if not abs(message.time) <= _LATEST:
            raise ProtocolError(
                f"{central!r} says that it is {message.time!r}, expected seconds up to {_LATEST:g}"
            )
        self.attend(now)
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
                self._clock.sample(ack.epoch, sent=ack.sent, time=ack.time, received=now)
                self._retime(now)
        self._book.acknowledge(central, ack.sequence, leads=leads)
        self._head.settled_slot = self._book.settled_slot

    def _receive_quota(self, now: float, central: str, quota: Quota) -> None:
        if quota.epoch < self._epoch:
            return
        self._epoch = quota.epoch
        self._leader = central
        self._clock.hint(quota.epoch, time=quota.time, received=now)
        self._retime(now)
        before = self._hands.users(quota.slot)
        version = self._hands.version
        self._hands.receive(quota)
        if quota.slot <= self._slot + 1:
            self._put(now, quota.slot, _names(quota.services), before if quota.whole else {})
        else:
            self._put_free(now, quota)
        if quota.whole or self._hands.version != version or not before:
            self._publish()

    def _put(
        self,
        now: float,
        slot: int,
        named: Mapping[str, Sequence[str]],
        before: Mapping[str, Mapping[str, object]],
    ) -> None:
        """Bring what is in hand of a slot into the records of the users who are named.

        `before` are those who were named for it until now: a whole Quota may leave them out.
        """
        hand = self._hands.users(slot)
        is_kept = bool(hand) or self._hands.has(slot)
        version = _stamp(self._hands.version)
        for service, users in named.items():
            if not self._head.has_service(service):
                continue  # nobody here has a user of it
            in_hand = hand.get(service, {})
            shares: dict[str, Mapping[str, Share] | None] = {}
            for user in users:
                if self._hands.is_free(service, user):
                    shares[user] = {}
                elif in_hand.get(user):
                    shares[user] = in_hand[user]
            put_shares(self._host, now, service, shares, slot=slot, version=version)
        if is_kept:
            for service, gone in before.items():
                in_hand = hand.get(service, {})
                left_out = {user: None for user in gone if user not in in_hand}
                if left_out:
                    put_shares(self._host, now, service, left_out, slot=slot, version=version)
        if slot > self._slot:
            self._published.add(slot)

    def _put_free(self, now: float, quota: Quota) -> None:
        """Of a slot that is further ahead, only who is free is of interest now."""
        version = _stamp(self._hands.version)
        for service, part in quota.services.items():
            free = {
                user: shares
                for user, shares in part.users.items()
                if not shares and self._hands.is_free(service, user)
            }
            put_shares(self._host, now, service, free, slot=quota.slot, version=version)

    def _put_coming(self, now: float) -> None:
        """Bring in quotas that came more than a slot early."""
        self._published = {slot for slot in self._published if slot > self._slot}
        for slot in (self._slot, self._slot + 1):
            if slot not in self._published and self._hands.came_early(slot):
                users = self._hands.users(slot)
                self._put(now, slot, {name: list(part) for name, part in users.items()}, {})

    # What is told

    def outgoing(self, now: float) -> list[tuple[str, Report | Ask]]:
        """What is to be sent now, and to which central."""
        self.attend(now)
        messages: list[tuple[str, Report | Ask]] = []
        if self._reported < 0:
            self._ready = self._report(now, self._slot - 1, leaving=False)
        if self._reported < 0 or (
            self._reported < self._window and now >= self._begin + self._spread
        ):
            self._reported = self._window
            messages.extend((to, report._replace(sent=now)) for to, report in self._ready)
            self._ready = []
            self._forget(now)
        users = self._take_asks()
        if users:
            ask = Ask(self._host.node_id, self.boot, self._slot, now, users)
            asked = self._centrals if self._leader is None else (self._leader,)
            messages.extend((central, ask) for central in asked)
        return messages

    def _take_asks(self) -> dict[str, list[str]]:
        users: dict[str, dict[str, None]] = {}
        for service, user in self._head.take_asks():
            users.setdefault(service, {})[user] = None
        return {service: list(names) for service, names in users.items()}

    def due(self, now: float) -> float:
        """When `outgoing` has something to say, at the latest; maybe `now`."""
        if self._head.has_asks or self._reported < 0:
            return now
        begin = self._begin if self._reported < self._window else self._turn_at
        return max(now, begin + self._spread)

    def leave(self, now: float) -> list[tuple[str, Report]]:
        """The last reports: the node stops, and hands back what it was promised."""
        self.attend(now)
        return self._report(now, self._slot, leaving=True)

    def _report(self, now: float, slot: int, *, leaving: bool) -> list[tuple[str, Report]]:
        window = self._window + 1 if leaving else self._window
        collect(self._host, self._book, window, self._collected)
        self._collected = window
        self._book.expire(self._window, self._host.reservation_windows)
        self._head.next_sequence()
        reports = self._book.reports(slot, now, epoch=self._epoch, leaving=leaving)
        put_settled(self._host, self._book)
        return reports

    def _forget(self, now: float) -> None:
        self._resting.update(dict.fromkeys(self._book.drop_idle()))
        for account in list(islice(self._resting, max(_LOOKS, len(self._resting) // 8))):
            del self._resting[account]
            if self._book.is_waiting(account):
                continue
            if self._is_forgotten(now, account):
                self._book.forget(account)
            else:
                self._resting[account] = None

    def _is_forgotten(self, now: float, account: Account) -> bool:
        since = account.changed_in + 1
        return self._window - since >= _IDLE_WINDOWS and forget(
            self._host, now, account.service, account.name, since
        )

    # Looking

    @property
    def epoch(self) -> int:
        """The highest leadership seen; -1: none yet."""
        return self._epoch

    def status(self, now: float) -> NodeStatus:
        """How the node stands."""
        self.attend(now)
        return NodeStatus(
            node=self._host.node_id,
            boot=self.boot,
            slot=self._slot,
            epoch=self._epoch,
            leader=self._leader,
            nodes=self._hands.nodes,
            quota_slot=self._hands.newest_slot,
            quota_age=self._hands.age,
            users=count_states(self._host, now),
            unacknowledged={
                central: self._book.unacknowledged(central) for central in self._centrals
            },
            asking=self._head.asks_waiting,
        )

    def slot_and_window(self, now: float) -> tuple[int, int]:
        """The slot that requests are counted in, and which of the node's own windows it is."""
        self.attend(now)
        return self._slot, self._window

    def __repr__(self) -> str:
        return (
            f"Reporter({self._host.node_id!r}, slot={self._slot}, "
            f"epoch={self._epoch}, leader={self._leader!r}, quota_age={self._hands.age}, "
            f"users={len(self._host)})"
        )


def _stamp(version: int | None) -> int:
    """A version of the limits as it stands in the memory, where 0 is none."""
    return 0 if version is None else (version + 1) % (1 << 64) or 1


def _names(services: Mapping[str, object]) -> dict[str, list[str]]:
    return {name: list(part.users) for name, part in services.items()}  # type: ignore[attr-defined]
