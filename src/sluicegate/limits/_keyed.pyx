# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`Keyed`: one limiter per key, for as many keys as come.

A call finds the key's state (`_key_table.pxd`), asks each limit's algorithm
(`_algorithms.pxd`) whether the cost fits, and charges all of them or none. A key that has
used nothing takes no memory; one that is idle again loses its place in small steps.

Where a key's state is (`Location`):

    IN_TABLE       in the table: the usual case
    OVERRIDDEN     the key has limits of its own (`override`), kept until they are removed
    IN_OVERFLOW    the table holds `max_keys` live keys: new ones share 1,024 overflow
                   states by their hash. They get less, never more, and `overflowed` counts
                   these calls. A key leaves its overflow state only when that is idle, so
                   it never gets a fresh bucket. No live key is evicted for a new one.
    ABSENT         nowhere yet: the key is added when something is charged
    MAYBE_EVICTED  absent, and the clock stepped back behind an eviction: its use is unknown
"""

from cpython.object cimport PyObject_Hash
from cpython.unicode cimport PyUnicode_CheckExact
from libc.math cimport INFINITY
from libc.string cimport memcpy

from sluicegate.limits._key_table cimport KeyTable
from sluicegate.limits._algorithms cimport Params, TOKEN_BUCKET, bucket_charge, bucket_wait
from sluicegate.limits._decision cimport Decision
from sluicegate._key_normalize cimport normalize_key
from sluicegate._minmax cimport fast_max
from sluicegate.limits._limit_set cimport (
    MAX_SET_WORDS, LimitSet, bad_cost, check_whole_cost, exhaust_state, limit_set_charge, limit_set_clear,
    limit_set_decision, limit_set_free, limit_set_is_idle, limit_set_marks, limit_set_refund, limit_set_wait,
    make_limit_set, migrate_state,
)
from sluicegate.limits._limiter_clock cimport LimiterClock

from sluicegate._validate import check_timeout, check_whole
from sluicegate.limits.errors import RateLimited
from sluicegate.limits.limit import as_limits
from sluicegate.limits.reservation import Reservation
from sluicegate.limits.waiting import WaitQueues, TaskSleeper, ThreadSleeper

__all__ = ["Keyed"]

cdef enum:
    SWEEP_PER_KEY = 8         # slots looked at for each key that is added
    SWEEP_PERIODIC = 64       # and once in a while when none is added
    SWEEP_WHEN_FULL = 256

cdef double SWEEP_INTERVAL = 0.001  # seconds

cdef enum Location:
    IN_TABLE
    OVERRIDDEN
    IN_OVERFLOW
    ABSENT
    MAYBE_EVICTED

cdef struct StateRef:
    Location location
    LimitSet* limit_set
    double* state
    Py_hash_t key_hash


cdef class _Override:
    """The limits of one key, and what it has used of them."""

    cdef tuple limits
    cdef LimitSet limit_set
    cdef double[MAX_SET_WORDS] state
    # What it had used of the default limits: an override need not have all of them, and
    # when it goes, nothing is forgiven.
    cdef LimitSet default_limit_set
    cdef double[MAX_SET_WORDS] default_state

    def __dealloc__(self):
        limit_set_free(&self.limit_set, self.state)
        limit_set_free(&self.default_limit_set, self.default_state)


cdef class Keyed:
    """One limiter per key.

    `limit` is a `Limit`, a string such as "100/second; 5000/hour", or several: all
    must agree, and none is charged unless all do. `algorithm` is "token_bucket",
    "leaky_bucket", "fixed_window", "sliding_window" or "sliding_counter". Keys are
    str, bytes, int, or tuples of them.
    """

    cdef LimiterClock _clock
    cdef KeyTable _table
    cdef str _algorithm
    cdef tuple _limits
    cdef size_t _max_keys
    cdef dict _overrides
    cdef bint _is_single_bucket  # for each key
    cdef bint _has_fast_path       # and no key has an override
    cdef unsigned long long _changes  # by reset and override
    cdef unsigned long long _overflowed
    cdef double _next_sweep
    cdef double[MAX_SET_WORDS] _idle_state
    cdef object _queues
    cdef object __weakref__

    def __cinit__(self, *_, **__):
        self._clock = LimiterClock(None)  # so that an object without __init__ is useless, not deadly
        self._table = KeyTable(1)
        self._overrides = {}

    def __init__(self, limit, *, algorithm="token_bucket", max_keys=1_000_000, clock=None):
        cdef LimitSet limit_set
        self._max_keys = check_whole("max_keys", max_keys, 1)
        self._clock = LimiterClock(clock)
        self._limits = as_limits(limit)
        make_limit_set(algorithm, self._limits, self._clock, &limit_set)
        self._algorithm = algorithm
        self._table = KeyTable(self._max_keys)
        self._table.set_limits(&limit_set)
        self._overrides = {}
        self._is_single_bucket = limit_set.count == 1 and limit_set.params[0].algorithm == TOKEN_BUCKET
        self._has_fast_path = self._is_single_bucket
        self._next_sweep = SWEEP_INTERVAL
        limit_set_clear(&limit_set, self._idle_state)
        self._queues = WaitQueues(self._clock)

    def allow(self, key, double cost=1.0):
        """Charge `cost` to `key` if it fits now."""
        cdef StateRef ref
        if not PyUnicode_CheckExact(key):
            key = normalize_key(key)
        if not cost > 0.0:
            raise bad_cost(cost, self._table.limit_set.max_cost)
        return take(self, key, cost, self._clock.now(), &ref) == 0.0

    def check(self, key, double cost=1.0):
        """Charge `cost` to `key` if it fits now, and tell all about it. A cost of 0 only looks."""
        cdef StateRef ref
        cdef double wait, now
        key = normalize_key(key)
        if not cost >= 0.0:
            raise bad_cost(cost, self._table.limit_set.max_cost)
        now = self._clock.now()
        wait = take(self, key, cost, now, &ref)
        return self._decision(key, &ref, now, cost, wait)

    def acquire(self, key, double cost=1.0, timeout=None):
        """Wait until `cost` fits; return the seconds waited.

        Those who wait for one key go in their order. Raises `RateLimited` when it
        does not fit within `timeout` seconds: at once, where that is known at once.
        """
        cdef double seconds = INFINITY if timeout is None else check_timeout(timeout)
        key = normalize_key(key)
        if key not in self._queues and self.allow(key, cost):
            return 0.0
        sleeper = ThreadSleeper(self._clock.source)
        return sleeper.wait(self._wait_plan(key, cost, seconds, sleeper))

    async def acquire_async(self, key, cost=1.0, timeout=None):
        """As `acquire`, for tasks. A cancelled one leaves the queue."""
        seconds = INFINITY if timeout is None else check_timeout(timeout)
        key = normalize_key(key)
        if key not in self._queues and self.allow(key, cost):
            return 0.0
        sleeper = TaskSleeper(self._clock.source)
        return await sleeper.wait(self._wait_plan(key, cost, seconds, sleeper))

    def reserve(self, key, double cost=1.0):
        """Charge an expected cost now; `settle` the real one on what is returned.

            with keyed.reserve("user", 500) as reservation:
                reservation.settle(answer.tokens)

        Raises `RateLimited` when `cost` does not fit. A block that ends without
        `settle` has cost what was expected; one that raises has cost nothing.
        """
        cdef StateRef ref
        cdef double wait, now
        key = normalize_key(key)
        if not cost > 0.0:
            raise bad_cost(cost, self._table.limit_set.max_cost)
        now = self._clock.now()
        wait = take(self, key, cost, now, &ref)
        if wait > 0.0:
            raise RateLimited(self._decision(key, &ref, now, cost, wait))
        return Reservation(self._settle, key, cost, self._marks(key, now))

    def refund(self, key, double cost):
        """Give `cost` back, as if it had been taken just now. Never fills above full."""
        if not 0.0 < cost < INFINITY:
            raise ValueError(f"cost must be a finite number above 0, got {cost!r}")
        check_whole_cost(&self._table.limit_set, cost)
        self._give_back(normalize_key(key), cost, None)

    def reset(self, key):
        """Forget what `key` has used. What it used of overflow states stays."""
        cdef _Override override
        key = normalize_key(key)
        override = self._overrides.get(key)
        if override is None:
            self._table.remove(key, PyObject_Hash(key))
        else:
            limit_set_free(&override.limit_set, override.state)
            limit_set_clear(&override.limit_set, override.state)
        self._changes += 1
        self._queues.wake_head(key)

    def override(self, key, limit):
        """Give `key` limits of its own; None takes them away. What it has used stays used."""
        cdef StateRef ref
        cdef _Override new = None
        cdef _Override old
        cdef double now
        key = normalize_key(key)
        if limit is not None:
            new = _Override()
            new.limits = as_limits(limit)
            make_limit_set(self._algorithm, new.limits, self._clock, &new.limit_set)
            limit_set_clear(&new.limit_set, new.state)
            new.default_limit_set = self._table.limit_set
            limit_set_clear(&new.default_limit_set, new.default_state)
        # From here on, no code but ours runs, so it is one step for other threads.
        now = self._clock.now()
        old = self._overrides.get(key)
        if new is None:
            if old is not None:
                del self._overrides[key]
                self._end_override(key, now, old)
        else:
            if old is not None and old.limits == new.limits:
                return
            find(self, key, now, &ref)
            if ref.location == MAYBE_EVICTED:
                exhaust_state(&new.limit_set, new.state, now)
            elif ref.location != ABSENT:
                migrate_state(ref.limit_set, ref.state, &new.limit_set, new.state, now)
            if old is not None:
                memcpy(new.default_state, old.default_state, sizeof(new.default_state))
                limit_set_clear(&old.default_limit_set, old.default_state)  # handed on
            elif ref.location == IN_TABLE or ref.location == IN_OVERFLOW:
                migrate_state(ref.limit_set, ref.state, &new.default_limit_set, new.default_state, now)
            self._overrides[key] = new
            self._table.remove(key, ref.key_hash)
        self._has_fast_path = not self._overrides and self._is_single_bucket
        self._changes += 1
        self._queues.wake_head(key)

    def limits_of(self, key):
        """The limits that hold for `key`."""
        cdef _Override override = self._overrides.get(normalize_key(key))
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
        """Calls that had to be answered from overflow states, since the start."""
        return self._overflowed

    @property
    def waiting(self):
        """How many wait in `acquire`, over all keys."""
        return len(self._queues)

    def __repr__(self):
        limits = "; ".join(map(str, self._limits))
        overflowed = f", overflowed={self._overflowed}" if self._overflowed else ""
        return f"Keyed({limits!r}, algorithm={self._algorithm!r}, keys={len(self)}{overflowed})"

    def _wait_plan(self, key, double cost, double timeout, sleeper):
        def attempt():
            cdef StateRef ref
            return take(self, key, cost, self._clock.now(), &ref)

        def refuse():
            cdef StateRef ref
            now = self._clock.now()
            find(self, key, now, &ref)
            wait = fast_max(self._wait(&ref, now, cost), self._clock.epsilon)
            return RateLimited(self._decision(key, &ref, now, cost, wait))

        return self._queues.wait(key, attempt, refuse, timeout, sleeper)

    def _settle(self, key, double taken, marks, double cost):
        """Make `taken`, charged at `marks`, have been `cost`."""
        cdef StateRef ref
        cdef double now = self._clock.now()
        if not 0.0 <= cost < INFINITY:
            raise ValueError(f"cost must be a finite number, 0 or more, got {cost!r}")
        check_whole_cost(&self._table.limit_set, cost)
        if cost > taken:
            find(self, key, now, &ref)
            self._charge(key, cost - taken, now, &ref)
        elif cost < taken and marks is not None and marks[0] == self._changes:
            self._give_back(key, taken - cost, marks[1])

    cdef object _marks(self, object key, double now):
        """Where a charge was put just now, to be given back; None if it cannot be."""
        cdef StateRef ref
        find(self, key, now, &ref)
        if ref.location != IN_TABLE and ref.location != OVERRIDDEN:
            return None
        return self._changes, limit_set_marks(ref.limit_set, ref.state, now)

    cdef double _take(self, object key, double cost, double now, StateRef* ref) except -1.0:
        cdef double wait
        find(self, key, now, ref)
        if not cost <= ref.limit_set.max_cost:
            raise bad_cost(cost, ref.limit_set.max_cost)
        check_whole_cost(&self._table.limit_set, cost)
        wait = self._wait(ref, now, cost)
        if wait == 0.0 and cost > 0.0:
            self._charge(key, cost, now, ref)
        if ref.location == IN_OVERFLOW:
            self._overflowed += 1
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_INTERVAL
            self._table.sweep(now, SWEEP_PERIODIC)
        return wait

    cdef void _find_absent(self, double now, StateRef* ref) noexcept:
        if self._table.overflow != NULL:
            ref.state = self._table.overflow_state(ref.key_hash)
            if not limit_set_is_idle(ref.limit_set, ref.state, now):
                ref.location = IN_OVERFLOW
                return
        ref.state = self._idle_state
        ref.location = ABSENT if now >= self._table.last_eviction else MAYBE_EVICTED

    cdef double _wait(self, StateRef* ref, double now, double cost) noexcept:
        """Seconds until every limit has room for `cost`."""
        if ref.location == MAYBE_EVICTED:
            return self._table.last_eviction - now
        return limit_set_wait(ref.limit_set, ref.state, now, cost)

    cdef int _charge(self, object key, double cost, double now, StateRef* ref) except -1:
        if ref.location == ABSENT or ref.location == MAYBE_EVICTED:
            self._place_new_key(key, now, ref)
        return limit_set_charge(ref.limit_set, ref.state, now, cost)

    cdef int _place_new_key(self, object key, double now, StateRef* ref) except -1:
        """Find a place for a key that has none: its own, or an overflow one when the table is full."""
        self._table.sweep(now, SWEEP_PER_KEY)
        if self._table.count >= self._max_keys:
            self._table.sweep(now, SWEEP_WHEN_FULL)
        if self._table.count < self._max_keys:
            ref.state = self._table.add(key, ref.key_hash, now)
            ref.location = IN_TABLE
            return 0
        self._table.allocate_overflow()
        ref.state = self._table.overflow_state(ref.key_hash)
        ref.location = IN_OVERFLOW
        return 0

    cdef int _end_override(self, object key, double now, _Override old) except -1:
        """Bring what a key used, before and during its override, to the default limits."""
        cdef StateRef ref
        migrate_state(&old.limit_set, old.state, &old.default_limit_set, old.default_state, now)
        if limit_set_is_idle(&old.default_limit_set, old.default_state, now):
            self._table.last_eviction = fast_max(self._table.last_eviction, now)
            return 0
        find(self, key, now, &ref)
        if ref.location != IN_OVERFLOW:
            self._place_new_key(key, now, &ref)
        migrate_state(&old.default_limit_set, old.default_state, ref.limit_set, ref.state, now)
        return 0

    cdef int _give_back(self, object key, double cost, list marks) except -1:
        """What was taken at `marks`, or (None) just now."""
        cdef StateRef ref
        cdef double now = self._clock.now()
        find(self, key, now, &ref)
        # Nothing goes back to overflow states: it might be another key's use that is undone.
        if ref.location == IN_TABLE or ref.location == OVERRIDDEN:
            limit_set_refund(ref.limit_set, ref.state, now, cost, marks)
        self._queues.wake_head(key)
        return 0

    cdef Decision _decision(self, object key, StateRef* ref, double now, double cost, double wait):
        cdef Decision decision
        # The key may have moved in the table since it was charged.
        find(self, key, now, ref)
        limits = self._limits if ref.location != OVERRIDDEN else (<_Override>self._overrides[key]).limits
        decision = limit_set_decision(ref.limit_set, ref.state, limits, now, cost, wait)
        if ref.location == MAYBE_EVICTED:
            decision.remaining = 0.0
        return decision


# Functions and not methods, for a method of a class that may be subclassed is not inlined.
cdef inline double take(Keyed self, object key, double cost, double now, StateRef* ref) except -1.0:
    """Charge `cost` and return 0, or change nothing and return the seconds until it fits."""
    cdef double wait
    cdef Params* params
    # The path of nearly every call, short enough to be inlined: a str that is in the table,
    # one token bucket. All else goes the long way, which gives the same answer.
    if self._has_fast_path and PyUnicode_CheckExact(key) and now < self._next_sweep:
        params = &self._table.limit_set.params[0]
        ref.key_hash = PyObject_Hash(key)
        ref.state = self._table.find(key, ref.key_hash)
        if ref.state != NULL and 0.0 < cost <= params.limit:
            ref.location = IN_TABLE
            ref.limit_set = &self._table.limit_set
            wait = bucket_wait(params, ref.state, now, cost)
            if wait == 0.0:
                bucket_charge(params, ref.state, now, cost)
            return wait
    return self._take(key, cost, now, ref)


cdef inline int find(Keyed self, object key, double now, StateRef* ref) except -1:
    cdef _Override override
    ref.key_hash = PyObject_Hash(key)
    ref.limit_set = &self._table.limit_set
    if self._overrides:
        override = self._overrides.get(key)
        if override is not None:
            ref.location = OVERRIDDEN
            ref.limit_set = &override.limit_set
            ref.state = override.state
            return 0
    ref.state = self._table.find(key, ref.key_hash)
    ref.location = IN_TABLE
    if ref.state == NULL:
        self._find_absent(now, ref)
    return 0
