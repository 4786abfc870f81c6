"""`Reporter`: a node's side of the protocol with the centrals, without sockets.

    outgoing -> Report, Ask   to the centrals; `due` says when to call it
    receive  <- Ack, Quota    from the centrals

All processes of a host count in one shared memory (`UserTable`); one of them has this object and
talks to the centrals. It writes the leader's clock and quotas into the memory and collects the
totals from it. Beyond the memory it knows which central has acknowledged what. When its process
dies, another one makes a new reporter, which reports all totals again, with the same boot number:
centrals book only what is new to them.

Every call is given the host's monotonic time; there is no thread, no timer, no I/O. Quotas
are in `quota_store`, acknowledgements in `_report_tracker`, the slot in `slot_clock`, the rules of
admission in `_admission.pxd`. The page docs/node.md specifies the same for nodes in other
languages, and tests/quota/node/core/cases.json holds both to it.

Slot numbers do not go back. When the leader's clock does, the slot holds until the clock has caught
up; the windows of the host go on meanwhile as if no Quota came.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from sluicegate._validate import check_text
from sluicegate.errors import ProtocolError
from sluicegate.quota.messages import Ack, Ask, Quota, Report, Share
from sluicegate.quota.node.core._apply_quota import forget, put_settled, put_shares
from sluicegate.quota.node.core._report_tracker import ReportTracker, UserTotals
from sluicegate.quota.node.core._scan import collect, count_states
from sluicegate.quota.node.core._user_table import UserTable
from sluicegate.quota.node.core.quota_store import QuotaStore
from sluicegate.quota.node.core.slot_clock import SlotClock
from sluicegate.quota.stable_hash import hash_fraction

__all__ = ["NodeStatus", "Reporter"]

# The reports of many nodes are spread over this part of a slot.
_SPREAD = 0.2
# The record of a free user never changes, but is refreshed as long as the user has requests.
_IDLE_WINDOWS = 120
# Idle users that are checked after each report, at least; of many, an eighth.
_IDLE_CHECKS = 256
# If the leader's clock goes back by more slots than this, the slot follows it; else it is frozen.
_MAX_FROZEN_SLOTS = 60
# The largest valid time, in seconds: sums with it are exact to a millisecond.
_MAX_TIME = 1e12
_RECEIVABLE = (Ack, Quota)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of a node, for the operator."""

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
    """Reports a host's totals to the centrals and applies their quotas."""

    def __init__(
        self, user_table: UserTable, centrals: Sequence[str], *, boot: int | None = None
    ) -> None:
        self._user_table = user_table
        self._header = user_table.header
        self._centrals = tuple(check_text("central", name) for name in centrals)
        if not self._centrals or len(set(self._centrals)) < len(self._centrals):
            raise ValueError(f"centrals must be one or more distinct names, got {centrals!r}")
        self.boot: int = self._header.boot if boot is None else boot
        self._quotas = QuotaStore(user_table.lease)
        self._tracker = ReportTracker(
            user_table.node_id,
            self.boot,
            self._centrals,
            self._header.service_name,
            self._header.resource_name,
            self._header.sequence + 1,
            self._header.settled_slot,
        )
        self._idle_users: dict[UserTotals, None] = {}  # every central has their totals

        # Go on where the last reporter stopped, or where the memory began.
        published = self._header.last_published()
        now = user_table.now()
        self._slot, self._window, self._window_begin, self._window_end = user_table.window(now)
        self._epoch: int = published["epoch"]
        self._has_leader_time = self._epoch >= 0
        offset = self._slot * user_table.slot_seconds - self._window_begin
        self._clock = SlotClock(user_table.slot_seconds, now=now, wall=now + offset)
        self._leader: str | None = None
        self._frozen_windows = 0  # windows since the leader's clock went back
        self._generation: int = published["generation"]
        self._reported_window = -1  # the last window with a report
        self._collected_window = 0  # the window up to which changes have been looked for
        self._pending_reports: list[tuple[str, Report]] = []  # the next ones, until they are due
        self._report_delay = hash_fraction(user_table.node_id) * _SPREAD * user_table.slot_seconds
        self._applied_slots: set[int] = set()  # coming slots whose quotas are in the records
        self._quotas.set_slot(self._slot, 0)

    # The slot

    def advance_to(self, now: float) -> None:
        """Begin a new window if it is time for one. All other calls do so first."""
        if now >= self._window_end:
            self._begin_window(now)

    def _begin_window(self, now: float) -> None:
        """A new window has begun."""
        slot_seconds = self._user_table.slot_seconds
        lived = math.floor((now - self._window_begin) / slot_seconds) + 1
        if now >= self._clock.begin(self._slot + 1):
            slot = max(self._clock.slot(now), self._slot + 1)  # whatever rounding says
            # A clock that leaps ahead mints no credit for time that nobody lived.
            windows = min(slot - self._slot, max(lived, 1))
            self._slot = slot
            self._frozen_windows = 0
            self._window_begin = self._clock.begin(slot)
        else:
            windows = max(lived - 1, 1)
            self._frozen_windows += windows
            self._window_begin += windows * slot_seconds
        self._window += windows
        self._set_window_end()
        self._quotas.set_slot(self._slot, self._frozen_windows)
        self._apply_early_quotas(now)
        self._publish_header()
        # Made now, to be sent when it is due: it has the slots that are over, and nothing of the
        # one that has begun.
        self._pending_reports = self._report(now, self._slot - 1, leaving=False)

    def _set_window_end(self) -> None:
        slot_seconds = self._user_table.slot_seconds
        self._window_end = self._clock.begin(self._slot + 1)
        if self._window_end > self._window_begin + 1.5 * slot_seconds:
            # The leader's clock was set back by more than the usual wobble.
            self._window_end = self._window_begin + slot_seconds

    def _follow_leader_clock(self, now: float) -> None:
        """Adjust the slot after a message with the leader's time."""
        slot = self._clock.slot(now)
        had_leader_time, self._has_leader_time = self._has_leader_time, True
        # Until now the slots followed the node's own clock, and were in no report; or they were
        # those of a leader whose clock was so wrong that to wait would be worse than to go back.
        if slot < self._slot and (not had_leader_time or slot < self._slot - _MAX_FROZEN_SLOTS):
            self._slot = slot
            self._frozen_windows = 0
            self._window_begin = self._clock.begin(slot)
            self._quotas.rewind(slot)
            self._applied_slots.clear()
            self._apply_early_quotas(now)
        self._set_window_end()
        if now >= self._window_end:
            self._begin_window(now)
        else:
            self._publish_header()

    def _publish_header(self) -> None:
        """Publish what holds for all users to all processes of the host."""
        self._generation = (self._generation + 1) % (1 << 32)
        self._header.publish(
            version=_stored_version(self._quotas.version),
            begin=self._window_begin,
            end=self._window_end,
            slot=self._slot,
            frozen_windows=self._frozen_windows,
            epoch=self._epoch,
            window=self._window,
            generation=self._generation,
            slot_frozen=self._window_end < self._clock.begin(self._slot + 1),
            nodes=self._quotas.nodes,
            views=(self._quotas.view(self._slot), self._quotas.view(self._slot + 1)),
        )

    # Messages from centrals

    def receive(self, now: float, central: str, message: Ack | Quota) -> None:
        """`message` has come from `central`."""
        if central not in self._centrals:
            raise ValueError(f"central must be one of {self._centrals!r}, got {central!r}")
        if not isinstance(message, _RECEIVABLE):
            raise TypeError(f"message must be an Ack or a Quota, got {message!r}")
        if not abs(message.time) <= _MAX_TIME:
            raise ProtocolError(
                f"invalid time from central {central!r}: "
                f"expected seconds up to {_MAX_TIME:g}, got {message.time!r}"
            )
        self.advance_to(now)
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
                self._follow_leader_clock(now)
        self._tracker.acknowledge(central, ack.sequence, leads=leads)
        self._header.settled_slot = self._tracker.settled_slot

    def _receive_quota(self, now: float, central: str, quota: Quota) -> None:
        if quota.epoch < self._epoch:
            return
        self._epoch = quota.epoch
        self._leader = central
        self._clock.hint(quota.epoch, time=quota.time, received=now)
        self._follow_leader_clock(now)
        before = self._quotas.users(quota.slot)
        version = self._quotas.version
        self._quotas.receive(quota)
        if quota.slot <= self._slot + 1:
            self._apply_shares(
                now, quota.slot, _user_names(quota.services), before if quota.whole else {}
            )
        else:
            self._apply_free_users(now, quota)
        if quota.whole or self._quotas.version != version or not before:
            self._publish_header()

    def _apply_shares(
        self,
        now: float,
        slot: int,
        named: Mapping[str, Sequence[str]],
        before: Mapping[str, Mapping[str, object]],
    ) -> None:
        """Write the shares of a slot into the records of the users that are named.

        `before` are the users that had shares until now: a whole Quota may leave them out.
        """
        slot_users = self._quotas.users(slot)
        is_kept = bool(slot_users) or self._quotas.has(slot)
        version = _stored_version(self._quotas.version)
        for service, users in named.items():
            if not self._header.has_service(service):
                continue  # it is not served here
            service_users = slot_users.get(service, {})
            shares: dict[str, Mapping[str, Share] | None] = {}
            for user in users:
                if self._quotas.is_free(service, user):
                    shares[user] = {}
                elif service_users.get(user):
                    shares[user] = service_users[user]
            put_shares(self._user_table, now, service, shares, slot=slot, version=version)
        if is_kept:
            for service, gone in before.items():
                service_users = slot_users.get(service, {})
                left_out = {user: None for user in gone if user not in service_users}
                if left_out:
                    put_shares(self._user_table, now, service, left_out, slot=slot, version=version)
        if slot > self._slot:
            self._applied_slots.add(slot)

    def _apply_free_users(self, now: float, quota: Quota) -> None:
        """Of a quota for a slot further ahead, only its free users matter now."""
        version = _stored_version(self._quotas.version)
        for service, part in quota.services.items():
            free = {
                user: shares
                for user, shares in part.users.items()
                if not shares and self._quotas.is_free(service, user)
            }
            put_shares(self._user_table, now, service, free, slot=quota.slot, version=version)

    def _apply_early_quotas(self, now: float) -> None:
        """Write the shares of quotas that arrived more than a slot early."""
        self._applied_slots = {slot for slot in self._applied_slots if slot > self._slot}
        for slot in (self._slot, self._slot + 1):
            if slot not in self._applied_slots and self._quotas.arrived_early(slot):
                users = self._quotas.users(slot)
                self._apply_shares(
                    now, slot, {name: list(part) for name, part in users.items()}, {}
                )

    # Messages to centrals

    def outgoing(self, now: float) -> list[tuple[str, Report | Ask]]:
        """What is to be sent now, and to which central."""
        self.advance_to(now)
        messages: list[tuple[str, Report | Ask]] = []
        if self._reported_window < 0:
            self._pending_reports = self._report(now, self._slot - 1, leaving=False)
        if self._reported_window < 0 or (
            self._reported_window < self._window and now >= self._window_begin + self._report_delay
        ):
            self._reported_window = self._window
            messages.extend((to, report._replace(sent=now)) for to, report in self._pending_reports)
            self._pending_reports = []
            self._forget_idle_users(now)
        users = self._take_asks()
        if users:
            ask = Ask(self._user_table.node_id, self.boot, self._slot, now, users)
            asked = self._centrals if self._leader is None else (self._leader,)
            messages.extend((central, ask) for central in asked)
        return messages

    def _take_asks(self) -> dict[str, list[str]]:
        users: dict[str, dict[str, None]] = {}
        for service, user in self._header.take_asks():
            users.setdefault(service, {})[user] = None
        return {service: list(names) for service, names in users.items()}

    def due(self, now: float) -> float:
        """When to call `outgoing` next, at the latest; `now` if it has messages already."""
        if self._header.has_asks or self._reported_window < 0:
            return now
        begin = self._window_begin if self._reported_window < self._window else self._window_end
        return max(now, begin + self._report_delay)

    def leave(self, now: float) -> list[tuple[str, Report]]:
        """The last reports: the node stops, and hands back what it was promised."""
        self.advance_to(now)
        return self._report(now, self._slot, leaving=True)

    def _report(self, now: float, slot: int, *, leaving: bool) -> list[tuple[str, Report]]:
        window = self._window + 1 if leaving else self._window
        collect(self._user_table, self._tracker, window, self._collected_window)
        self._collected_window = window
        self._tracker.expire_reservations(self._window, self._user_table.reservation_windows)
        self._header.next_sequence()
        reports = self._tracker.make_reports(slot, now, epoch=self._epoch, leaving=leaving)
        put_settled(self._user_table, self._tracker)
        return reports

    def _forget_idle_users(self, now: float) -> None:
        self._idle_users.update(dict.fromkeys(self._tracker.pop_idle()))
        for user in list(islice(self._idle_users, max(_IDLE_CHECKS, len(self._idle_users) // 8))):
            del self._idle_users[user]
            if self._tracker.is_pending(user):
                continue
            if self._try_forget(now, user):
                self._tracker.forget(user)
            else:
                self._idle_users[user] = None

    def _try_forget(self, now: float, user: UserTotals) -> bool:
        since = user.changed_window + 1
        return self._window - since >= _IDLE_WINDOWS and forget(
            self._user_table, now, user.service, user.name, since
        )

    # Looking

    @property
    def epoch(self) -> int:
        """The highest leadership seen; -1: none yet."""
        return self._epoch

    def status(self, now: float) -> NodeStatus:
        """The status of the node."""
        self.advance_to(now)
        return NodeStatus(
            node=self._user_table.node_id,
            boot=self.boot,
            slot=self._slot,
            epoch=self._epoch,
            leader=self._leader,
            nodes=self._quotas.nodes,
            quota_slot=self._quotas.newest_slot,
            quota_age=self._quotas.age,
            users=count_states(self._user_table, now),
            unacknowledged={
                central: self._tracker.unacknowledged(central) for central in self._centrals
            },
            asking=self._header.asks_waiting,
        )

    def slot_and_window(self, now: float) -> tuple[int, int]:
        """The slot that requests are counted in, and which of the node's own windows it is."""
        self.advance_to(now)
        return self._slot, self._window

    def __repr__(self) -> str:
        return (
            f"Reporter({self._user_table.node_id!r}, slot={self._slot}, "
            f"epoch={self._epoch}, leader={self._leader!r}, quota_age={self._quotas.age}, "
            f"users={len(self._user_table)})"
        )


def _stored_version(version: int | None) -> int:
    """A version of the limits as stored in the memory, where 0 is none."""
    return 0 if version is None else (version + 1) % (1 << 64) or 1


def _user_names(services: Mapping[str, object]) -> dict[str, list[str]]:
    return {name: list(part.users) for name, part in services.items()}  # type: ignore[attr-defined]
