"""`Reporter`: a node's side of the protocol with the centrals, without sockets.

    outgoing -> Report, Ask   to the centrals; `due` says when to call it
    receive  <- Ack, Quota    from the centrals

Reports have the totals of a slot, and go to all centrals. Asks go to the leader, within a slot:
users that need credit, and what others give back, at most one in the interval that the leader
sets. A user without a request for a tenth of a second gives back all but a small part, and that,
too, when the leader recalls it because others wait.

While the connection to the leader is lost, and when the leader does not answer an ask, or sends
nothing for two slots, the host is *alone*: users live on their safe shares until it is heard again.

The leader may have given services to other centrals (`--lead per-service`). The slots are those of
the leader, which says in its Acks that it leads. A service is led by the central that has listed it
in a Quota of this epoch, and by the leader if none has. Asks go there, and when that central is
away, the host is alone with this service only. So it is with a service that no central lists any
more, two slots after a new epoch: its leader is one that the host does not reach.

All processes of a host count in one shared memory (`UserTable`); one of them has this object and
talks to the centrals. It writes the leader's clock and quotas into the memory and collects the
totals from it. Beyond the memory it knows which central has acknowledged what. When its process
dies, another one makes a new reporter, which reports all totals again, with the same boot number:
centrals book only what is new to them.

Every call is given the host's monotonic time; there is no thread, no timer, no I/O.
Acknowledgements are in `_report_tracker`, the slot in `slot_clock`, the rules of admission in
`_admission.pxd`, what is written into records in `_apply_quota`. The page docs/node.md specifies
the same for nodes in other languages, and tests/quota/node/core/cases.json holds both to it.

Slot numbers do not go back. When the leader's clock does, the slot holds until the clock has caught
up; the windows of the host go on meanwhile as if no Quota came.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from sluicegate._validate import check_text
from sluicegate.errors import ProtocolError
from sluicegate.quota.messages import Ack, Ask, Quota, Report, ServiceQuota, UserAsk
from sluicegate.quota.node.core._apply_quota import (
    forget,
    put_quota,
    put_settled,
    read_credit,
    return_credit,
)
from sluicegate.quota.node.core._report_tracker import ReportTracker, UserTotals
from sluicegate.quota.node.core._scan import collect, count_states
from sluicegate.quota.node.core._user_table import UserTable
from sluicegate.quota.node.core.leading_central import SILENT_SLOTS, LeadingCentral
from sluicegate.quota.node.core.slot_clock import SlotClock
from sluicegate.quota.stable_hash import report_delay

__all__ = ["NodeStatus", "Reporter", "has_limits"]

# The record of a free user never changes, but is refreshed as long as the user has requests.
_IDLE_WINDOWS = 120
# Idle users that are checked after each report, at least; of many, an eighth.
_IDLE_CHECKS = 256
# If the leader's clock goes back by more slots than this, the slot follows it; else it is frozen.
_MAX_FROZEN_SLOTS = 60
# The largest valid time, in seconds: sums with it are exact to a millisecond.
_MAX_TIME = 1e12
_RECEIVABLE = (Ack, Quota)
# A user gives credit back after so long without a request, and the last request's worth after this.
_IDLE_SECONDS = 0.1
_KEPT_SECONDS = 30.0
# Users whose credit is looked at in one go.
_MAX_CHECKS = 2000
# Three round trips and an interval are what an answer takes; processes are late by a little more.
_WAIT_SLACK = 0.02
_MIN_WAIT, _MAX_WAIT = 0.05, 0.3

_User = tuple[str, str]  # service, user


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of a node, for the operator."""

    node: str
    boot: int
    slot: int
    epoch: int  # of the highest leadership seen; -1: none yet
    leader: str | None
    leaders: dict[str, str]  # of services that another central than the leader leads
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
        self._slot, self._window, self._window_begin, self._window_end, alone_since = (
            user_table.window(now)
        )
        self._epoch: int = published["epoch"]
        self._has_leader_time = self._epoch >= 0
        offset = self._slot * user_table.slot_seconds - self._window_begin
        self._clock = SlotClock(user_table.slot_seconds, now=now, wall=now + offset)
        self._leader: str | None = None
        self._service_leaders: dict[str, str] = {}  # as Quotas of this epoch say
        self._epoch_heard_at = now
        # Services with limits that no central has listed in this epoch yet; and those of them that
        # count as without a leader, since when.
        self._unlisted: set[str] = set()
        self._leaderless: dict[str, float] = {}
        if self._epoch < 0:
            alone_since = now
        # None: whoever leads, while that is not known.
        self._leading: dict[str | None, LeadingCentral] = {
            central: LeadingCentral(user_table.slot_seconds, now, alone_since)
            for central in (None, *self._centrals)
        }
        self._generation: int = published["generation"]
        self._reported_window = -1  # the last window with a report
        self._collected_window = 0  # the window up to which changes have been looked for
        self._pending_reports: list[tuple[str, Report]] = []  # the next ones, until they are due
        self._report_delay = report_delay(user_table.node_id, user_table.slot_seconds)
        # Of the limits; None: no Quota yet.
        self._version: int | None = published["version"] - 1 if published["version"] else None
        self._newcomers: dict[str, dict[str, float]] = published["newcomers"]  # by service
        self._limited: dict[str, int] = {}  # services with limits, and their version
        self._nodes = 0
        self._quota_slot: int | None = None  # of the newest whole Quota

        self._set_in_use()
        self._asked_at = -math.inf  # when the last Ask was made
        self._asking: dict[_User, None] = {}  # the next Ask tells of them
        self._returning: dict[_User, UserAsk] = {}  # they have given back, and it is not told yet
        self._checks: list[tuple[float, str, str]] = []  # when to look for credit to give back
        self._checked: set[_User] = set()  # those in `_checks`

    # The slot

    def advance_to(self, now: float) -> None:
        """Begin a new window if it is time for one. All other calls do so first."""
        if now >= self._window_end:
            self._begin_window(now)
        if now >= self._silent_at:
            for central in self._in_use:
                if now >= central.silent_at(self._retry_seconds()):
                    central.go_away(central.heard_at, self._retry_seconds())
            if now >= self._listing_ends:
                for service in self._unlisted:
                    self._leaderless.setdefault(service, self._epoch_heard_at)
            self._set_silent_at()
            self._publish_header()

    def lose_connection(self, now: float, central: str) -> None:
        """The connection to `central` has ended. What it leads is without a leader from now on."""
        self.advance_to(now)
        lost = self._leading.get(central)
        if lost is not None and lost in self._in_use and lost.is_heard:
            lost.go_away(now, self._retry_seconds())
            self._set_silent_at()
            self._publish_header()

    def leader_of(self, service: str) -> str | None:
        """The central that leads a service; None: it is not known."""
        return self._service_leaders.get(service, self._leader)

    @property
    def _leaders(self) -> set[str | None]:
        """The centrals that lead something here. None: the leader is not known."""
        return {self._leader, *self._service_leaders.values()}

    def leads_unlimited(self, now: float, central: str, service: str) -> bool:
        """Whether a whole Quota of `central` that does not limit a service is the last word on it.

        So it is if `central` has listed it; or leads, and no central has ever sent limits for it.
        """
        if service in self._service_leaders:
            return self._service_leaders[service] == central
        is_known = service in self._limited or now < self._listing_ends
        return central == self._leader and not is_known

    def missing_leaders(self, since: float) -> dict[str | None, list[str]]:
        """The centrals that have been away since then or for longer, with the services they lead.

        None: services whose leader is not known.
        """
        missing: dict[str | None, list[str]] = {
            central: []
            for central in self._leaders
            if central is not None and 0.0 <= self._leading[central].alone_since <= since
        }
        for service in self._limited:
            if self._header.has_service(service) and 0.0 <= self._alone_since(service) <= since:
                central = None if service in self._leaderless else self.leader_of(service)
                missing.setdefault(central, []).append(service)
        return missing

    @property
    def hears_all_leaders(self) -> bool:
        """Whether the leader of each service that has limits is heard."""
        return not self._is_alone and all(
            self._alone_since(service) < 0.0
            for service, version in self._limited.items()
            # After a change of the limits the service may have none: then nobody lists it.
            if self._header.has_service(service)
            and (version == self._version or service in self._service_leaders)
        )

    def _hear(self, now: float, central: str, epoch: int, *, leads: bool) -> None:
        """`central` leads in `epoch`: everything, or at least some service."""
        if epoch > self._epoch:
            for other, leading in self._leading.items():
                # Nobody will answer what it was asked: users need not wait to ask again. One that
                # has only restarted needs a report before it can answer.
                if other != central:
                    self._asking.update(leading.take_unanswered())
            self._begin_epoch(now, epoch)
        if leads or self._leader is None:
            self._leader = central
        self._leading[central].hear(now)

    def _begin_epoch(self, now: float, epoch: int) -> None:
        """Each service is to be listed anew.

        Of those that the last leader led, the new one is the leader until then. The others are
        still where they were, for all that is known.
        """
        for service in self._limited:
            if service in self._unlisted:
                self._leaderless.setdefault(service, self._epoch_heard_at)
            elif self.leader_of(service) != self._leader and self._alone_since(service) >= 0.0:
                self._leaderless[service] = self._alone_since(service)
        self._unlisted = {service for service in self._limited if self._header.has_service(service)}
        self._epoch = epoch
        self._epoch_heard_at = now
        self._leader = None
        self._service_leaders = {}

    @property
    def _listing_ends(self) -> float:
        """When each leader in this epoch, if it is heard, has listed its services."""
        return self._epoch_heard_at + SILENT_SLOTS * self._user_table.slot_seconds

    def _alone_since(self, service: str) -> float:
        """Since when no leader of a service is heard; below 0: one is."""
        since = self._leading[self.leader_of(service)].alone_since
        leaderless_since = self._leaderless.get(service)
        if leaderless_since is None:
            return since
        return leaderless_since if since < 0.0 else min(since, leaderless_since)

    def _set_in_use(self) -> None:
        """Who leads may have changed, or how often to ask."""
        self._in_use = [self._leading[central] for central in self._leaders]
        self._interval = max(central.interval for central in self._in_use)
        self._set_silent_at()

    def _set_silent_at(self) -> None:
        retry_seconds = self._retry_seconds()
        self._silent_at = min(central.silent_at(retry_seconds) for central in self._in_use)
        self._is_alone = self._silent_at == math.inf  # no leader is heard
        if not self._unlisted <= self._leaderless.keys():
            self._silent_at = min(self._silent_at, self._listing_ends)

    def _lead_seconds(self) -> float:
        """How long credit takes to come, from the request that needs it."""
        return self._clock.round_trip + self._interval + 0.02

    def _retry_seconds(self) -> float:
        return 4.0 * self._clock.round_trip + 3.0 * self._interval + 0.05

    def _begin_window(self, now: float) -> None:
        """A new window has begun."""
        slot_seconds = self._user_table.slot_seconds
        lived = math.floor((now - self._window_begin) / slot_seconds) + 1
        if now >= self._clock.begin(self._slot + 1):
            slot = max(self._clock.slot(now), self._slot + 1)  # whatever rounding says
            # A clock that leaps ahead mints no credit for time that nobody lived.
            windows = min(slot - self._slot, max(lived, 1))
            self._slot = slot
            self._window_begin = self._clock.begin(slot)
        else:
            windows = max(lived - 1, 1)
            self._window_begin += windows * slot_seconds
        self._window += windows
        self._set_window_end()
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
            self._window_begin = self._clock.begin(slot)
        self._set_window_end()
        if now >= self._window_end:
            self._begin_window(now)
        else:
            self._publish_header()

    def _publish_header(self) -> None:
        """Publish what holds for all users to all processes of the host."""
        self._generation = (self._generation + 1) % (1 << 32)
        wait = 3.0 * self._clock.round_trip + self._interval + _WAIT_SLACK
        alone_since = self._leading[self._leader].alone_since
        self._header.publish(
            version=_stored_version(self._version),
            begin=self._window_begin,
            end=self._window_end,
            slot=self._slot,
            epoch=self._epoch,
            window=self._window,
            generation=self._generation,
            slot_frozen=self._window_end < self._clock.begin(self._slot + 1),
            nodes=self._nodes,
            alone_since=alone_since,
            lead_seconds=self._lead_seconds(),
            wait_seconds=0.0 if self._is_alone else min(max(wait, _MIN_WAIT), _MAX_WAIT),
            retry_seconds=self._retry_seconds(),
            newcomers=self._newcomers,
            alone_services={
                service: self._alone_since(service)
                for service in {*self._service_leaders, *self._leaderless}
            },
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
            self._hear(now, central, ack.epoch, leads=True)
            self._set_in_use()
            if ack.sent <= now:
                self._clock.sample(ack.epoch, sent=ack.sent, time=ack.time, received=now)
                self._follow_leader_clock(now)
        self._tracker.acknowledge(central, ack.sequence, leads=leads)
        self._header.settled_slot = self._tracker.settled_slot

    def _receive_quota(self, now: float, central: str, quota: Quota) -> None:
        if quota.epoch < self._epoch:
            return
        self._hear(now, central, quota.epoch, leads=False)
        for service, part in quota.services.items():
            before = self.leader_of(service)
            if before != central:
                self._asking.update(self._leading[before].take_unanswered(service))
            self._service_leaders[service] = central
            if has_limits(part):
                self._limited[service] = quota.version
            elif quota.whole:
                self._limited.pop(service, None)
            self._unlisted.discard(service)
            self._leaderless.pop(service, None)
        leading = self._leading[central]
        is_newest = (quota.epoch, quota.time) >= leading.newest
        if is_newest:
            leading.newest = (quota.epoch, quota.time)
            leading.interval = quota.interval
            self._nodes = quota.nodes
            self._version = quota.version
            for service, part in quota.services.items():
                self._newcomers[service] = part.newcomers
        self._set_in_use()
        self._clock.hint(quota.epoch, time=quota.time, received=now)
        self._follow_leader_clock(now)
        if not is_newest and quota.version != self._version:
            return  # it was overtaken by one with other limits
        if quota.whole:
            self._quota_slot = max(self._quota_slot or 0, quota.slot)
        self._apply_quota(now, quota)

    def _apply_quota(self, now: float, quota: Quota) -> None:
        """Write the grants into the records. What comes twice or late changes nothing."""
        for service, part in quota.services.items():
            if not self._header.has_service(service):
                continue  # it is not served here
            put_quota(
                self._user_table,
                now,
                service,
                part.users,
                part.hints,
                # By the leader's clock a wait could end before it begins, if the clock stepped.
                said_at=min(now, quota.time - self._clock.offset),
                version=_stored_version(self._version),
                whole=quota.whole,
            )
            if quota.whole:
                continue
            for user, shares in part.users.items():
                if shares:
                    self._check_at(now + _IDLE_SECONDS, service, user)
            for user, hint in part.hints.items():
                if hint.recall:
                    self._return_credit(now, service, user, keeps=False)
        self._header.count_answer()

    # Credit that is not needed

    def _check_at(self, time: float, service: str, user: str) -> None:
        """Look at `time` whether a user has credit to give back."""
        if (service, user) not in self._checked:
            self._checked.add((service, user))
            heappush(self._checks, (time, service, user))

    def _check_credit(self, now: float) -> None:
        for _ in range(_MAX_CHECKS):
            if not self._checks or self._checks[0][0] > now:
                return
            _, service, user = heappop(self._checks)
            self._checked.discard((service, user))
            if not self._leading[self.leader_of(service)].is_heard:
                self._check_at(now + self._user_table.slot_seconds, service, user)
                continue
            again = self._return_credit(now, service, user)
            if again is not None:
                self._check_at(again, service, user)

    def _return_credit(
        self, now: float, service: str, user: str, *, keeps: bool = True
    ) -> float | None:
        """Give back what an idle user does not need soon, or all of it; or when to look again."""
        answer = return_credit(
            self._user_table, now, service, user, idle_seconds=_IDLE_SECONDS, keeps=keeps
        )
        if isinstance(answer, UserAsk):
            self._returning[service, user] = answer
            return None
        return answer

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
        if not self._is_alone:
            self._check_credit(now)
        for asking in self._header.take_asks():
            self._asking[asking] = None
        if now >= self._asked_at + self._interval and (self._asking or self._returning):
            self._asked_at = now
            for leader, users in self._take_asks(now).items():
                ask = Ask(self._user_table.node_id, self.boot, now, users)
                asked = self._centrals if leader is None else (leader,)
                messages.extend((central, ask) for central in asked)
                # One that only tells something is not answered.
                self._leading[leader].ask(
                    now,
                    (
                        (service, user)
                        for service, asks in users.items()
                        for user, each in asks.items()
                        if each.requests
                    ),
                )
            self._asking = {}
            self._set_silent_at()
        return messages

    def _take_asks(self, now: float) -> dict[str | None, dict[str, dict[str, UserAsk]]]:
        """What to ask and tell, by leader, service and user."""
        asks: dict[_User, UserAsk] = self._returning
        for service, user in self._asking:
            ask = read_credit(self._user_table, now, service, user)
            if ask is not None:
                asks[service, user] = ask
        self._returning = {}
        by_leader: dict[str | None, dict[str, dict[str, UserAsk]]] = {}
        for (service, user), ask in asks.items():
            users = by_leader.setdefault(self.leader_of(service), {})
            users.setdefault(service, {})[user] = ask
        return by_leader

    def due(self, now: float) -> float:
        """When to call `outgoing` next, at the latest; `now` if it has messages already."""
        if self._reported_window < 0:
            return now
        begin = self._window_begin if self._reported_window < self._window else self._window_end
        due = begin + self._report_delay
        if not self._is_alone:
            due = min(due, self._silent_at)
            if self._checks:
                due = min(due, self._checks[0][0])
        if self._header.has_asks or self._asking or self._returning:
            due = min(due, self._asked_at + self._interval)
        return max(now, due)

    @property
    def can_ask_at(self) -> float:
        """From when on the next Ask may be sent."""
        return self._asked_at + self._interval

    def leave(self, now: float) -> list[tuple[str, Report]]:
        """The last reports: the node stops, and hands back what it was promised."""
        self.advance_to(now)
        return self._report(now, self._slot, leaving=True)

    def end_leave(self, now: float) -> None:
        """The last reports are acknowledged, as far as they ever will be.

        Centrals forget a node that has left, and take its credit back. If the node comes back
        with this memory, they book what is not settled in it; and what was granted before must
        not be spent.
        """
        put_settled(self._user_table, self._tracker)
        for user in self._tracker.users():
            return_credit(
                self._user_table, now, user.service, user.name, idle_seconds=0.0, keeps=False
            )

    def _report(self, now: float, slot: int, *, leaving: bool) -> list[tuple[str, Report]]:
        window = self._window + 1 if leaving else self._window
        collect(self._user_table, self._tracker, window, self._collected_window)
        self._collected_window = window
        self._tracker.expire_reservations(self._window, self._user_table.reservation_windows)
        self._header.next_sequence()
        reports = self._tracker.make_reports(slot, now, epoch=self._epoch, leaving=leaving)
        put_settled(self._user_table, self._tracker)
        for service, user in self._tracker.take_holding():
            self._check_at(now + _IDLE_SECONDS, service, user)
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
        if self._window - since >= _KEPT_SECONDS / self._user_table.slot_seconds:
            self._return_credit(now, user.service, user.name, keeps=False)
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
            leaders={
                service: central
                for service, central in self._service_leaders.items()
                if central != self._leader
            },
            nodes=self._nodes,
            quota_slot=self._quota_slot,
            quota_age=None if self._quota_slot is None else max(0, self._slot - self._quota_slot),
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
            f"epoch={self._epoch}, leader={self._leader!r}, "
            f"users={len(self._user_table)})"
        )


def has_limits(part: ServiceQuota) -> bool:
    """Whether a user of the service may have a limit. A user's own entry gives shares alone."""
    return bool(part.newcomers) or any(part.users.values())


def _stored_version(version: int | None) -> int:
    """A version of the limits as stored in the memory, where 0 is none."""
    return 0 if version is None else (version + 1) % (1 << 64) or 1
