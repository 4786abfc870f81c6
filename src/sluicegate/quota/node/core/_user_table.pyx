# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`Host`: the end node's counters and shares in memory that all processes of a host share.

Every process of a service opens one, and asks it before and after each request. A user is one
record of a table in shared memory (`limits.shared._chains`): a call copies it, decides by the rules
in `_admission.pxd`, and puts the changed copy in its place; when another process was faster, it looks
again. So two processes never let the same unit pass twice, nobody ever waits for anybody, and a
process may be killed at any instruction.

What holds for everybody stands in the head file (`_shared_header.pyx`). One of the processes, the reporter
(`reporter.py`), writes it, puts the leader's quotas into the records (`_apply_quota.pyx`) and collects
the totals (`_scan.pyx`). The other processes need not know who it is.

Users beyond `max_users` share some records by a hash of their names (`_user_keys.pyx`): less for them,
no more for anyone.

The time of a request is first taken from the coarse clock, which costs a fifth and is some
milliseconds behind. That may let in by what is left of the slot before. What is refused, and what
begins a window, is decided by the precise one.
"""

from pathlib import Path

from libc.math cimport INFINITY

from sluicegate._clock cimport monotonic, monotonic_coarse
from sluicegate.shm._lockfree_table cimport BYTES, LONGEST_CHAIN, PAYLOAD, class_of, record_at
from sluicegate.quota.node.core._costs cimport amounts_of, read_costs
from sluicegate.quota.node.core._shared_header cimport SERVICES, read_terms, read_window, service_number
from sluicegate.quota.node.core._user_keys cimport SPARES, key_of_user, name_of, spare_key
from sluicegate.quota.node.core._admission cimport (
    CELL_WORDS, FALLBACK, FALLBACK_REQUESTS, FREE, FRESH, MOST_CELLS, NEWCOMER, REUSED, SAFE, STARTS,
    USER_WORDS, Cell, Costs, User, admit_many, blank, cell_of, charge, first_short, is_credit,
    is_free, is_holding, look_up, refuse, settle,
)

from sluicegate.clock import SystemClock
from sluicegate.errors import TableFull
from sluicegate._validate import positive, text, whole
from sluicegate.shm.file import path_of, remove
from sluicegate.quota.node.core._user_keys import name_of_memory
from sluicegate.quota.stable_hash import fraction
from sluicegate.quota.errors import Throttled

__all__ = ["Host"]

cdef enum:
    PASSED = -1
    FRESHEN_WINDOWS = 60

cdef dict NAMES = {
    FALLBACK: "fallback", FRESH: "fresh", REUSED: "reused", SAFE: "safe", NEWCOMER: "newcomer", FREE: "free",
}

assert sizeof(User) == 8 * USER_WORDS and sizeof(Cell) == 8 * CELL_WORDS
assert USER_WORDS + MOST_CELLS * CELL_WORDS <= PAYLOAD


cdef class Host:
    """The users of a node on this host, for all of its processes.

    `shared` names the memory (a name in /dev/shm, or a path); by default it follows from `node_id`.
    `fallback` is what each user may have per second of each resource while nobody has told.
    `max_services` is for how many services there are records that users beyond `max_users` share.
    The reporter walks through the whole table in every slot, so a host that is known to be small
    is quicker with a small one.
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
        max_services=SERVICES,
        clock=None,
    ):
        if isinstance(services, str):
            raise TypeError(f"services must be a list of names, got {services!r}")
        self.node_id = text("node_id", node_id)
        self.slot_seconds = positive("slot_seconds", slot_seconds)
        self.lease = whole("lease", lease, 0)
        self.max_users = whole("max_users", max_users, 1)
        self.reservation_windows = max(1, round(positive("reservation_seconds", reservation_seconds) / slot_seconds))
        self.clock = SystemClock() if clock is None else clock
        self._read_clock = None if isinstance(self.clock, SystemClock) else clock.now
        checked = None if fallback is None else amounts_of("fallback", fallback)
        if checked is not None and not 0 < len(checked) <= MOST_CELLS:
            raise ValueError(f"fallback must name 1 to {MOST_CELLS} resources, or be None, got {fallback!r}")
        self.path = path_of(name_of_memory(node_id) if shared is None else shared)
        self._no_memory_until = -INFINITY
        now = self.now()
        wall = getattr(self.clock, "wall", self.clock.now)()
        self.head = Head(f"{self.path}-head", node_id, self.slot_seconds, now=now, wall=wall)
        self.chains = Chains(
            self.path,
            f"node {node_id} boot {self.head.boot}",
            self.max_users + whole("max_services", max_services, 1) * SPARES,
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
        self.chains.close()
        self.head.close()

    # The time

    def now(self):
        """The host's monotonic clock."""
        return self._time()

    cdef double _time(self) except? -1e300:
        return monotonic() if self._read_clock is None else <double> self._read_clock()

    cdef int _set_roughly(self, Now *now) except -1:
        now.is_rough = self._read_clock is None
        now.time = monotonic_coarse() if now.is_rough else <double> self._read_clock()
        return 0

    def window(self, double time):
        """The slot that requests are counted in, which of the host's windows it is, its begin and end."""
        cdef Now now
        set_time(&now, time)
        read_window(self.head, &now)
        return now.slot, now.window, now.begin, now.end

    # A request begins, and ends

    def allows(self, service, user, expect=None):
        """Whether a request may begin. If so, its expected cost is reserved until `consume`."""
        cdef Now now
        self._set_roughly(&now)
        return self._throttle(&now, service, user, expect) == PASSED

    def throttle(self, service, user, expect=None):
        """As `allows`; raises `Throttled` if not."""
        cdef Now now
        cdef int short
        self._set_roughly(&now)
        short = self._throttle(&now, service, user, expect)
        if short != PASSED:
            raise self._refusal(&now, service, user, short)

    def consume(self, service, user, amounts):
        """A request has ended and cost `amounts`, by resource."""
        cdef Now now
        self._set_roughly(&now)
        self._consume(&now, service, user, amounts)

    def throttle_at(self, double time, service, user, expect=None):
        """A `Throttled`, or None: the request may begin."""
        cdef Now now
        set_time(&now, time)
        cdef int short = self._throttle(&now, service, user, expect)
        return None if short == PASSED else self._refusal(&now, service, user, short)

    def consume_at(self, double time, service, user, amounts):
        cdef Now now
        set_time(&now, time)
        self._consume(&now, service, user, amounts)

    cdef object _refusal(self, Now *now, object service, object user, int short):
        return Throttled(service, user, self.head.resource_name(short), max(now.end - now.time, 0.0))

    cdef int _throttle(self, Now *now, object service, object user, object expect) except -2:
        """The number of the resource that a request is short of, or PASSED.

        When there is no memory to count in, nobody new can pass.
        """
        cdef Key key
        cdef Look look
        cdef Costs costs
        cdef Costs *expected = NULL
        cdef User *record = <User *> look.payload
        cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
        cdef int short, count, outcome, number = service_number(self.head, service)
        cdef bint asks
        kept = key_of_user(user, number, &key)
        if expect is not None:
            read_costs(self.head, "expect", expect, &costs)
            expected = &costs
        while True:
            kept = self.find(&key, &look, now, service, kept)
            if record.state == FREE:
                if now.window - record.changed > FRESHEN_WINDOWS:  # he is still here: not to be forgotten
                    record.changed = now.window
                    self.put(&key, &look, look.limits)
                return PASSED
            count = look.limits
            asks = is_credit(record.state) and record.state != SAFE
            short = first_short(record, cells, count, expected, now)
            if short < 0:
                charge(record, cells, count, expected)
            elif now.is_rough:
                set_time(now, monotonic())
                continue
            else:
                refuse(record, cells, count, expected, 1, now)
                # What ran out may be the reserve that idle users have; the leader may know of more.
                asks = asks or (record.state == FRESH and record.was_idle and not record.was_refused)
                record.was_refused = 1
                short = cells[short].resource
            asks = asks and record.asked != now.window
            if asks:
                record.asked = now.window
            outcome = self.put(&key, &look, count)
            if outcome == FULL:
                return STARTS
            if outcome == DONE:
                if asks:
                    self.head.ask(number, key.data, key.size)
                return short

    cdef int _consume(self, Now *now, object service, object user, object amounts) except -1:
        cdef Key key
        cdef Look look
        cdef Costs costs
        cdef User *record = <User *> look.payload
        cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
        cdef int i, count, outcome, number = service_number(self.head, service)
        kept = key_of_user(user, number, &key)
        read_costs(self.head, "amounts", amounts, &costs)
        while True:
            kept = self.find(&key, &look, now, service, kept)
            if record.state == FREE and not is_holding(record):
                return 0
            count = look.limits
            settle(record, cells, &count, &costs)
            outcome = self.put(&key, &look, count)
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
        cdef int cell_count, outcome, number = service_number(self.head, service)
        cdef uint32_t admitted, most
        cdef bint asks
        most = count if type(count) is int and 0 <= count < 1 << 31 else whole("count", count, 0)
        set_time(&now, time)
        kept = key_of_user(user, number, &key)
        read_costs(self.head, "amounts", amounts, &costs)
        while most:
            kept = self.find(&key, &look, &now, service, kept)
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
            outcome = self.put(&key, &look, cell_count)
            if outcome == FULL:
                return 0
            if outcome == DONE:
                if asks:
                    self.head.ask(number, key.data, key.size)
                return admitted
        return 0

    def state(self, double time, service, user):
        """What a user has in this slot: fresh, reused, safe, newcomer, free or fallback."""
        cdef Key key
        cdef Look look
        cdef Now now
        set_time(&now, time)
        kept = key_of_user(user, service_number(self.head, service), &key)
        kept = self.find(&key, &look, &now, service, kept)
        return name_of_state((<User *> look.payload).state)

    # A user's record

    cdef object find(self, Key *key, Look *look, Now *now, object service, object kept):
        """Copy a user's record, or a blank one, brought to this window. What is returned holds the key."""
        cdef User *record = <User *> look.payload
        cdef Cell *cells = <Cell *> (look.payload + USER_WORDS)
        now.start = -1.0
        while True:
            read_window(self.head, now)
            self.chains.find(key, look)
            if look.found >= 0 and record.generation == now.generation and record.window >= now.window:
                if record.window == now.window or not now.is_rough:
                    return kept
                set_time(now, monotonic())  # the coarse clock is still in the window before
                continue
            if look.found >= 0 and is_free(record, now) and not is_holding(record):
                record.state = FREE  # his windows make no difference
                return kept
            if now.is_rough:
                set_time(now, monotonic())
            read_terms(self.head, <int> key.generation, now)
            if not now.is_told:
                now.terms = self._fallback
            if look.found < 0:
                if key.kind != BYTES and self._is_full(now.time, look):
                    kept = spare_key(key)
                    continue
                look.limits = 0
                blank(record, now)
            now.lease = self.lease
            now.reservation_windows = self.reservation_windows
            if look_up(record, cells, &look.limits, now):
                return kept
            now.start = fraction(self.node_id, service, name_of(key))

    cdef bint _is_full(self, double time, Look *look):
        """Whether there is no room for one more user."""
        return (
            self.chains.counters.count.word >= self.max_users
            or look.length >= LONGEST_CHAIN
            or time < self._no_memory_until
        )

    cdef int put(self, Key *key, Look *look, int count) except -1:
        """Put a changed copy in the place of the record.

        AGAIN: another was faster, or there is no room for one more user, who shares a record then.
        FULL: there is no memory for it at all.
        """
        cdef int size_class
        if look.found >= 0 and count == record_at(self.chains, look.units[look.found]).limits:
            return self.chains.change(look, <uint32_t> 1 << look.found, key, count, look.payload, -1)
        size_class = class_of(self.chains.header, key.size, count)
        if look.found >= 0:
            size_class = self.chains.room_for(size_class)
            if size_class < 0:
                return FULL
            return self.chains.change(look, <uint32_t> 1 << look.found, key, count, look.payload, size_class)
        size_class = self.chains.admit(size_class) if look.length < LONGEST_CHAIN else -1
        if size_class < 0:
            if key.kind == BYTES:
                return FULL
            self._no_memory_until = self._time() + 1.0  # he is one of many, until there is some again
            return AGAIN
        if self.chains.change(look, 0, key, count, look.payload, size_class):
            return DONE
        self.chains.dismiss()
        return AGAIN

    def __len__(self):
        """Users that have a record."""
        self.chains.check()
        return self.chains.counters.count.word

    def __repr__(self):
        if self.chains.file is None:
            return f"Host({self.node_id!r}, closed)"
        return f"Host({self.node_id!r}, {str(self.path)!r}, users={len(self)})"


cdef str name_of_state(int state):
    return NAMES[state]
