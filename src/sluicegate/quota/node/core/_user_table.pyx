# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`UserTable`: the users' counters and shares, in memory that all processes of a host share.

Every process of a service opens one, and calls it before and after each request. A user is one
record of a table in shared memory (`shm._lockfree_table`): a call copies it, decides by the rules in
`_admission.pxd`, and writes the changed copy in its place; when another process was faster, it tries
again. So two processes never let the same unit pass twice, no process ever waits for another, and a
process may be killed at any instruction.

What holds for all users is in the shared header (`_shared_header.pyx`). One of the processes, the
reporter (`reporter.py`), publishes it, writes the leader's quotas into the records
(`_apply_quota.pyx`) and collects the totals (`_scan.pyx`). The others need not know which one it is.

Users beyond `max_users` share overflow records by a hash of their names (`_user_keys.pyx`): less for
them, no more for anyone.

The time of a request is first taken from the coarse clock, which costs a fifth and is some
milliseconds behind. That may admit a request by what is left of the slot before. A refusal, and the
begin of a window, is decided by the precise clock.
"""

from pathlib import Path

cimport cython
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from libc.math cimport INFINITY

from sluicegate._clock cimport monotonic, monotonic_coarse
from sluicegate.shm._lockfree_table cimport BYTES, MAX_CHAIN_LENGTH, MAX_PAYLOAD, size_class_of, record_at
from sluicegate.quota.node.core._costs cimport check_amounts, parse_costs
from sluicegate.quota.node.core._shared_header cimport MAX_SERVICES, read_defaults, read_window, service_number
from sluicegate.quota.node.core._user_keys cimport OVERFLOW_RECORDS, make_user_key, name_in_key, overflow_key
from sluicegate.quota.node.core._admission cimport (
    CELL_WORDS, FALLBACK, FALLBACK_REQUESTS, FREE, FRESH, MAX_CELLS, NEWCOMER, REQUEST_STARTS, REUSED, SAFE,
    USER_WORDS, Costs, ResourceCell, UserRecord, accrue_allowance, admit_many, begin_request, can_float,
    count_arrivals, count_refusals, find_cell, finish_request, has_allowance, has_reservations,
    has_running_requests, init_record, is_empty, is_free, learn_costs, needs_credit, note_least,
    refresh_record, scarcest_short,
)

from sluicegate.clock import SystemClock
from sluicegate.errors import TableFull
from sluicegate._validate import check_positive, check_text, check_whole
from sluicegate.shm.file import path_of, remove
from sluicegate.quota.node.core._user_keys import default_memory_name
from sluicegate.quota.node.core.waiting import throttle_waiting
from sluicegate.quota.stable_hash import hash_fraction
from sluicegate.quota.errors import Throttled

__all__ = ["Ticket", "UserTable"]

cdef enum:  # answers to a request, beside the resource that it is short of
    PASSED = -1
    PENDING = -3

cdef enum:
    REFRESH_WINDOWS = 60

cdef dict STATE_NAMES = {
    FALLBACK: "fallback", FRESH: "fresh", REUSED: "reused", SAFE: "safe", NEWCOMER: "newcomer", FREE: "free",
}

assert sizeof(UserRecord) == 8 * USER_WORDS and sizeof(ResourceCell) == 8 * CELL_WORDS
assert USER_WORDS + MAX_CELLS * CELL_WORDS <= MAX_PAYLOAD


@cython.final
cdef class Ticket:
    """What a request has reserved, for `consume` to release exactly that, once.

    It expires one to two `reservation_seconds` after `throttle`: then there is nothing to release.
    """

    def __repr__(self):
        return f"Ticket(resources={self.costs.count})"

    def __reduce__(self):
        raise TypeError("a Ticket cannot be copied or pickled: it releases its reservation once")


cdef class UserTable:
    """The users of a node on this host, for all of its processes.

    `shared` names the memory (a name in /dev/shm, or a path); by default it follows from `node_id`.
    `fallback` is what each user may have per second of each resource until a central has sent a quota.
    `max_services` is the number of services that have overflow records for users beyond `max_users`.
    The reporter scans the whole table in every slot, so a small table is faster where it suffices.
    """

    def __init__(
        self,
        node_id,
        services=(),
        *,
        shared=None,
        fallback=None,
        slot_seconds=1.0,
        lease=3,
        reservation_seconds=60.0,
        max_users=100_000,
        max_services=MAX_SERVICES,
        clock=None,
    ):
        if isinstance(services, str):
            raise TypeError(f"services must be a list of names, got the str {services!r}")
        self.node_id = check_text("node_id", node_id)
        self.slot_seconds = check_positive("slot_seconds", slot_seconds)
        self.lease = check_whole("lease", lease, 0)
        self.max_users = check_whole("max_users", max_users, 1)
        reservation_seconds = check_positive("reservation_seconds", reservation_seconds)
        self.reservation_windows = max(1, round(reservation_seconds / slot_seconds))
        self.clock = SystemClock() if clock is None else clock
        self._read_clock = None if isinstance(self.clock, SystemClock) else clock.now
        checked = None if fallback is None else check_amounts("fallback", fallback)
        if checked is not None and not 0 < len(checked) <= MAX_CELLS:
            raise ValueError(f"fallback must name 1 to {MAX_CELLS} resources, or be None, got {fallback!r}")
        self.path = path_of(default_memory_name(node_id) if shared is None else shared)
        self._no_memory_until = -INFINITY
        now = self.now()
        wall = getattr(self.clock, "wall", self.clock.now)()
        self.header = SharedHeader(f"{self.path}-head", node_id, self.slot_seconds, now=now, wall=wall)
        self.table = LockFreeTable(
            self.path,
            f"node {node_id} boot {self.header.boot}",
            self.max_users + check_whole("max_services", max_services, 1) * OVERFLOW_RECORDS,
            USER_WORDS,
            CELL_WORDS,
            b"",
            True,
            True,
            0.0,
            0.0,
            usual_items=MAX_CELLS,
        )
        for service in services:
            self.header.add_service(service)
        if checked is None:
            self._fallback.count = 1
            self._fallback.resource[0] = REQUEST_STARTS
            self._fallback.share[0] = FALLBACK_REQUESTS * self.slot_seconds
        else:
            self.header.fill_defaults(
                &self._fallback, {name: rate * self.slot_seconds for name, rate in checked.items()}
            )

    @staticmethod
    def unlink(shared):
        """Remove the memory of that name or path; False when there is none."""
        path = path_of(shared)
        Path(f"{path}.lock").unlink(missing_ok=True)  # see `ReporterLock`
        removed = remove(f"{path}-head")
        return remove(path) or removed

    def close(self):
        """Unmap the memory; it stays for other processes, and for later."""
        self.table.close()
        self.header.close()

    # Time

    def now(self):
        """The host's monotonic clock."""
        return self._time()

    cdef double _time(self) except? -1e300:
        return monotonic() if self._read_clock is None else <double> self._read_clock()

    cdef int _set_coarse_time(self, WindowInfo *window) except -1:
        window.is_coarse = self._read_clock is None
        window.time = monotonic_coarse() if window.is_coarse else <double> self._read_clock()
        return 0

    def window(self, double time):
        """The slot that requests are counted in, which of the host's windows it is, its begin and end.

        And since when no leader is heard; below 0: one is.
        """
        cdef WindowInfo window
        set_time(&window, time)
        read_window(self.header, 0, &window)
        return window.slot, window.number, window.begin, window.end, window.alone_since

    # A request begins, and ends

    def allows(self, service, user, expect=None, *, wait=0.0):
        """Whether a request may begin. If so, its expected cost is reserved until `consume`.

        `wait`: how many seconds at most to wait for an answer of the leader; None: as long as one takes.
        """
        cdef WindowInfo window
        if not (PyFloat_CheckExact(wait) and PyFloat_AS_DOUBLE(wait) == 0.0):
            try:
                throttle_waiting(self, service, user, expect, wait)
            except Throttled:
                return False
            return True
        self._set_coarse_time(&window)
        return self._throttle(&window, service, user, expect, False, False, None) == PASSED

    def throttle(self, service, user, expect=None, *, wait=0.0, ticket=False):
        """As `allows`; raises `Throttled` if not. With `ticket`, returns a `Ticket` to hand to `consume`.

        A request with a ticket must end with it: `consume` without one releases what requests without one reserved.
        """
        cdef WindowInfo window
        cdef int short
        cdef Ticket given = None
        if ticket:
            given = Ticket()
        if not (PyFloat_CheckExact(wait) and PyFloat_AS_DOUBLE(wait) == 0.0):
            throttle_waiting(self, service, user, expect, wait, given)
            return given
        self._set_coarse_time(&window)
        short = self._throttle(&window, service, user, expect, False, False, given)
        if short != PASSED:
            raise self._throttled(&window, service, user, short)
        return given

    def try_throttle(self, service, user, expect=None, *, can_wait=True, is_retry=False, Ticket ticket=None):
        """As `throttle`, for a request that can wait: False if the leader's answer is worth waiting for.

        `is_retry`: it has waited, and is no new request. `ticket` is filled in when the request passes.
        """
        cdef WindowInfo window
        cdef int short
        self._set_coarse_time(&window)
        short = self._throttle(&window, service, user, expect, can_wait, is_retry, ticket)
        if short == PENDING:
            return False
        if short != PASSED:
            raise self._throttled(&window, service, user, short)
        return True

    def consume(self, service, user, amounts, Ticket ticket=None):
        """A request has ended and cost `amounts`, by resource. `ticket` is that of its `throttle`, if it has one."""
        cdef WindowInfo window
        self._set_coarse_time(&window)
        self._consume(&window, service, user, amounts, ticket)

    def throttle_at(self, double time, service, user, expect=None, can_wait=False, is_retry=False, Ticket ticket=None):
        """None: the request may begin; or a `Throttled`. With `can_wait`, False: an answer is to be waited for."""
        cdef WindowInfo window
        set_time(&window, time)
        cdef int short = self._throttle(&window, service, user, expect, can_wait, is_retry, ticket)
        if short == PENDING:
            return False
        return None if short == PASSED else self._throttled(&window, service, user, short)

    def consume_at(self, double time, service, user, amounts, Ticket ticket=None):
        cdef WindowInfo window
        set_time(&window, time)
        self._consume(&window, service, user, amounts, ticket)

    cdef object _throttled(self, WindowInfo *window, object service, object user, int short):
        return Throttled(service, user, self.header.resource_name(short), window.retry_after)

    cdef int _throttle(
        self, WindowInfo *window, object service, object user, object expect, bint can_wait, bint is_retry,
        Ticket ticket,
    ) except -2:
        """The number of the resource that a request is short of, PASSED, or PENDING if it can wait for an answer.

        When there is no memory to count in, no new user can pass.
        """
        cdef Key key
        cdef ChainSnapshot snapshot
        cdef Costs costs
        cdef Costs *expected = NULL
        cdef UserRecord *record = <UserRecord *> snapshot.payload
        cdef ResourceCell *cells = <ResourceCell *> (snapshot.payload + USER_WORDS)
        cdef int short, count, outcome, number = service_number(self.header, service)
        cdef bint asks, waits, is_changed
        key_owner = make_user_key(user, number, &key)
        if expect is not None:
            parse_costs(self.header, "expect", expect, &costs)
            expected = &costs
        while True:
            key_owner = self.find(&key, &snapshot, window, service, key_owner)
            if ticket is not None:
                ticket.costs.count = 0  # of a try before, when another process was faster
            if record.state == FREE:
                if window.number - record.changed_window > REFRESH_WINDOWS:  # or the record would be forgotten as idle
                    record.changed_window = window.number
                    self.put(&key, &snapshot, snapshot.item_count)
                return PASSED
            count = snapshot.item_count
            if has_allowance(record.state):
                self._accrue(record, cells, count, window, service, &key)
            short = scarcest_short(record, cells, count, expected)
            if short >= 0 and window.is_coarse:
                set_time(window, monotonic())
                continue
            if not is_retry:
                count_arrivals(record, 1.0, window)
            if short < 0 or (not (can_wait or is_retry) and can_float(record, cells, count, expected)):
                if short >= 0:
                    record.may_float = 0
                begin_request(record, cells, count, expected, NULL if ticket is None else &ticket.costs)
                asks = needs_credit(record, cells, count, expected, short >= 0, False, window)
                if asks:
                    note_least(record, cells, count, expected, window)
                short = PASSED
            else:
                if not is_retry:
                    learn_costs(cells, count, expected, 1)
                asks = needs_credit(record, cells, count, expected, True, can_wait, window)
                waits = can_wait and self._is_worth_waiting(record, cells, count, expected, window)
                is_changed = note_least(record, cells, count, expected, window)
                if waits:
                    if is_retry and record.has_waiting and not asks and not is_changed:
                        return PENDING  # nothing has changed that others should see
                    short = PENDING
                    record.has_waiting = 1
                else:
                    count_refusals(record, cells, count, expected, 1)
                    window.retry_after = self._retry_after(record, window)
                    short = cells[short].resource
            if asks:
                record.is_asking = 1
                record.asked_at = window.time
            outcome = self.put(&key, &snapshot, count)
            if outcome == FULL:
                window.retry_after = window.slot_seconds
                return REQUEST_STARTS
            if outcome == DONE:
                if asks:
                    self.header.push_ask(number, key.data, key.size)
                return short

    cdef int _accrue(
        self, UserRecord *record, ResourceCell *cells, int count, WindowInfo *window, object service, Key *key
    ) except -1:
        if not accrue_allowance(record, cells, count, window):
            window.user_fraction = hash_fraction(self.node_id, service, name_in_key(key))
            accrue_allowance(record, cells, count, window)
        return 0

    cdef bint _is_worth_waiting(
        self, UserRecord *record, ResourceCell *cells, int count, Costs *expect, WindowInfo *window
    ) noexcept:
        """Whether an answer of the leader may come in time: it is heard, and has not said that there is nothing."""
        if window.epoch < 0 or window.alone_since >= 0.0:
            return False
        return not is_empty(record, cells, count, expect, True, window)

    cdef double _retry_after(self, UserRecord *record, WindowInfo *window) noexcept:
        """Seconds until more may be there: as the leader said, or the next slot."""
        if record.empty_until > window.time:
            return record.empty_until - window.time
        return max(window.end - window.time, 0.0)

    cdef int _consume(self, WindowInfo *window, object service, object user, object amounts, Ticket ticket) except -1:
        cdef Key key
        cdef ChainSnapshot snapshot
        cdef Costs costs
        cdef UserRecord *record = <UserRecord *> snapshot.payload
        cdef ResourceCell *cells = <ResourceCell *> (snapshot.payload + USER_WORDS)
        cdef int i, count, outcome, number = service_number(self.header, service)
        key_owner = make_user_key(user, number, &key)
        parse_costs(self.header, "amounts", amounts, &costs)
        while True:
            key_owner = self.find(&key, &snapshot, window, service, key_owner)
            if record.state == FREE and not (
                has_running_requests(record) if ticket is None else ticket.costs.count
            ):
                return 0
            count = snapshot.item_count
            finish_request(record, cells, &count, &costs, NULL if ticket is None else &ticket.costs)
            outcome = self.put(&key, &snapshot, count)
            if outcome == FULL:
                raise TableFull(f"{self!r} is full: {amounts!r} of user {user!r} was not counted")
            if outcome == DONE:
                break
        if ticket is not None:
            ticket.costs.count = 0
        for i in range(costs.count if count == MAX_CELLS else 0):
            if find_cell(cells, count, costs.resource[i]) == NULL:
                raise ValueError(
                    f"too many resources: a user has at most {MAX_CELLS} on a node, and user {user!r} has that many; "
                    f"{self.header.resource_name(costs.resource[i])!r} of {amounts!r} was not counted"
                )
        return 0

    def offer_at(self, double time, service, user, amounts, count, can_wait=False, is_retry=False):
        """How many of `count` requests pass that come and end one after the other at `time`.

        As a loop of throttle(expect=amounts) and consume(amounts), but in a few steps whatever
        the count, unless requests of the user are running. With `can_wait`, below 0 if the others are to
        wait for the leader's answer: ~n, if n have passed.
        """
        cdef Key key
        cdef ChainSnapshot snapshot
        cdef WindowInfo window
        cdef Costs costs
        cdef UserRecord *record = <UserRecord *> snapshot.payload
        cdef ResourceCell *cells = <ResourceCell *> (snapshot.payload + USER_WORDS)
        cdef int cell_count, outcome, number = service_number(self.header, service)
        cdef long long admitted
        cdef uint32_t most
        cdef bint asks, waits
        most = count if type(count) is int and 0 <= count < 1 << 31 else check_whole("count", count, 0)
        set_time(&window, time)
        key_owner = make_user_key(user, number, &key)
        parse_costs(self.header, "amounts", amounts, &costs)
        while most:
            key_owner = self.find(&key, &snapshot, &window, service, key_owner)
            if record.state == FREE:
                return most
            cell_count = snapshot.item_count
            admitted = 0
            if has_allowance(record.state):
                self._accrue(record, cells, cell_count, &window, service, &key)
            if not is_retry:
                count_arrivals(record, most, &window)
            waits = False
            if not has_running_requests(record):
                admitted = admit_many(record, cells, &cell_count, &costs, most)
            while admitted < most:
                if has_allowance(record.state):
                    self._accrue(record, cells, cell_count, &window, service, &key)
                if scarcest_short(record, cells, cell_count, &costs) >= 0:
                    if can_wait or is_retry or not can_float(record, cells, cell_count, &costs):
                        break
                    record.may_float = 0
                begin_request(record, cells, cell_count, &costs, NULL)
                finish_request(record, cells, &cell_count, &costs, NULL)
                admitted += 1
            if admitted < most:
                learn_costs(cells, cell_count, &costs, <uint32_t> (most - admitted))
                waits = can_wait and self._is_worth_waiting(record, cells, cell_count, &costs, &window)
                if waits:
                    record.has_waiting = 1
                else:
                    count_refusals(record, cells, cell_count, &costs, most - admitted)
            asks = needs_credit(record, cells, cell_count, &costs, admitted < most, can_wait, &window)
            if asks or admitted < most:
                note_least(record, cells, cell_count, &costs, &window)
            if asks:
                record.is_asking = 1
                record.asked_at = window.time
            outcome = self.put(&key, &snapshot, cell_count)
            if outcome == FULL:
                return 0
            if outcome == DONE:
                if asks:
                    self.header.push_ask(number, key.data, key.size)
                return ~admitted if waits else admitted
        return 0

    def state(self, double time, service, user):
        """What a user has in this slot: fresh, reused, safe, newcomer, free or fallback."""
        cdef Key key
        cdef ChainSnapshot snapshot
        cdef WindowInfo window
        set_time(&window, time)
        key_owner = make_user_key(user, service_number(self.header, service), &key)
        key_owner = self.find(&key, &snapshot, &window, service, key_owner)
        return state_name((<UserRecord *> snapshot.payload).state)

    # A user's record

    cdef object find(self, Key *key, ChainSnapshot *snapshot, WindowInfo *window, object service, object key_owner):
        """Copy a user's record, or a new one, brought to this window. The returned object owns the key's bytes."""
        cdef UserRecord *record = <UserRecord *> snapshot.payload
        cdef ResourceCell *cells = <ResourceCell *> (snapshot.payload + USER_WORDS)
        window.user_fraction = -1.0
        while True:
            read_window(self.header, <int> key.namespace, window)
            self.table.find(key, snapshot)
            if snapshot.found >= 0 and record.generation == window.generation and record.window >= window.number:
                if record.window == window.number or not window.is_coarse:
                    return key_owner
                set_time(window, monotonic())  # the coarse clock is still in the window before
                continue
            if (
                snapshot.found >= 0 and is_free(record, window)
                and not has_reservations(record, cells, snapshot.item_count)
            ):
                record.state = FREE  # windows make no difference to a free user
                return key_owner
            if window.is_coarse:
                set_time(window, monotonic())
            read_defaults(self.header, <int> key.namespace, window)
            if not window.has_defaults:
                window.defaults = self._fallback
            window.lease = self.lease
            window.reservation_windows = self.reservation_windows
            window.period = <uint32_t> (
                <long long> (window.time / (self.slot_seconds * self.reservation_windows)) & 0xFFFFFFFF
            )
            if snapshot.found < 0:
                if key.kind != BYTES and self._is_full(window.time, snapshot):
                    key_owner = overflow_key(key)
                    continue
                snapshot.item_count = 0
                init_record(record, window)
            refresh_record(record, cells, &snapshot.item_count, window)
            return key_owner

    cdef bint _is_full(self, double time, ChainSnapshot *snapshot):
        """Whether there is no room for one more user."""
        return (
            self.table.counters.count.word >= self.max_users
            or snapshot.length >= MAX_CHAIN_LENGTH
            or time < self._no_memory_until
        )

    cdef int put(self, Key *key, ChainSnapshot *snapshot, int count) except -1:
        """Write a changed copy in the place of the record.

        AGAIN: another process was faster, or there is no room for one more user, which then shares a record.
        FULL: there is no memory for it at all.
        """
        cdef int size_class
        if snapshot.found >= 0 and count == record_at(self.table, snapshot.blocks[snapshot.found]).item_count:
            return self.table.change(snapshot, <uint32_t> 1 << snapshot.found, key, count, snapshot.payload, -1)
        size_class = size_class_of(self.table.header, key.size, count)
        if snapshot.found >= 0:
            size_class = self.table.ensure_free(size_class)
            if size_class < 0:
                return FULL
            return self.table.change(snapshot, <uint32_t> 1 << snapshot.found, key, count, snapshot.payload, size_class)
        size_class = self.table.admit(size_class) if snapshot.length < MAX_CHAIN_LENGTH else -1
        if size_class < 0:
            if key.kind == BYTES:
                return FULL
            self._no_memory_until = self._time() + 1.0  # until then new users share the overflow records
            return AGAIN
        if self.table.change(snapshot, 0, key, count, snapshot.payload, size_class):
            return DONE
        self.table.cancel_admit()
        return AGAIN

    def __len__(self):
        """Users that have a record."""
        self.table.check()
        return self.table.counters.count.word

    def __repr__(self):
        if self.table.file is None:
            return f"UserTable({self.node_id!r}, closed)"
        return f"UserTable({self.node_id!r}, {str(self.path)!r}, users={len(self)})"


cdef str state_name(int state):
    return STATE_NAMES[state]
