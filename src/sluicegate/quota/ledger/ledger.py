"""The ledger: everything a central knows, without its sockets and its clock.

Reports are booked (`book`), nodes ask for credit at any time (`ask`) and are granted it at once or
in turn (`serve`), and once a slot the shares of all nodes are assigned (`assign`, `quota`). The
ledger knows the nodes, each with the boot and the sequence of its last report; the amounts are in a
`ServiceLedger` for each service, the queues of those that ask in a `Granter`. The time is an
argument, in slots or in seconds: the ledger never reads a clock.

Booking is idempotent: a report of our own nodes is booked when its sequence is the highest yet
of its boot, a classic report once for each node and slot. Whatever is booked is booked for
good, whether the user has a limit or not.

Limits may change at any time (`set_limits`); they take effect with the next assignment.
"""

import logging
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias, TypedDict, TypeVar

from sluicegate.errors import ConfigError, ProtocolError
from sluicegate.quota.ledger._grants import Granter
from sluicegate.quota.ledger._node_table import COLD_START_NODES, NODE_TIMEOUT_SLOTS, NodeTable
from sluicegate.quota.ledger._service_ledger import ServiceLedger
from sluicegate.quota.ledger.ask_interval import AskInterval
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.ledger.limits_table import LimitsTable
from sluicegate.quota.ledger.service import BucketService, MakeService, Service, Shares
from sluicegate.quota.ledger.snapshot import ServiceLedgerDump, SlotLengthMismatch, pack, unpack
from sluicegate.quota.messages import Ask, Hint, Report, ServiceQuota, Share, UserAsk
from sluicegate.quota.packed._report_lines import PackedLines
from sluicegate.quota.packed._shares import PackedShares

__all__ = ["Amounts", "Assignment", "Ledger", "Rule"]

_logger = logging.getLogger("sluicegate.quota")

# A rule gets the user, the resource, what may be given out, the refill per slot, and for each
# node (node, demand per slot, consumed, rejected); it returns a share for each of them.
Rule: TypeAlias = Callable[
    [str, str, float, float, list[tuple[str, float, float, float]]], Iterable[float]
]
Assignment: TypeAlias = str | Rule
Amounts: TypeAlias = dict[str, dict[str, dict[str, float]]]

_MAX_HISTORY_SLOTS = 3600
# A node that nobody has heard of for so long is forgotten, a few of them in each slot.
_FORGET_NODE_SLOTS = 300
_MAX_FORGOTTEN_NODES = 4
# How many nodes there are is a guess in the first slots.
_COLD_START_SLOTS = 2
_CATCH_UP_SLOTS = 3  # longer than that nobody goes on with an old quota
_OUTAGE_SLOTS = 2  # nodes live on their safe shares when nothing was assigned for longer
_RECONNECT_SECONDS = 4.0  # in which nodes find a central that is back: twice their longest back-off
_MAX_SEQUENCE = 1 << 31  # no boot has more reports: at one per slot of 0.1 s, seven years
_CELLS_PER_STEP = 100_000  # are assigned in some 3 ms
_LIMITS_PER_STEP = 4_000  # are asked for in some 3 ms
_NAMES_PER_STEP = 2_000  # are looked up in some 3 ms
_MAX_COVERED_SLOTS = 86_400  # slots that the first report of a node can tell of
_FORGET_ACCOUNTS_SLOTS = 64  # users that nobody asks for are looked for every so many slots
_CLASSIC_HISTORY_SLOTS = 64  # a classic report that is older than so many slots is not booked

_Result = TypeVar("_Result")
_Answers: TypeAlias = dict[str, tuple[dict[str, dict[str, Share]], dict[str, Hint]]]


@dataclass(slots=True)
class _KnownNode:
    """How far a node is booked. A classic node has no boots: its reports go by their slots."""

    boot: int
    sequence: int
    slot: int  # the highest it has reported
    seen: int  # the slot in which it was last heard of
    booked: int = 0  # classic: bit n is set when the report of slot `slot - n` is booked
    heard_until: int = 0  # the slot of ours up to which its reports tell; 0: not known
    reported: float = 0.0  # when its last report was sent, by its clock
    asked: float = 0.0  # when its newest ask was sent
    asked_slot: int = 0  # the slot of ours in which that came


# As `astuple`, which would copy each number.
_values_of = attrgetter(*(field.name for field in fields(_KnownNode)))


