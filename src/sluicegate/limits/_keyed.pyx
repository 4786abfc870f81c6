# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`Keyed`: one limiter per key, for as many keys as come.

A call finds the key's cells (`_key_table.pxd`), asks each limit's algorithm
(`_algorithms.pxd`) whether the cost fits, and charges all of them or none. A key that has
used nothing takes no memory; one that is idle again loses its place in small steps.

Where a key's cells are:

    own        in the table: the usual case
    overridden the key has limits of its own (`override`), kept until they are removed
    shared     the table holds `max_keys` live keys: new ones share 1,024 spare sets of
               cells by their hash. They get less, never more, and `overflowed` counts
               these calls. A key leaves its shared cells only when those are idle, so
               it never buys a fresh bucket. No live key ever makes room for a new one.
    blank      nowhere yet: the key is added when something is charged
"""

from cpython.object cimport PyObject_Hash
from cpython.unicode cimport PyUnicode_CheckExact
from libc.math cimport INFINITY
from libc.string cimport memcpy

from sluicegate.limits._key_table cimport CellTable
from sluicegate.limits._algorithms cimport Rule, TOKEN_BUCKET, bucket_charge, bucket_wait
from sluicegate.limits._decision cimport Decision
from sluicegate.limits._key_normalize cimport plain
from sluicegate._minmax cimport larger
from sluicegate.limits._limit_set cimport (
    MOST_WORDS, Rules, bad_cost, check_whole, make_rules, state_carry, state_charge, state_clear,
    state_decision, state_free, state_is_idle, state_marks, state_refund, state_use_up, state_wait,
)
from sluicegate.limits._limiter_clock cimport Timing

from sluicegate._validate import timeout_seconds, whole
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import as_limits
from sluicegate.limits.reservation import Reservation
from sluicegate.limits.waiting import Lines, TaskSleeper, ThreadSleeper

__all__ = ["Keyed"]

cdef enum:
    SWEEP_PER_KEY = 8         # slots looked at for each key that is added
    SWEEP_IN_PASSING = 64     # and once in a while when none is added
    SWEEP_AT_THE_CAP = 256

cdef double SWEEP_EVERY = 0.001  # seconds

cdef enum Where:
    OWN
    OVERRIDDEN
    SHARED
    BLANK
    UNKNOWN   # the clock stepped back behind a time at which keys were forgotten

cdef struct Spot:
    Where where
    Rules* rules
    double* state
    Py_hash_t key_hash


cdef class _Override:
    """The limits of one key, and what it has used of them."""

    cdef tuple limits
    cdef Rules rules
    cdef double[MOST_WORDS] state
    # What it had used of the default limits: an override need not have all of them, and
    # when it goes, nothing is forgiven.
    cdef Rules default_rules
    cdef double[MOST_WORDS] default_state

    def __dealloc__(self):
        state_free(&self.rules, self.state)
        state_free(&self.default_rules, self.default_state)


cdef class Keyed:
    """One limiter per key.

    `limit` is a `Limit`, a string such as "100/second; 5000/hour", or several: all
    must agree, and none is charged unless all do. `algorithm` is "token_bucket",
    "leaky_bucket", "fixed_window", "sliding_window" or "sliding_counter". Keys are
    str, bytes, int, or tuples of them.
    """

    cdef Timing _timing
    cdef CellTable _table
    cdef str _algorithm
    cdef tuple _limits
    cdef size_t _max_keys
    cdef dict _overrides
    cdef bint _is_one_bucket  # for each key
    cdef bint _is_plain       # and no key has an override
    cdef unsigned long long _changes  # by reset and override
    cdef unsigned long long _overflowed
    cdef double _next_sweep
    cdef double[MOST_WORDS] _blank
    cdef object _lines
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self._timing = Timing(None)  # so that an object without __init__ is useless, not deadly
        self._table = CellTable(1)
        self._overrides = {}

    def __init__(self, limit, *, algorithm="token_bucket", max_keys=1_000_000, clock=None):
        cdef Rules rules
        self._max_keys = whole("max_keys", max_keys, 1)
        self._timing = Timing(clock)
        self._limits = as_limits(limit)
        make_rules(algorithm, self._limits, self._timing, &rules)
        self._algorithm = algorithm
        self._table = CellTable(self._max_keys)
        self._table.set_rules(&rules)
        self._overrides = {}
        self._is_one_bucket = rules.count == 1 and rules.rule[0].algorithm == TOKEN_BUCKET
        self._is_plain = self._is_one_bucket
        self._next_sweep = SWEEP_EVERY
        state_clear(&rules, self._blank)
        self._lines = Lines(self._timing)

    def allow(self, key, double cost=1.0):
        """Charge `cost` to `key` if it fits now."""
        cdef Spot spot
        if not PyUnicode_CheckExact(key):
            key = plain(key)
        if not cost > 0.0:
            raise bad_cost(cost, self._table.rules.most)
        return take(self, key, cost, self._timing.now(), &spot) == 0.0

    def check(self, key, double cost=1.0):
        """Charge `cost` to `key` if it fits now, and tell all about it. A cost of 0 only looks."""
        cdef Spot spot
        cdef double wait, now
        key = plain(key)
        if not cost >= 0.0:
            raise bad_cost(cost, self._table.rules.most)
        now = self._timing.now()
        wait = take(self, key, cost, now, &spot)
        return self._decision(key, &spot, now, cost, wait)

    def acquire(self, key, double cost=1.0, timeout=None):
        """Wait until `cost` fits; return the seconds waited.

        Those who wait for one key go in their order. Raises `RateLimited` when it
        does not fit within `timeout` seconds: at once, where that is known at once.
        """
        cdef double seconds = INFINITY if timeout is None else timeout_seconds(timeout)
        key = plain(key)
        if key not in self._lines and self.allow(key, cost):
            return 0.0
        sleeper = ThreadSleeper(self._timing.clock)
        return sleeper.wait(self._queue(key, cost, seconds, sleeper))

    async def acquire_async(self, key, cost=1.0, timeout=None):
        """As `acquire`, for tasks. A cancelled one leaves the line."""
        seconds = INFINITY if timeout is None else timeout_seconds(timeout)
        key = plain(key)
        if key not in self._lines and self.allow(key, cost):
            return 0.0
        sleeper = TaskSleeper(self._timing.clock)
        return await sleeper.wait(self._queue(key, cost, seconds, sleeper))

    def reserve(self, key, double cost=1.0):
        """Charge an expected cost now; `settle` the real one on what is returned.

            with keyed.reserve("user", 500) as reservation:
                reservation.settle(answer.tokens)

        Raises `RateLimited` when `cost` does not fit. A block that ends without
        `settle` has cost what was expected; one that raises has cost nothing.
        """
        cdef Spot spot
        cdef double wait, now
        key = plain(key)
        if not cost > 0.0:
            raise bad_cost(cost, self._table.rules.most)
        now = self._timing.now()
        wait = take(self, key, cost, now, &spot)
        if wait > 0.0:
            raise RateLimited(self._decision(key, &spot, now, cost, wait))
        return Reservation(self._settle, key, cost, self._marks(key, now))

    def refund(self, key, double cost):
        """Give `cost` back, as if it had been taken just now. Never fills above full."""
        if not 0.0 < cost < INFINITY:
            raise ValueError(f"cost must be a finite number above 0, got {cost!r}")
        check_whole(&self._table.rules, cost)
        self._give_back(plain(key), cost, None)

    def reset(self, key):
        """Forget what `key` has used. What it used of shared cells stays."""
        cdef _Override override
        key = plain(key)
        override = self._overrides.get(key)
        if override is None:
            self._table.remove(key, PyObject_Hash(key))
        else:
            state_free(&override.rules, override.state)
            state_clear(&override.rules, override.state)
        self._changes += 1
        self._lines.wake_head(key)

    def override(self, key, limit):
        """Give `key` limits of its own; None takes them away. What it has used stays used."""
        cdef Spot spot
        cdef _Override new = None
        cdef _Override old
        cdef double now
        key = plain(key)
        if limit is not None:
            new = _Override()
            new.limits = as_limits(limit)
            make_rules(self._algorithm, new.limits, self._timing, &new.rules)
            state_clear(&new.rules, new.state)
            new.default_rules = self._table.rules
            state_clear(&new.default_rules, new.default_state)
        # From here on, no code but ours runs, so it is one step for other threads.
        now = self._timing.now()
        old = self._overrides.get(key)
        if new is None:
            if old is not None:
                del self._overrides[key]
                self._adopt(key, now, old)
        else:
            if old is not None and old.limits == new.limits:
                return
            find(self, key, now, &spot)
            if spot.where == UNKNOWN:
                state_use_up(&new.rules, new.state, now)
            elif spot.where != BLANK:
                state_carry(spot.rules, spot.state, &new.rules, new.state, now)
            if old is not None:
                memcpy(new.default_state, old.default_state, sizeof(new.default_state))
                state_clear(&old.default_rules, old.default_state)  # handed on
            elif spot.where == OWN or spot.where == SHARED:
                state_carry(spot.rules, spot.state, &new.default_rules, new.default_state, now)
            self._overrides[key] = new
            self._table.remove(key, spot.key_hash)
        self._is_plain = not self._overrides and self._is_one_bucket
        self._changes += 1
        self._lines.wake_head(key)

    def limits_of(self, key):
        """The limits that hold for `key`."""
        cdef _Override override = self._overrides.get(plain(key))
        return self._limits if override is None else override.limits

    def __len__(self):
        """Keys that take memory: those in use, those idle since a moment ago, and overrides."""
        return self._table.count + len(self._overrides)

    @property
    def limits(self):
        """The limits of keys that have no override."""
        return self._limits

    @property
    def algorithm(self):
        return self._algorithm

    @property
    def max_keys(self):
        return self._max_keys

    @property
    def overflowed(self):
        """Calls that had to be answered from shared cells, since the start."""
        return self._overflowed

    @property
    def waiting(self):
        """How many wait in `acquire`, over all keys."""
        return len(self._lines)

    def __repr__(self):
        limits = "; ".join(map(str, self._limits))
        overflowed = f", overflowed={self._overflowed}" if self._overflowed else ""
        return f"Keyed({limits!r}, algorithm={self._algorithm!r}, keys={len(self)}{overflowed})"

    def _queue(self, key, double cost, double timeout, sleeper):
        def attempt():
            cdef Spot spot
            return take(self, key, cost, self._timing.now(), &spot)

        def refuse():
            cdef Spot spot
            now = self._timing.now()
            find(self, key, now, &spot)
            wait = larger(self._wait(&spot, now, cost), self._timing.tick)
            return RateLimited(self._decision(key, &spot, now, cost, wait))

        return self._lines.queue(key, attempt, refuse, timeout, sleeper)

    def _settle(self, key, double taken, marks, double cost):
        """Make `taken`, charged at `marks`, have been `cost`."""
        cdef Spot spot
        cdef double now = self._timing.now()
        if not 0.0 <= cost < INFINITY:
            raise ValueError(f"the cost must be a finite number, 0 or more, got {cost!r}")
        check_whole(&self._table.rules, cost)
        if cost > taken:
            find(self, key, now, &spot)
            self._charge(key, cost - taken, now, &spot)
        elif cost < taken and marks is not None and marks[0] == self._changes:
            self._give_back(key, taken - cost, marks[1])

    cdef object _marks(self, object key, double now):
        """Where a charge was put just now, to be given back; None where it cannot be."""
        cdef Spot spot
        find(self, key, now, &spot)
        if spot.where != OWN and spot.where != OVERRIDDEN:
            return None
        return self._changes, state_marks(spot.rules, spot.state, now)

    cdef double _take(self, object key, double cost, double now, Spot* spot) except -1.0:
        cdef double wait
        find(self, key, now, spot)
        if not cost <= spot.rules.most:
            raise bad_cost(cost, spot.rules.most)
        check_whole(&self._table.rules, cost)
        wait = self._wait(spot, now, cost)
        if wait == 0.0 and cost > 0.0:
            self._charge(key, cost, now, spot)
        if spot.where == SHARED:
            self._overflowed += 1
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_EVERY
            self._table.sweep(now, SWEEP_IN_PASSING)
        return wait

    cdef void _find_absent(self, double now, Spot* spot) noexcept:
        if self._table.shared != NULL:
            spot.state = self._table.shared_state(spot.key_hash)
            if not state_is_idle(spot.rules, spot.state, now):
                spot.where = SHARED
                return
        spot.state = self._blank
        spot.where = BLANK if now >= self._table.forgot_at else UNKNOWN

    cdef double _wait(self, Spot* spot, double now, double cost) noexcept:
        """Seconds until every limit has room for `cost`."""
        if spot.where == UNKNOWN:
            return self._table.forgot_at - now
        return state_wait(spot.rules, spot.state, now, cost)

    cdef int _charge(self, object key, double cost, double now, Spot* spot) except -1:
        if spot.where == BLANK or spot.where == UNKNOWN:
            self._adopt_blank(key, now, spot)
        return state_charge(spot.rules, spot.state, now, cost)

    cdef int _adopt_blank(self, object key, double now, Spot* spot) except -1:
        """Find a place for a key that has none: its own, or a shared one at the cap."""
        self._table.sweep(now, SWEEP_PER_KEY)
        if self._table.count >= self._max_keys:
            self._table.sweep(now, SWEEP_AT_THE_CAP)
        if self._table.count < self._max_keys:
            spot.state = self._table.add(key, spot.key_hash, now)
            spot.where = OWN
            return 0
        self._table.make_shared()
        spot.state = self._table.shared_state(spot.key_hash)
        spot.where = SHARED
        return 0

    cdef int _adopt(self, object key, double now, _Override old) except -1:
        """Bring what a key used, before and during its override, to the default limits."""
        cdef Spot spot
        state_carry(&old.rules, old.state, &old.default_rules, old.default_state, now)
        if state_is_idle(&old.default_rules, old.default_state, now):
            self._table.forgot_at = larger(self._table.forgot_at, now)
            return 0
        find(self, key, now, &spot)
        if spot.where != SHARED:
            self._adopt_blank(key, now, &spot)
        state_carry(&old.default_rules, old.default_state, spot.rules, spot.state, now)
        return 0

    cdef int _give_back(self, object key, double cost, list marks) except -1:
        """What was taken at `marks`, or (None) just now."""
        cdef Spot spot
        cdef double now = self._timing.now()
        find(self, key, now, &spot)
        # Nothing goes back to shared cells: it might be another key's use that is undone.
        if spot.where == OWN or spot.where == OVERRIDDEN:
            state_refund(spot.rules, spot.state, now, cost, marks)
        self._lines.wake_head(key)
        return 0

    cdef Decision _decision(self, object key, Spot* spot, double now, double cost, double wait):
        cdef Decision decision
        # The key may have moved in the table since it was charged.
        find(self, key, now, spot)
        limits = self._limits if spot.where != OVERRIDDEN else (<_Override>self._overrides[key]).limits
        decision = state_decision(spot.rules, spot.state, limits, now, cost, wait)
        if spot.where == UNKNOWN:
            decision.remaining = 0.0
        return decision


# Functions and not methods, for a method of a class that may be subclassed is not inlined.
cdef inline double take(Keyed self, object key, double cost, double now, Spot* spot) except -1.0:
    """Charge `cost` and return 0, or change nothing and return the seconds until it fits."""
    cdef double wait
    cdef Rule* rule
    # The path of nearly every call, short enough to be inlined: a str that is in the table,
    # one token bucket. All else goes the long way, which gives the same answer.
    if self._is_plain and PyUnicode_CheckExact(key) and now < self._next_sweep:
        rule = &self._table.rules.rule[0]
        spot.key_hash = PyObject_Hash(key)
        spot.state = self._table.find(key, spot.key_hash)
        if spot.state != NULL and 0.0 < cost <= rule.limit:
            spot.where = OWN
            spot.rules = &self._table.rules
            wait = bucket_wait(rule, spot.state, now, cost)
            if wait == 0.0:
                bucket_charge(rule, spot.state, now, cost)
            return wait
    return self._take(key, cost, now, spot)


cdef inline int find(Keyed self, object key, double now, Spot* spot) except -1:
    cdef _Override override
    spot.key_hash = PyObject_Hash(key)
    spot.rules = &self._table.rules
    if self._overrides:
        override = self._overrides.get(key)
        if override is not None:
            spot.where = OVERRIDDEN
            spot.rules = &override.rules
            spot.state = override.state
            return 0
    spot.state = self._table.find(key, spot.key_hash)
    spot.where = OWN
    if spot.state == NULL:
        self._find_absent(now, spot)
    return 0
