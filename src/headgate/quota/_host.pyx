# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`Host`: the end node's counters and shares in memory that all processes of a host share.

Every process of a service opens one, and asks it before and after each request. A user is one
record of a table in shared memory (`limits.shared._chains`): a call copies it, decides by the rules
in `_user.pxd`, and puts the changed copy in its place; when another process was faster, it looks
again. So two processes never let the same unit pass twice, nobody ever waits for anybody, and a
process may be killed at any instruction.

What holds for everybody stands in the head file (`_head.pyx`). One of the processes, the reporter
(`reporter.py`), writes it, puts the shares of the leader's quotas into the records (`put_shares`),
and collects the totals (`collect`). The other processes need not know who it is.

Users beyond `max_users` share some records by a hash of their names: less for them, no more for
anyone. A name of more than LONGEST_USER bytes is cut and ends with its MD5.
"""

import hashlib
import re
from pathlib import Path

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from libc.math cimport INFINITY
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from headgate._time cimport monotonic, monotonic_coarse
from headgate.limits.shared._chains cimport (
    BYTES, CLASSES, Chains, Key, LONGEST_CHAIN, Look, PAYLOAD, Record, TEXT, UNIT, class_of, key_in, payload_in,
)
from headgate.quota._head cimport LONGEST_USER, SERVICES, Head
from headgate.quota._report_book cimport Account, ReportBook, has_settled
from headgate.quota._user cimport (
    CELL_WORDS, FALLBACK, FALLBACK_REQUESTS, FREE, FRESH, MOST_CELLS, NEWCOMER, REUSED, SAFE, STARTS,
    USER_WORDS, Cell, Costs, Now, Terms, User, add_cell, admit_many, blank, cell_of, charge, first_short,
    is_credit, is_holding, is_spent, look_up, refuse, settle, state_of,
)

from headgate.clock import SystemClock
from headgate.errors import TableFull
from headgate.limits.checks import positive, whole
from headgate.limits.shared.file import path_of, remove
from headgate.quota.fraction import fraction
from headgate.quota.throttled import Throttled

__all__ = ["Host"]

cdef extern from "Python.h":
    double PyLong_AsDouble(object number) except? -1.0
    bint PyUnicode_CheckExact(object text) noexcept
    bint PyUnicode_IS_COMPACT_ASCII(object text) noexcept
    const char* PyUnicode_DATA(object text) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object text) noexcept

cdef enum:
    SPARES = 256              # records that users beyond the cap share, for each service
    PASSED = -1
    AGAIN = 0                 # outcomes of putting a record back
    DONE = 1
    FULL = 2
    USERS_AT_ONCE = 256       # that a walk tells before it lets other threads go on
    FRESHEN_WINDOWS = 60
    AHEAD = 8                 # slots; a quota for a later one is not kept

cdef dict STATES = {
    FALLBACK: "fallback", FRESH: "fresh", REUSED: "reused", SAFE: "safe", NEWCOMER: "newcomer", FREE: "free",
}

assert sizeof(User) == 8 * USER_WORDS and sizeof(Cell) == 8 * CELL_WORDS
assert USER_WORDS + MOST_CELLS * CELL_WORDS <= PAYLOAD


@cython.final
cdef class Host:
    """The users of a node on this host, for all of its processes.

    `shared` names the memory (a name in /dev/shm, or a path); by default it follows from `node_id`.
    `fallback` is what each user may have per second of each resource while nobody has told.
    """

    cdef Chains _chains
    cdef readonly Head head
    cdef readonly str node_id
    cdef readonly object path
    cdef readonly double slot_seconds
    cdef readonly uint64_t max_users
    cdef readonly int lease
    cdef readonly object clock
    cdef uint32_t _reservation_windows
    cdef Terms _fallback
    cdef double _no_memory_until
    cdef object _read_clock
    cdef object __weakref__

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
        clock=None,
    ):
        if not isinstance(node_id, str):
            raise TypeError(f"node_id must be a str, got {node_id!r}")
        if not node_id:
            raise ValueError(f"node_id must not be empty, got {node_id!r}")
        if isinstance(services, str):
            raise TypeError(f"services must be a list of names, got {services!r}")
        self.node_id = node_id
        self.slot_seconds = positive("slot_seconds", slot_seconds)
        self.lease = whole("lease", lease, 0)
        self.max_users = whole("max_users", max_users, 1)
        self._reservation_windows = max(1, round(positive("reservation_seconds", reservation_seconds) / slot_seconds))
        self.clock = SystemClock() if clock is None else clock
        self._read_clock = None if isinstance(self.clock, SystemClock) else clock.now
        checked = None if fallback is None else amounts_of("fallback", fallback)
        if checked is not None and not 0 < len(checked) <= MOST_CELLS:
            raise ValueError(f"fallback must name 1 to {MOST_CELLS} resources, or be None, got {fallback!r}")
        self.path = path_of(default_name(node_id) if shared is None else shared)
        self._no_memory_until = -INFINITY
        now = self.now()
        wall = getattr(self.clock, "wall", self.clock.now)()
        self.head = Head(f"{self.path}-head", node_id, self.slot_seconds, now=now, wall=wall)
        self._chains = Chains(
            self.path,
            f"node {node_id} boot {self.head.boot}",
            self.max_users + SERVICES * SPARES,
            USER_WORDS,
            CELL_WORDS,
            b"",
            True,
            True,
            0.0,
            0.0,
            usual_limits=MOST_CELLS,
        )
        for service in services:
            self.head.add_service(service)
        if checked is None:
            self._fallback.count = 1
            self._fallback.resource[0] = STARTS
            self._fallback.share[0] = FALLBACK_REQUESTS * self.slot_seconds
        else:
            self.head.fill_terms(
                &self._fallback, {name: rate * self.slot_seconds for name, rate in checked.items()}
            )

    @staticmethod
    def unlink(shared):
        """Remove the memory of that name or path; False when there is none."""
        path = path_of(shared)
        Path(f"{path}.lock").unlink(missing_ok=True)  # of those who report
        removed = remove(f"{path}-head")
        return remove(path) or removed

    def close(self):
        """Let go of the memory; it stays for others, and for later."""
        self._chains.close()
        self.head.close()

    def now(self):
        """The host's monotonic clock."""
        return self._time()

    cdef double _time(self) except? -1e300:
        return monotonic() if self._read_clock is None else <double> self._read_clock()

    # A request begins, and ends

    def allows(self, service, user, expect=None):
        """Whether a request may begin. If so, its expected cost is reserved until `consume`."""
        return self._throttle(self._time(), service, user, expect) == PASSED

    def throttle(self, service, user, expect=None):
        """As `allows`; raises `Throttled` if not."""
        refusal = self.throttle_at(self._time(), service, user, expect)
        if refusal is not None:
            raise refusal

    def consume(self, service, user, amounts):
        """A request has ended and cost `amounts`, by resource."""
        # In which window it counts is all that is asked of the time here.
        cdef double time = monotonic_coarse() if self._read_clock is None else self._time()
        self._consume(time, service, user, amounts)

    def throttle_at(self, double time, service, user, expect=None):
        """A `Throttled`, or None: the request may begin."""
        cdef Now now
        cdef int short = self._throttle(time, service, user, expect)
        if short == PASSED:
            return None
        self.head.read(time, self.head.service(service), &now, False)
        return Throttled(service, user, self.head.resource_name(short), max(now.end - time, 0.0))

    cdef int _throttle(self, double time, object service, object user, object expect) except -2:
        """The number of the resource that a request is short of, or PASSED.

        When there is no memory to count in, nobody new can pass.
        """
        cdef Key key
        cdef Look look
        cdef Now now
        cdef Costs costs
        cdef Costs *expected = NULL
        cdef User *record = <User *> look.payload
        cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
        cdef int short, count, outcome, number = self.head.service(service)
        cdef bint asks
        kept = key_of_user(user, number, &key)
        if expect is not None:
            self._read_costs("expect", expect, &costs)
            expected = &costs
        while True:
            kept = self._find(time, &key, &look, &now, service, kept)
            if record.state == FREE:
                if now.window - record.changed > FRESHEN_WINDOWS:  # he is still here: not to be forgotten
                    record.changed = now.window
                    self._put(&key, &look, look.limits)
                return PASSED
            count = look.limits
            asks = is_credit(record.state) and record.state != SAFE
            short = first_short(record, cells, count, expected, &now)
            if short < 0:
                charge(record, cells, count, expected)
            else:
                refuse(record, cells, count, expected, 1, &now)
                # What ran out may be the reserve that idle users have; the leader may know of more.
                asks = asks or (record.state == FRESH and record.was_idle and not record.was_refused)
                record.was_refused = 1
                short = cells[short].resource
            asks = asks and record.asked != now.window
            if asks:
                record.asked = now.window
            outcome = self._put(&key, &look, count)
            if outcome == FULL:
                return STARTS
            if outcome == DONE:
                if asks:
                    self.head.ask(number, key.data, key.size)
                return short

    def consume_at(self, double time, service, user, amounts):
        self._consume(time, service, user, amounts)

    cdef int _consume(self, double time, object service, object user, object amounts) except -1:
        cdef Key key
        cdef Look look
        cdef Now now
        cdef Costs costs
        cdef User *record = <User *> look.payload
        cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
        cdef int i, count, outcome, number = self.head.service(service)
        kept = key_of_user(user, number, &key)
        self._read_costs("amounts", amounts, &costs)
        while True:
            kept = self._find(time, &key, &look, &now, service, kept)
            if record.state == FREE and not is_holding(record):
                return 0
            count = look.limits
            settle(record, cells, &count, &costs)
            outcome = self._put(&key, &look, count)
            if outcome == FULL:
                raise TableFull(f"{self!r} has no memory left for {user!r}: {amounts!r} was not counted")
            if outcome == DONE:
                break
        for i in range(costs.count if count == MOST_CELLS else 0):
            if cell_of(cells, count, costs.resource[i]) == NULL:
                raise ValueError(
                    f"a user has at most {MOST_CELLS} resources on a node, and {user!r} has others: "
                    f"{self.head.resource_name(costs.resource[i])!r} was not counted, of {amounts!r}"
                )
        return 0

    def offer_at(self, double time, service, user, amounts, count):
        """How many of `count` requests pass that come and end one after the other at `time`.

        As a loop of throttle(expect=amounts) and consume(amounts), but in a few steps whatever
        the count, unless requests of the user are running.
        """
        cdef Key key
        cdef Look look
        cdef Now now
        cdef Costs costs
        cdef User *record = <User *> look.payload
        cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
        cdef int cell_count, outcome, number = self.head.service(service)
        cdef uint32_t most = whole("count", count, 0), admitted
        cdef bint asks
        kept = key_of_user(user, number, &key)
        self._read_costs("amounts", amounts, &costs)
        while most:
            kept = self._find(time, &key, &look, &now, service, kept)
            if record.state == FREE:
                return most
            cell_count = look.limits
            admitted = 0
            asks = is_credit(record.state) and record.state != SAFE
            if not is_holding(record):
                admitted = admit_many(record, cells, &cell_count, &costs, most, &now)
            while admitted < most:
                if first_short(record, cells, cell_count, &costs, &now) >= 0:
                    refuse(record, cells, cell_count, &costs, most - admitted, &now)
                    asks = asks or (record.state == FRESH and record.was_idle and not record.was_refused)
                    record.was_refused = 1
                    break
                charge(record, cells, cell_count, &costs)
                settle(record, cells, &cell_count, &costs)
                admitted += 1
            asks = asks and record.asked != now.window
            if asks:
                record.asked = now.window
            outcome = self._put(&key, &look, cell_count)
            if outcome == FULL:
                return 0
            if outcome == DONE:
                if asks:
                    self.head.ask(number, key.data, key.size)
                return admitted
        return 0

    cdef int _read_costs(self, str what, object amounts, Costs *costs) except -1:
        """Names and amounts of a caller, before anything is changed by them."""
        cdef double amount
        cdef Py_ssize_t place = 0
        cdef PyObject *resource
        cdef PyObject *given
        costs.count = 0
        if not PyDict_CheckExact(amounts):
            amounts = amounts_of(what, amounts)
        if PyDict_Size(amounts) > 64:
            raise ValueError(f"{what} must have at most 64 resources, got {len(amounts)}")
        while PyDict_Next(amounts, &place, &resource, &given):
            if PyFloat_CheckExact(<object> given):
                amount = PyFloat_AS_DOUBLE(<object> given)
            elif PyLong_CheckExact(<object> given):
                amount = of_whole(<object> given)
            else:
                amounts_of(what, amounts)  # tells what is wrong with it
                amount = float(<object> given)
            if not 0.0 <= amount < INFINITY:
                raise bad_amount(what, <object> given, <object> resource)
            costs.resource[costs.count] = <uint8_t> self.head.resource(<object> resource)
            costs.amount[costs.count] = amount
            costs.count += 1
        return 0

    # A user's record

    cdef object _find(self, double time, Key *key, Look *look, Now *now, object service, object kept):
        """Copy a user's record, or a blank one, brought to this window. What is returned holds the key."""
        cdef User *record = <User *> look.payload
        cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
        now.start = -1.0
        while True:
            self.head.read(time, <int> key.generation, now, False)
            self._chains.find(key, look)
            if look.found >= 0 and record.generation == now.generation and record.window >= now.window:
                return kept
            if not self.head.read(time, <int> key.generation, now, True):
                now.terms = self._fallback
            if look.found < 0:
                if key.kind != BYTES and self._is_full(time, look):
                    kept = self._spare(key)
                    continue
                look.limits = 0
                blank(record, now)
            now.lease = self.lease
            now.reservation_windows = self._reservation_windows
            if look_up(record, cells, &look.limits, now):
                return kept
            now.start = fraction(self.node_id, service, name_of(key))

    cdef bint _is_full(self, double time, Look *look):
        """Whether there is no room for one more user."""
        return (
            self._chains.counters.count.word >= self.max_users
            or look.length >= LONGEST_CHAIN
            or time < self._no_memory_until
        )

    cdef object _spare(self, Key *key):
        """The key of a record that those share who came too late. No user has it."""
        kept = f"~{int(fraction(name_of(key)) * SPARES)}".encode()
        key.data = PyBytes_AS_STRING(kept)
        key.size = <uint32_t> PyBytes_GET_SIZE(kept)
        key.kind = BYTES
        return kept

    cdef int _put(self, Key *key, Look *look, int count) except -1:
        """Put a changed copy in the place of the record.

        AGAIN: another was faster, or there is no room for one more user, who shares a record then.
        FULL: there is no memory for it at all.
        """
        cdef int size_class
        if look.found >= 0 and count == self._chains.record(look.units[look.found]).limits:
            return self._chains.change(look, <uint32_t> 1 << look.found, key, count, look.payload, -1)
        size_class = class_of(self._chains.header, key.size, count)
        if look.found >= 0:
            size_class = self._chains.room_for(size_class)
            if size_class < 0:
                return FULL
            return self._chains.change(look, <uint32_t> 1 << look.found, key, count, look.payload, size_class)
        size_class = self._chains.admit(size_class) if look.length < LONGEST_CHAIN else -1
        if size_class < 0:
            if key.kind == BYTES:
                return FULL
            self._no_memory_until = self._time() + 1.0  # he is one of many, until there is some again
            return AGAIN
        if self._chains.change(look, 0, key, count, look.payload, size_class):
            return DONE
        self._chains.dismiss()
        return AGAIN

    # For the reporter

    def put_shares(self, double time, service, users, *, long long slot, version):
        """Put what a Quota for `slot` gives to the users of a service into their records.

        A user without shares is free as long as the limits have this version. None instead of
        shares takes away what was said of the slot.
        """
        cdef Key key
        if not self.head.has_service(service):
            return  # nobody here has a user of it
        number = self.head.service(service)
        for user, shares in users.items():
            kept = key_of_user(user, number, &key)
            self._put_shares(time, service, &key, kept, shares, slot, version)
            if is_name_of_spare(user):  # a user may be called so, and those who came too late are
                key.kind = BYTES
                if self._has(&key):
                    self._put_shares(time, service, &key, kept, shares, slot, version)

    cdef bint _has(self, Key *key) except -1:
        cdef Look look
        self._chains.find(key, &look)
        return look.found >= 0

    cdef int _put_shares(
        self, double time, object service, Key *key, object kept, object shares, long long slot, object version
    ) except -1:
        cdef Look look
        cdef Now now
        cdef User *record = <User *> look.payload
        cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
        cdef Cell *cell
        cdef int i, place, count, number
        while True:
            kept = self._find(time, key, &look, &now, service, kept)
            if key.kind == BYTES and look.found < 0:
                return 0  # there is no room for him, and he has not come
            if look.found < 0:  # he is no newcomer
                look.limits = 0
                blank(record, &now)
            count = look.limits
            if shares is None:
                for place in range(2):
                    if record.quota_slot[place] == slot:
                        record.quota_slot[place] = -1
            elif not shares:
                # Users who are free leave room for those who have a limit.
                if key.kind == BYTES or (look.found < 0 and len(self) > <Py_ssize_t> self.max_users // 2):
                    return 0
                record.free_version = version
            else:
                record.free_version = 0
                place = place_for(record, slot, now.slot)
                record.quota_slot[place] = slot
                for i in range(count):
                    cells[i].amount[place] = -1.0
                    cells[i].is_limited = 0
                record.lacks_cell = 0
                for resource, share in shares.items():
                    number = self.head.resource_or_none(resource)
                    cell = add_cell(cells, &count, number) if number >= 0 else NULL
                    if cell == NULL:
                        record.lacks_cell = 1
                    else:
                        cell.amount[place] = <float> share[0]
                        cell.safe = <float> share[1]
            record.generation = now.generation - 1  # to be looked up anew
            if self._put(key, &look, count) != AGAIN:
                return 0  # or he is one of those who share

    def forget(self, double time, service, user, uint32_t since):
        """Forget a user without a change since a window, if nothing is forgiven by it. Whether he is gone."""
        cdef Key key
        cdef Look look
        cdef Now now
        cdef User *record = <User *> look.payload
        cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
        cdef int number = self.head.service(service)
        kept = key_of_user(user, number, &key)
        while True:
            self._chains.find(&key, &look)
            if look.found < 0:
                return True
            if record.changed >= since:
                return False
            kept = self._find(time, &key, &look, &now, service, kept)
            if look.found < 0:
                return True
            if record.changed >= since or is_spent(record, cells, look.limits, &now):
                return False
            if self._chains.change(&look, <uint32_t> 1 << look.found, NULL, 0, NULL, -1):
                return True

    def collect(self, ReportBook book not None, uint32_t window, uint32_t since):
        """Bring the accounts of a book to what the records held when `window` began, of all users
        whose records changed in window `since` or later.

        Nobody is stopped. It is an iterator, so that other threads can go on between any two parts.
        """
        cdef uint64_t bucket = 0
        self._chains.check()
        while bucket < self._chains.header.buckets:
            bucket = self._collect(bucket, book, window, since)
            yield

    cdef uint64_t _collect(self, uint64_t bucket, ReportBook book, uint32_t window, uint32_t since) except? 0:
        """Go on from a bucket; where to go on next."""
        cdef Look look
        cdef Record *record
        cdef char[LONGEST_CHAIN][1 << (5 + CLASSES)] copies
        cdef bint[LONGEST_CHAIN] is_told
        cdef uint64_t end = self._chains.header.buckets
        cdef int i, told = 0
        while told < USERS_AT_ONCE:
            bucket = self._chains.next_used(bucket, end)
            if bucket == end:
                break
            self._chains.see(bucket, &look)
            for i in range(look.length):
                record = self._chains.record(look.units[i])
                # One who was looked at at the very end of a window may be noted late.
                is_told[i] = (
                    (record.kind == TEXT or record.kind == BYTES)
                    and record.limits <= MOST_CELLS
                    and (<User *> payload_in(record)).changed + 2 >= since
                )
                if is_told[i]:
                    memcpy(copies[i], record, <size_t> UNIT << min(<int> record.size_class - 1, CLASSES - 1))
            if not self._chains.is_current(&look):
                continue
            for i in range(look.length):
                if is_told[i]:
                    record = <Record *> copies[i]
                    book.enter(
                        record.generation,
                        PyBytes_FromStringAndSize(key_in(record), record.key_size),
                        <User *> payload_in(record),
                        <Cell *> (payload_in(record) + USER_WORDS),
                        record.limits,
                        window,
                        self._reservation_windows,
                    )
                    told += 1
            bucket += 1
        return bucket

    def put_settled(self, ReportBook book not None):
        """Note in the records what a leader has acknowledged, for a reporter that comes later."""
        cdef Account account
        for account in list(book.unsettled):
            if has_settled(account, book.settled):
                self._put_settled(account)
            if account.changed <= book.settled:
                del book.unsettled[account]

    cdef int _put_settled(self, Account account) except -1:
        cdef Key key
        cdef Look look
        cdef Cell *cell
        cdef int i
        key.data = PyBytes_AS_STRING(account.key)
        key.size = <uint32_t> PyBytes_GET_SIZE(account.key)
        key.kind = TEXT
        key.generation = account.service_number
        while True:
            self._chains.find(&key, &look)
            if look.found < 0:
                return 0
            for i in range(account.count):
                cell = cell_of(<Cell *> (look.payload + USER_WORDS), look.limits, account.totals[i].resource)
                if cell != NULL:
                    cell.settled = min(account.totals[i].settled, cell.consumed)
            if self._put(&key, &look, look.limits) != AGAIN:
                break
        for i in range(account.count):
            account.totals[i].noted = account.totals[i].settled
        return 0

    def resource_name(self, int number):
        return self.head.resource_name(number)

    # Looking

    def state(self, double time, service, user):
        """What a user has in this slot: fresh, reused, safe, newcomer, free or fallback."""
        cdef Key key
        cdef Look look
        cdef Now now
        kept = key_of_user(user, self.head.service(service), &key)
        kept = self._find(time, &key, &look, &now, service, kept)
        return STATES[(<User *> look.payload).state]

    def states(self, double time):
        """How many users are in each state, by service."""
        cdef Look look
        cdef Now now
        cdef User user
        cdef int i
        cdef Record *record
        cdef uint64_t bucket = 0, end
        self._chains.check()
        end = self._chains.header.buckets
        found = {}
        while True:
            bucket = self._chains.next_used(bucket, end)
            if bucket == end:
                return found
            self._chains.see(bucket, &look)
            for i in range(look.length):
                record = self._chains.record(look.units[i])
                self.head.read(time, <int> record.generation, &now, False)
                now.lease = self.lease
                user = (<User *> payload_in(record))[0]
                counts = found.setdefault(self.head.service_name(<int> record.generation), {})
                name = STATES[state_of(&user, &now)]
                counts[name] = counts.get(name, 0) + 1
            bucket += 1

    def window(self, double time):
        """The slot that requests are counted in, which of the host's windows it is, its begin and end."""
        cdef Now now
        self.head.read(time, 0, &now, False)
        return now.slot, now.window, now.begin, now.end

    @property
    def reservation_windows(self):
        """After so many windows a reservation that nobody settled is given back."""
        return self._reservation_windows

    @property
    def has_asks(self):
        """Whether some process has met somebody whom the leader should know of."""
        return self.head.has_asks

    def __len__(self):
        """Users that have a record."""
        self._chains.check()
        return self._chains.counters.count.word

    def __repr__(self):
        if self._chains.file is None:
            return f"Host({self.node_id!r}, closed)"
        return f"Host({self.node_id!r}, {str(self.path)!r}, users={len(self)})"


cdef int place_for(User *record, long long slot, long long now) noexcept:
    """Which of the two quotas makes room for one for `slot`: not the one that holds now."""
    cdef int i
    for i in range(2):
        if record.quota_slot[i] == slot:
            return i
    for i in range(2):
        if record.quota_slot[i] > now + AHEAD:
            return i
    return 0 if record.quota_slot[0] <= record.quota_slot[1] else 1


cdef object key_of_user(object user, uint64_t service, Key *key):
    """Make the key of a user. What is returned holds the bytes: keep it as long as the key."""
    cdef Py_ssize_t size
    key.generation = service
    key.kind = TEXT
    if PyUnicode_CheckExact(user) and PyUnicode_IS_COMPACT_ASCII(user):
        size = PyUnicode_GET_LENGTH(user)
        if 0 < size <= LONGEST_USER:
            key.data = PyUnicode_DATA(user)
            key.size = <uint32_t> size
            return user
    if not isinstance(user, str):
        raise TypeError(f"user must be a str, got {user!r}")
    if not user:
        raise ValueError(f"user must not be empty, got {user!r}")
    try:
        kept = user.encode()
    except UnicodeEncodeError:
        # No frame could carry it, and the reports of all others would wait behind it.
        raise ValueError(f"user must be text that has UTF-8, got {user!r}") from None
    if len(kept) > LONGEST_USER:
        digest = hashlib.md5(kept, usedforsecurity=False).hexdigest()
        start = kept[: LONGEST_USER - 33].decode("utf-8", "ignore")
        kept = f"{start}~{digest}".encode()
    key.data = PyBytes_AS_STRING(kept)
    key.size = <uint32_t> PyBytes_GET_SIZE(kept)
    return kept


cdef str name_of(Key *key):
    return key.data[: key.size].decode("utf-8", "surrogatepass")


cdef bint is_name_of_spare(str user):
    return len(user) <= 4 and user[0] == "~" and user[1:].isdecimal()


cdef dict amounts_of(str what, object amounts):
    """A mapping of names and amounts as a dict, checked as far as it can be without a table."""
    try:
        checked = dict(amounts)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be a dict of amounts by resource, got {amounts!r}") from None
    for resource, amount in checked.items():
        if not isinstance(resource, str):
            raise TypeError(f"a resource of {what} must be a str, got {resource!r}")
        if not resource:
            raise ValueError(f"a resource of {what} must not be empty, got {resource!r}")
        if not isinstance(amount, int | float) or not 0.0 <= amount < INFINITY:
            raise bad_amount(what, amount, resource)
    return checked


cdef double of_whole(object number):
    """An int as a float; infinite when it is too large for one."""
    try:
        return PyLong_AsDouble(number)
    except OverflowError:
        return INFINITY


cdef object bad_amount(str what, object amount, object resource):
    return ValueError(f"{what} must be finite amounts from 0 up, got {amount!r} for {resource!r}")


def default_name(node_id):
    """A name for the memory of a node."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", node_id)[:60]
    if plain != node_id:
        encoded = node_id.encode("utf-8", "surrogatepass")
        plain += f"-{hashlib.md5(encoded, usedforsecurity=False).hexdigest()[:8]}"
    return f"node-{plain}"