class _BookingOptions(TypedDict):
    """How a report is booked: see `ServiceLedger.record`."""

    slots: int
    sequence: int
    since: int
    is_known: bool
    is_new_boot: bool
    is_handed_over: bool
    is_overtaken: bool
    silence: tuple[float, float, float]


class Ledger:
    """All buckets of all services, and what is granted of them to which node."""

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        *,
        slot_seconds: float = 1.0,
        assignment: Assignment = "fair",
        services: Mapping[str, MakeService] | None = None,
        nr_slot: int = 60,
    ) -> None:
        if not 0.1 <= slot_seconds <= 3600.0:
            raise ValueError(f"slot_seconds must be from 0.1 to 3600, got {slot_seconds!r}")
        if assignment not in ("fair", "classic") and not callable(assignment):
            raise ValueError(
                f"assignment must be 'fair', 'classic' or a function, got {assignment!r}"
            )
        if not 1 <= nr_slot <= _MAX_HISTORY_SLOTS:
            raise ValueError(f"nr_slot must be from 1 to {_MAX_HISTORY_SLOTS}, got {nr_slot!r}")
        self.slot_seconds = slot_seconds
        self.nr_slot = nr_slot
        self._reconnect_slots = math.ceil(_RECONNECT_SECONDS / slot_seconds)
        self.errors: dict[str, int] = {}  # of each service
        self._assignment = assignment
        self._make_services = dict(services or {})
        self._next_table: LimitsTable | None = None
        self._table = LimitsTable(entries, slot_seconds)
        self._clear()

    def _clear(self) -> None:
        """Know nothing yet."""
        self._first: int | None = None  # the slot in which everything began; none so far
        self._assigned = 0
        self._nodes = NodeTable()
        self._known: dict[str, _KnownNode] = {}
        self.nodes_changed = 0  # the slot in which a node last came or went
        self._live = 0  # how many of them take part: at the last assignment, and new ones since
        self._ask_interval = AskInterval()
        self._service_ledgers: dict[str, ServiceLedger] = {}
        self._services: dict[str, Service] = {}
        self._granters: dict[str, Granter] = {}  # of the services that have buckets
        self._reported: dict[int, set[str]] = {}
        self._steps: Iterator[None] | None = None  # of the assignment that is going on
        self._limit_change: Iterator[None] = iter(())  # of limits, as far as it is still to be done
        self._is_restored = False  # and nothing was booked or assigned since
        self._stood_still = False  # the last outage was one of a process that went on

    # Limits

    def prepare(self, entries: Iterable[Entry], base: LimitsTable | None = None) -> LimitsTable:
        """Make ready for `set_limits`, in any thread: of 100,000 entries it takes half a second.

        With the table that was made ready before this one, the change itself takes less time.
        """
        return LimitsTable(entries, self.slot_seconds, base)

    def set_limits(self, entries: Iterable[Entry] | LimitsTable) -> None:
        """Replace all limits, from the next assignment on; at once before anything was booked."""
        table = entries if isinstance(entries, LimitsTable) else self.prepare(entries)
        if self._first is None:
            self._table = table
        else:
            self._next_table = table

    @property
    def version(self) -> int:
        """Of the limits. Centrals with the same limits say the same."""
        return self._table.version

    def begin(self, slot: int) -> None:
        """It is `slot` now. Everything that is not known from before begins in the first one."""
        if self._first is not None:
            if slot < self._assigned - _CATCH_UP_SLOTS:
                self._rebase(slot)
            elif self._is_restored or slot > self._assigned + _OUTAGE_SLOTS:
                self._resume(slot)
            return
        if not isinstance(slot, int) or not 0 <= slot < 1 << 60:
            raise ValueError(f"slot must be a whole number from 0 up, got {slot!r}")
        self._first = slot
        self._assigned = slot - 1
        self._table.activate(slot, None)
        self._open_services()

    def _rebase(self, slot: int) -> None:
        """The clock has gone back by more than can be waited for."""
        _logger.warning("clock went back from slot %d to %d", self._assigned, slot)
        self._assigned = slot - 1
        for _ in self._limit_change:
            pass
        self._steps = None
        for known in self._known.values():
            known.slot = min(known.slot, slot - 1)
            known.seen = min(known.seen, slot)
        for service_ledger in self._service_ledgers.values():
            service_ledger.rebase(slot)
        self._nodes.rebase(slot - 1)
        self.drop_asks()

    def _resume(self, slot: int) -> None:
        """Resume after an outage. Nodes went on with their last quotas, and reconnect one by one.

        Until then they consume their safe shares, which are not given to nodes that are back.
        """
        self._finish()
        self._stood_still = not self._is_restored  # then messages have waited, too
        if self._stood_still:
            for granter in self._granters.values():
                granter.resume()
        self._is_restored = False
        self._expect_nodes(slot, slot, is_takeover=False)

    def take_over(self, time: float, services: Collection[str] | None = None) -> None:
        """Grant from now on, at `time` in seconds: nodes have followed another leader so far.

        `services`: only these are taken over; the others are led here already, or elsewhere.

        What they have spent since their last reports is not known here yet. Until a node tells, it
        is taken to have lived on its safe share, as after an outage: the refill of that time finds
        room in the bucket, and is given to nobody else. One that has just begun or resumed expects
        its nodes already.
        """
        slot = math.floor(time / self.slot_seconds)
        self.begin(slot)
        assert self._first is not None
        if slot >= max(self._first, self._nodes.resumed_at) + self._reconnect_slots:
            self._finish()
            self._stood_still = False
            self._expect_nodes(slot, time / self.slot_seconds, services, is_takeover=True)

    def _expect_nodes(
        self,
        slot: int,
        time: float,
        services: Collection[str] | None = None,
        *,
        is_takeover: bool,
    ) -> None:
        """Take it that nodes live on their safe shares until they tell, in `slot` and at `time`."""
        since = self._assigned - NODE_TIMEOUT_SLOTS + 1
        self._nodes.resume(since, slot, slot + self._reconnect_slots)
        self._assigned = max(self._assigned, slot - 1)
        for name, service_ledger in self._service_ledgers.items():
            if services is None or name in services:
                service_ledger.resume(slot, time, is_takeover=is_takeover)

    def _change_limits(self, slot: int) -> Iterator[None]:
        """Bring the next limits into all buckets, some at a time."""
        if self._next_table is None:
            return
        before, self._table = self._table, self._next_table
        self._table.activate(slot, before)
        self._next_table = None
        self._open_services()
        for service_ledger in list(self._service_ledgers.values()):
            at: int | None = 0
            while at is not None:
                at = service_ledger.limits_changed(slot, at, _LIMITS_PER_STEP)
                if at is not None:
                    yield

    def _open_services(self) -> None:
        for name in self._table.services:
            if name not in self._service_ledgers:
                self._open(name)

    def _open(self, name: str) -> None:
        def limit_of(user: str, resource: str) -> tuple[float, float, int] | None:
            return self._table.bucket_limit(name, user, resource)

        def resources_of(user: str) -> Iterable[str] | None:
            entry = self._table.entry(name, user)
            return None if entry is None else entry.rates

        assert self._first is not None
        service_ledger = ServiceLedger(
            self._nodes,
            self._assignment,
            limit_of,
            first=self._first,
            nr_slot=self.nr_slot,
            slot_seconds=self.slot_seconds,
        )
        self._service_ledgers[name] = service_ledger
        make = self._make_services.get(name, BucketService)
        service = self._call_service(name, make, name, service_ledger)
        self._services[name] = BucketService(name, service_ledger) if service is None else service
        if isinstance(self._services[name], BucketService):
            self._granters[name] = Granter(service_ledger, resources_of)

    def _call_service(
        self, name: str, call: Callable[..., _Result], *arguments: object
    ) -> _Result | None:
        """Call into a service. Its error is its own: logged, counted, and None for us."""
        try:
            return call(*arguments)
        except Exception:
            self.errors[name] = self.errors.get(name, 0) + 1
            _logger.exception("service %r failed; other services continue", name)
            return None

    # Booking

    def book(self, slot: int, report: Report) -> bool:
        """Book a report that has come in in `slot`.

        False: it was known already, or it takes for granted what is not booked here.
        """
        self.begin(slot)
        if not 0 <= report.since <= report.sequence < _MAX_SEQUENCE:
            raise ProtocolError(
                f"invalid report of node {report.node!r}: sequence {report.sequence!r}, since "
                f"{report.since!r}, expected whole numbers below {_MAX_SEQUENCE}, since not above "
                f"sequence"
            )
        if not isinstance(report.lines, PackedLines):  # those are checked where they are read
            for users in report.lines.values():
                ServiceLedger.check(report.node, users)
        known = self._known.get(report.node)
        is_known = known is not None and known.boot == report.boot
        is_new_boot = known is not None and known.boot < report.boot
        if known is not None and is_known:
            known.seen = max(known.seen, slot)
            if report.sequence <= known.sequence or report.since > known.sequence:
                return False
            # By its slots, which leap when a node hears of our clock; and not longer than it was
            # silent.
            silent = slot - known.heard_until
            covered = max(1, min(min(report.slot, slot) - known.slot, silent + 1))
            known.sequence = report.sequence
        elif known is not None and not is_new_boot:
            return False
        # No slot is over before its time, whatever a node says that lives by a clock of its own.
        reported = min(report.slot, slot if report.leaving or report.epoch >= 0 else slot - 1)
        # This ledger is younger than the time the report covers.
        is_handed_over = known is None and report.settled_slot >= 0
        if known is None or is_new_boot:
            covered = 1
            if is_handed_over:
                if self._nodes.warmup_until == 0:
                    self._nodes.warmup_until = slot + self._reconnect_slots
                covered = min(max(1, reported - report.settled_slot), _MAX_COVERED_SLOTS)
                led_until = min(report.settled_slot + 1, slot)
                self._nodes.led_until = max(self._nodes.led_until, led_until)
            if is_new_boot:
                self._drop_cells(report.node, is_spent=True)
            self._live += not is_new_boot
            self.nodes_changed = slot
            known = self._known[report.node] = _KnownNode(
                report.boot, report.sequence, reported, slot
            )
        known.slot = max(known.slot, reported)
        # Late reports come together: the next one covers the time since the slot of this one.
        known.heard_until = min(slot, reported + 1) if report.epoch >= 0 else slot
        silent_since, silent_until = self._nodes.silence_of(report.node, self._assigned)
        self._nodes.add(report.node, known.slot)
        if report.leaving:
            self.nodes_changed = slot
            self._nodes.add(report.node, slot - NODE_TIMEOUT_SLOTS)
        still_silent_since, _ = self._nodes.silence_of(report.node, self._assigned)
        self._note_reported(reported, report.node)
        options: _BookingOptions = {
            "slots": covered,
            "sequence": report.sequence,
            "since": report.since,
            "is_known": is_known,
            "is_new_boot": is_new_boot,
            "is_handed_over": is_handed_over,
            # It is sent some time after the slot that it tells of.
            "is_overtaken": report.sent < known.asked or reported < known.asked_slot,
            "silence": (silent_since, still_silent_since, silent_until),
        }
        known.reported = max(known.reported, report.sent)
        if isinstance(report.lines, PackedLines):
            self._book_packed(report.node, reported, report.lines, options)
        else:
            for name, users in report.lines.items():
                if name in self._service_ledgers:
                    usage = self._service_ledgers[name].record(
                        report.node, reported, users, **options
                    )
                    self._call_service(name, self._services[name].consume, reported, usage)
        if report.leaving:
            for service_ledger in self._service_ledgers.values():
                service_ledger.give_back(report.node)
            for granter in self._granters.values():
                granter.drop_node(report.node)
        return True

    def _book_packed(
        self, node: str, slot: int, lines: PackedLines, options: _BookingOptions
    ) -> None:
        for name, begin, end in lines.ranges:
            if name not in self._service_ledgers:
                continue
            service = self._services[name]
            # BucketService would only deduct the usage, which `record_packed` can do on the way.
            usage = self._service_ledgers[name].record_packed(
                node, slot, lines, begin, end, **options, deducts=type(service) is BucketService
            )
            if usage is not None:
                self._call_service(name, service.consume, slot, usage)

    def resolve_names(self, slot: int, report: Report) -> Iterator[None]:
        """Look up the names of a report in steps of a few milliseconds, so that `book` is quick."""
        self.begin(slot)
        if not isinstance(report.lines, PackedLines):
            return
        for name, at, end in report.lines.ranges:
            while name in self._service_ledgers:
                at = self._service_ledgers[name].resolve(
                    report.lines, at, end, slot, _NAMES_PER_STEP
                )
                if at == end:
                    break
                yield

    def is_outlived(self, node: str, boot: int) -> bool:
        """Whether a node has had a later life than this one: nothing more of it is booked."""
        known = self._known.get(node)
        return known is not None and known.boot > boot

    def booked(self, node: str, boot: int) -> int:
        """The sequence up to which a boot of a node is booked; 0: nothing is."""
        known = self._known.get(node)
        return known.sequence if known is not None and known.boot == boot else 0

    def resolve_classic_names(
        self, slot: int, *tables: Mapping[str, dict[str, dict[str, float]]]
    ) -> Iterator[None]:
        """As `resolve_names`, for the report of a classic node."""
        self.begin(slot)
        for name, users in (item for table in tables for item in table.items()):
            rest = iter(users.items())
            while name in self._service_ledgers and (
                some := list(islice(rest, _NAMES_PER_STEP // 4))
            ):
                self._service_ledgers[name].resolve_users(some, slot)
                yield

    def book_classic(
        self,
        slot: int,
        node: str,
        sent_in: int,
        consumption: Mapping[str, dict[str, dict[str, float]]],
        rejection: Mapping[str, dict[str, dict[str, float]]],
    ) -> bool:
        """Book the report that a classic node sent in slot `sent_in` on the slot before.

        `slot` is ours: such a node lives by a clock of its own. False: it was known already.
        """
        self.begin(slot)
        if sent_in > slot + _CLASSIC_HISTORY_SLOTS:
            raise ProtocolError(
                f"invalid report of node {node!r}: sent in slot {sent_in!r}, expected at most "
                f"{_CLASSIC_HISTORY_SLOTS} slots after {slot}; check the clock of the node"
            )
        for name in {**consumption, **rejection}:
            ServiceLedger.check_slot(node, consumption.get(name, {}), rejection.get(name, {}))
        reported = sent_in - 1
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = _KnownNode(0, 0, reported - 1, slot)
            self._live += 1
            self.nodes_changed = slot
        age = known.slot - reported
        if age >= _CLASSIC_HISTORY_SLOTS or (age >= 0 and known.booked >> age & 1):
            return False
        if age < 0:
            older = known.booked << min(-age, _CLASSIC_HISTORY_SLOTS)
            known.booked = (older | 1) & ((1 << _CLASSIC_HISTORY_SLOTS) - 1)
            known.slot = reported
        else:
            known.booked |= 1 << age
        known.seen = max(known.seen, slot)
        reported = min(reported, slot)
        self._nodes.add(node, min(known.slot, slot), lead_slots=2)
        self._note_reported(reported, node)
        for name in {**consumption, **rejection}:
            if name in self._service_ledgers:
                usage = self._service_ledgers[name].record_slot(
                    node, reported, consumption.get(name, {}), rejection.get(name, {})
                )
                self._call_service(name, self._services[name].consume, reported, usage)
        return True

    def _note_reported(self, slot: int, node: str) -> None:
        if slot <= self._assigned - self.nr_slot:
            return
        if slot not in self._reported:
            self._reported[slot] = set()
            for old in [old for old in self._reported if old <= slot - self.nr_slot]:
                del self._reported[old]
        self._reported[slot].add(node)

    def _drop_cells(self, node: str, *, is_spent: bool = False) -> None:
        for service_ledger in self._service_ledgers.values():
            service_ledger.drop_node(node, is_spent=is_spent)
        for granter in self._granters.values():
            granter.drop_node(node)

    # Giving out

    def assign(self, slot: int) -> None:
        """Decide the shares of the next slot, everywhere.

        Slots that were missed are made up for, as far as their promises may still be in use:
        nodes go on with what they had.
        """
        for _ in self.assigning(slot, cells=sys.maxsize):
            pass

    def assigning(self, slot: int, cells: int = _CELLS_PER_STEP) -> Iterator[None]:
        """As `assign`, in parts of about so many cells: some milliseconds.

        Reports may be booked and asks be answered between two of them; for each bucket it is as
        if they had come before the assignment or after it. Whoever needs the next assignment
        before this one is over brings it to its end.
        """
        self.begin(slot)
        self._finish()
        self._limit_change = self._change_limits(slot)
        steps = self._steps = chain(self._limit_change, self._assign_up_to(slot, cells))
        for _ in steps:
            yield
            if self._steps is not steps:
                break  # it was brought to its end, or the clock went back
        else:
            self._steps = None
        self._forget_nodes(slot)
        if slot % _FORGET_ACCOUNTS_SLOTS == 0:
            for granter in self._granters.values():
                granter.forget_idle(slot * self.slot_seconds)
        live = sum(
            self.is_live(node, slot) or self._nodes.is_autonomous(node, slot)
            for node in self._known
        )
        if live != self._live:
            self.nodes_changed = slot
        self._live = live
        self._ask_interval.end_slot(self._live)

    def _finish(self, up_to: int | None = None) -> None:
        """Bring an assignment that is going on to its end; only if it is of a slot `up_to`."""
        if self._steps is not None and (up_to is None or self._assigned < up_to):
            for _ in self._steps:
                pass
            self._steps = None

    def _assign_up_to(self, slot: int, cells: int) -> Iterator[None]:
        for missed in range(max(self._assigned + 1, slot - _CATCH_UP_SLOTS + 1), slot + 1):
            for name, service in list(self._services.items()):
                if isinstance(service, BucketService):
                    while self._call_service(name, service.assign_some, missed, cells) is False:
                        yield
                else:
                    self._call_service(name, service.assign, missed)
                    yield
            self._assigned = missed
        self._assigned = max(self._assigned, slot)

    def _forget_nodes(self, slot: int) -> None:
        old = (
            node for node, known in self._known.items() if slot - known.seen > _FORGET_NODE_SLOTS
        )
        for node in list(islice(old, _MAX_FORGOTTEN_NODES)):
            self._drop_cells(node)
            self._nodes.remove(node)
            del self._known[node]

    def quota(
        self, slot: int, node: str, leads: Callable[[str], bool] = lambda service: True
    ) -> dict[str, ServiceQuota]:
        """What `node` may let through in the slot after `slot`, by service, of those led here."""
        count = self.nodes(slot)
        return {
            name: ServiceQuota(self._shares(name, slot, node), self._table.newcomers(name, count))
            for name in self._services
            if leads(name)
        }

    def newcomers(self, slot: int, service: str) -> dict[str, float]:
        """What a node may let through for a user that it has not heard of."""
        return self._table.newcomers(service, self.nodes(slot))

    def _shares(self, name: str, slot: int, node: str) -> Shares:
        service = self._services[name]
        shares = self._call_service(name, service.quota, slot, node)
        if not isinstance(shares, dict | PackedShares):
            return {}
        if isinstance(service, BucketService) or not self._nodes.takes_credit(node):
            return shares
        return self._call_service(name, self._credit_of, name, slot + 1, node, shares) or {}

    def _credit_of(self, name: str, slot: int, node: str, shares: Shares) -> Shares:
        """The shares that a service of its own gives for `slot`, as totals of grants."""
        service_ledger = self._service_ledgers[name]
        return {
            user: {
                resource: Share(
                    service_ledger.raise_credit(slot, node, user, resource, amount, safe), safe
                )
                for resource, (amount, safe) in resources.items()
            }
            for user, resources in shares.items()
        }

    # Granting

    @property
    def interval(self) -> float:
        """Seconds that a node leaves between two asks, at least."""
        return self._ask_interval.seconds(self._live)

    def note_delay(self, seconds: float) -> None:
        """A timer of the central has fired so late, told every 0.1 s: nodes ask less often then."""
        self._ask_interval.note_delay(seconds)

    def ask(self, time: float, ask: Ask) -> dict[str, dict[str, ServiceQuota]]:
        """Process what a node asks and tells; what is to be sent now, by node and service.

        The answer may be for other nodes, too. A user without a limit has an empty share. A node
        that is new has to report first.
        """
        slot = math.floor(time / self.slot_seconds)
        known = self._known.get(ask.node)
        if known is None or known.boot != ask.boot or ask.sent < known.asked:
            return {}
        self.begin(slot)
        if not self._nodes.takes_credit(ask.node):
            return {}
        if self.must_report(ask.node, slot):
            return {}
        known.asked, known.asked_slot = ask.sent, slot
        quotas: dict[str, dict[str, ServiceQuota]] = {}
        for name, users in ask.users.items():
            granter = self._granters.get(name)
            answers: _Answers = {}
            if granter is not None:
                is_newest = ask.sent >= known.reported
                granter.ask(
                    time, ask.node, users, answers, interval=self.interval, is_newest=is_newest
                )
            else:
                answers[ask.node] = (self._answer_for_service(name, slot, ask.node, users), {})
            self._collect(name, slot, answers, quotas)
        return quotas

    def _answer_for_service(
        self, name: str, slot: int, node: str, users: Mapping[str, UserAsk]
    ) -> dict[str, dict[str, Share]]:
        """The shares of a service that has no buckets: free, or as it says."""
        if name not in self._services:
            return {user: {} for user in users}
        for user, (_, resources, _) in users.items():
            for resource, credit in resources.items():
                self._service_ledgers[name].tell(slot, node, user, resource, *credit[:3])
        shares = self._shares(name, slot - 1, node)
        answer: dict[str, dict[str, Share]] = {}
        for user in users:
            if user in shares:
                answer[user] = shares[user]
            elif self._table.entry(name, user) is None:
                answer[user] = {}
        return answer

    def must_report(self, node: str, slot: int) -> bool:
        """Whether the asks of a node count only after a report: we stood still, and they waited."""
        return self._stood_still and node in self._nodes and self._nodes.is_autonomous(node, slot)

    def serve(self, time: float) -> dict[str, dict[str, ServiceQuota]]:
        """Serve those that wait and whose turn it is; what is to be sent, by node and service."""
        slot = math.floor(time / self.slot_seconds)
        self.begin(slot)
        quotas: dict[str, dict[str, ServiceQuota]] = {}
        for name, granter in self._granters.items():
            answers: _Answers = {}
            granter.serve(time, answers, interval=self.interval)
            self._collect(name, slot, answers, quotas)
        return quotas

    def serve_due(self) -> float:
        """When `serve` has something to do next, in seconds; infinite: nobody waits."""
        return min((granter.due() for granter in self._granters.values()), default=math.inf)

    def untold_grants(self) -> Iterator[tuple[str, str, str, str, float]]:
        """(node, service, user, resource, total of its grants) that nodes are not told of yet."""
        for name, granter in self._granters.items():
            for node, user, resource, granted in granter.untold_grants():
                yield node, name, user, resource, granted

    def drop_asks(self) -> None:
        """Nobody waits any more: nodes ask again."""
        for granter in self._granters.values():
            granter.clear()

    def _collect(
        self,
        name: str,
        slot: int,
        answers: _Answers,
        quotas: dict[str, dict[str, ServiceQuota]],
    ) -> None:
        if answers:
            newcomers = self._table.newcomers(name, self.nodes(slot))
            for node, (users, hints) in answers.items():
                if users or hints:
                    quotas.setdefault(node, {})[name] = ServiceQuota(users, newcomers, hints)

    # Snapshots

    def snapshot(self) -> bytes:
        """Everything that must outlive this ledger, for `restore`: buckets, credit, sequences."""
        return self.begin_snapshot()()

    def begin_snapshot(self) -> Callable[[], bytes]:
        """A snapshot of now, in two steps: the second may be done in a thread."""
        head = {
            "slot_seconds": self.slot_seconds,
            "first": self._first,
            "assigned": self._assigned,
            # By number: so their order is the same when they are numbered anew.
            "nodes": sorted(
                (
                    (node, *self._nodes.row_of(node), _values_of(known))
                    for node, known in self._known.items()
                ),
                key=itemgetter(1),
            ),
        }
        table, first = self._table, self._first  # a table that has begun does not change
        dumps = {name: each.dump() for name, each in self._service_ledgers.items()}
        return lambda: pack(head | {"since": table.started_after(first)}, dumps)

    def restore(self, packed: bytes) -> None:
        """Go on from a snapshot; ConfigError when it cannot be used, and nothing is changed then.

        The ledger must be new. Its limits are its own: they may have changed since. What was
        saved beyond a bucket's capacity is lost, debts are not.
        """
        if self._first is not None:
            raise ValueError("cannot restore into a ledger in use: it must have booked nothing yet")
        head, dumps = unpack(packed)
        if head["slot_seconds"] != self.slot_seconds:
            raise SlotLengthMismatch(
                f"the snapshot has slots of {head['slot_seconds']} s, expected {self.slot_seconds}"
            )
        try:
            if head["first"] is not None:
                self._load(head, dumps)
        except (ValueError, TypeError, LookupError) as error:
            self._clear()
            raise ConfigError(f"invalid snapshot: {error!r}") from error

    def _load(self, head: dict[str, Any], dumps: dict[str, ServiceLedgerDump]) -> None:
        self.begin(head["first"])
        self._table.restore_start_slots(head["since"])
        self._assigned = head["assigned"]
        numbers: dict[int, int] = {}
        for node, number, reported, lead_slots, known in head["nodes"]:
            self._known[node] = _KnownNode(*known)
            numbers[number] = self._nodes.add(node, reported, lead_slots)
        for name, dump in dumps.items():
            if name not in self._service_ledgers:
                self._open(name)
            self._service_ledgers[name].load(*dump, numbers, assigned=self._assigned)
        self._live = len(self._known)
        self._nodes.warmup_until = 1  # we know who is to come
        self._is_restored = True

    # Looking

    def nodes(self, slot: int) -> int:
        """How many nodes take part, as far as is known in `slot`.

        At the beginning not all of them have been heard of yet: then it is a guess.
        """
        is_cold = self._first is None or slot - self._first < _COLD_START_SLOTS
        return max(COLD_START_NODES if is_cold else 1, self._live)

    def is_live(self, node: str, slot: int) -> bool:
        return node in self._nodes and slot - self._nodes.reported_of(node) < NODE_TIMEOUT_SLOTS

    def live_nodes(self, slot: int) -> list[str]:
        """The nodes that have not missed more reports than may happen."""
        return [node for node in self._known if self.is_live(node, slot)]

    @property
    def assigned(self) -> int:
        """The slot of the last assignment."""
        return self._assigned

    @property
    def has_nodes(self) -> bool:
        return bool(self._known)

    @property
    def services(self) -> list[str]:
        return list(self._services)

    def __repr__(self) -> str:
        return f"Ledger(services={self.services}, nodes={len(self._known)}, cells={self.cells})"

    @property
    def service_ledgers(self) -> Mapping[str, ServiceLedger]:
        """The service ledger of each service, to read."""
        return self._service_ledgers

    def entry(self, service: str, user: str) -> Entry | None:
        """The limits in force for a user: its own entry, or that of everyone."""
        return self._table.entry(service, user)

    @property
    def cells(self) -> int:
        return sum(each.cells for each in self._service_ledgers.values())

    def reported(self, slot: int) -> list[str]:
        """The nodes whose report of a slot is booked."""
        return sorted(self._reported.get(slot, ()))

    def consumption_sum(self, slot: int) -> Amounts:
        """service -> user -> resource -> what all nodes together consumed in a slot."""
        return {name: each.totals_of(slot) for name, each in self._service_ledgers.items()}

    def rejection_sum(self, slot: int) -> Amounts:
        """service -> user -> resource -> how many requests all nodes together refused."""
        return {
            name: each.totals_of(slot, rejected=True)
            for name, each in self._service_ledgers.items()
        }

    def distribution(self) -> dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]:
        """service -> user -> resource -> node -> slot_number, consumption, rejection."""
        return {name: each.distribution() for name, each in self._service_ledgers.items()}

    def quotas(self, slot: int) -> dict[str, Amounts]:
        """node -> service -> user -> resource -> what was given for a slot."""
        result: dict[str, Amounts] = {}
        for name, each in self._service_ledgers.items():
            for node, users in each.quotas_of(slot).items():
                result.setdefault(node, {})[name] = users
        return result

    def level(self, service: str, user: str, resource: str, slot: int) -> float | None:
        """What a bucket holds in a slot. None: no limit, or full and forgotten."""
        service_ledger = self._service_ledgers.get(service)
        return None if service_ledger is None else service_ledger.level(user, resource, slot)

    def available(self, service: str, user: str, resource: str, time: float) -> float | None:
        """What of a bucket may be granted at `time`. None: no limit, or full and forgotten."""
        service_ledger = self._service_ledgers.get(service)
        if service_ledger is None:
            return None
        return service_ledger.available(user, resource, time / self.slot_seconds)

    def outstanding(self, service: str, user: str, resource: str) -> float:
        """What has left a bucket and is not booked: credit, and promises to classic nodes."""
        service_ledger = self._service_ledgers.get(service)
        return 0.0 if service_ledger is None else service_ledger.outstanding(user, resource)

    def recorded(self, service: str, user: str, resource: str) -> float:
        """All that was booked of a bucket."""
        service_ledger = self._service_ledgers.get(service)
        return 0.0 if service_ledger is None else service_ledger.recorded(user, resource)
